/* SPDX-License-Identifier: Apache-2.0
 *
 * The one table of settings. A row is everything there is to a setting: environment variable, Python
 * name, default, range and documentation all come from here.
 */
#ifndef RDT_BASE_CONFIG_H
#define RDT_BASE_CONFIG_H

#include <stdbool.h>

#include "base/status.h"

#define RDT_KIB 1024ull
#define RDT_MIB (1024ull * 1024)
#define RDT_TIB (1024ull * 1024 * 1024 * 1024)

/* NUMBER(name, default, minimum, maximum, doc); CHOICE(name, default, "a|b", doc);
 * TEXT(name, default, doc). */
#define RDT_CONFIG_TABLE(NUMBER, CHOICE, TEXT)                                                     \
  CHOICE(LOG_LEVEL, "info", "error|warn|info|debug",                                               \
         "Least severe line that is logged, to standard error.")                                   \
  CHOICE(LOG_FORMAT, "text", "text|json",                                                          \
         "How lines are written to standard error: text for people, json for collectors of logs, " \
         "one object per line.")                                                                   \
  NUMBER(METRICS_PORT, 0, 0, 65535,                                                                \
         "TCP port on which rdmatensor.metrics.serve() answers Prometheus; 0: it does not.")       \
  TEXT(METRICS_ADDRESS, "127.0.0.1", "Address of that port: who reaches it can read the metrics.") \
  NUMBER(DEADLINE_MS, 10000, 1, 86400000,                                                          \
         "Milliseconds after which a wait without a time-out of its own fails, and a peer that "   \
         "takes "                                                                                  \
         "no notifications counts as lost.")                                                       \
  NUMBER(CONNECT_TIMEOUT_MS, 10000, 1, 86400000, "Milliseconds a connection may take to come up.") \
  TEXT(BIND_ADDRESS, "",                                                                           \
       "Address the bootstrap port listens on; empty means 127.0.0.1, and for TensorFlow servers " \
       "the address of the task's entry in the cluster.")                                          \
  TEXT(SECRET_FILE, "",                                                                            \
       "File with the secret by which the devices of a cluster know each other; empty: there is "  \
       "none, and only processes of this host can connect.")                                       \
  NUMBER(INSECURE, 0, 0, 1,                                                                        \
         "1 connects with other hosts without a secret: everybody who reaches the bootstrap port " \
         "may then read and write this process's regions.")                                        \
  NUMBER(CONNECTIONS, 1024, 1, 1048576, "Connections that peers may have to a device.")            \
  NUMBER(CONNECTIONS_PER_HOST, 512, 1, 1048576,                                                    \
         "Of these, connections that peers of one host may have.")                                 \
  TEXT(TRANSPORTS, "shm,verbs", "Transports that may be used, separated by commas.")               \
  TEXT(FAULTS, "",                                                                                 \
       "For tests: faults to inject, as seed=7,delay=0.01:5ms,break=#40; docs/faults.md has them " \
       "all.")                                                                                     \
  TEXT(DEVICE, "", "RDMA port to use, as mlx5_1:1 or mlx5_1; empty chooses the best active one.")  \
  TEXT(GID_INDEX, "",                                                                              \
       "Index of the GID to use, as 3 or, per device, mlx5_1:3,rxe0:1; empty chooses by rank.")    \
  NUMBER(QUEUE_PAIRS, 2, 1, 8,                                                                     \
         "Verbs: queue pairs of a connection; the smaller number of both ends.")                   \
  NUMBER(QUEUE_DEPTH, 256, 64, 8192, "Verbs: work requests that a queue pair may have under way.") \
  NUMBER(RECEIVES, 32768, 256, 4194304,                                                            \
         "Verbs: receives that the connections of a device share, 128 for each.")                  \
  CHOICE(WINDOWS, "auto", "auto|on|off",                                                           \
         "Verbs: memory windows, by which memory for one peer is opened to its queue pairs only: " \
         "auto where the device has them, on refuses other devices, off does without.")            \
  NUMBER(STRIPE_BYTES, RDT_MIB, 64 * RDT_KIB, 64 * RDT_MIB,                                        \
         "Verbs: longer transfers are cut up and go over all queue pairs of the connection.")      \
  NUMBER(TRAFFIC_CLASS, 0, 0, 255, "Verbs: traffic class of RoCE packets, DSCP times four.")       \
  NUMBER(SERVICE_LEVEL, 0, 0, 15,                                                                  \
         "Verbs: service level of packets: virtual lanes of InfiniBand, VLAN priority of RoCE.")   \
  NUMBER(SPIN_US, 20, 0, 1000000,                                                                  \
         "Microseconds the progress thread polls after the last event before it sleeps.")          \
  NUMBER(WAIT_SPIN_US, 50, 0, 1000000,                                                             \
         "Microseconds a thread that waits for a transfer polls for it before it sleeps.")         \
  NUMBER(                                                                                          \
      RING_BYTES, 4 * RDT_MIB, 4096, 1024 * RDT_MIB,                                               \
      "Bytes of a channel's notification ring, one per direction; rounded up to a power of two.")  \
  NUMBER(NOTIFY_QUEUE_BYTES, 64 * RDT_MIB, 4096, RDT_TIB,                                          \
         "Bytes of notifications a device queues for its reader before senders have to wait.")     \
  NUMBER(REMOTE_ALLOC_LIMIT, 1024 * RDT_MIB, 0, RDT_TIB,                                           \
         "Bytes each peer may allocate on this device.")                                           \
  NUMBER(REMOTE_ALLOC_TOTAL, 16 * 1024 * RDT_MIB, 0, 64 * RDT_TIB,                                 \
         "Bytes all peers together may allocate on this device.")                                  \
  NUMBER(REMOTE_REGIONS, 1024, 1, 1048576,                                                         \
         "Regions each peer may allocate on this device, and that this device opens at each.")     \
  NUMBER(REMOTE_OPEN_LIMIT, RDT_TIB, 1, 64 * RDT_TIB,                                              \
         "Bytes of a peer's regions that this device opens at once.")                              \
  CHOICE(GROUP_ALGORITHM, "auto", "auto|flat|halving|ring|direct|hierarchical",                    \
         "Groups: algorithm of collective operations; auto takes the cheapest by measured costs.") \
  NUMBER(GROUP_EAGER_BYTES, 16 * RDT_KIB, 0, 256 * RDT_KIB,                                        \
         "Groups: messages up to this many bytes travel inside the notification; the smallest "    \
         "value of all members.")                                                                  \
  NUMBER(GROUP_CHUNK_BYTES, 0, 0, 1024 * RDT_MIB,                                                  \
         "Groups: bytes of the pieces that long messages are cut into; 0 leaves them whole "       \
         "between members that share memory, and cuts at 512 KB otherwise.")                       \
  NUMBER(GROUP_SPIN_US, 1000, 0, 1000000,                                                          \
         "Groups: microseconds a thread polls for messages of its operation before it sleeps.")    \
  NUMBER(INLINE_BYTES, 16 * RDT_KIB, 0, RDT_MIB,                                                   \
         "TensorFlow: tensors up to this many bytes travel inside the notification.")              \
  NUMBER(                                                                                          \
      ALIAS_BYTES, 0, 0, 64 * RDT_TIB,                                                             \
      "TensorFlow: tensors from this many bytes are used in place in the sender's memory where "   \
      "the transport allows (shm); smaller ones are read into own memory.")                        \
  NUMBER(ARENA_LIMIT, 0, 0, 64 * RDT_TIB,                                                          \
         "TensorFlow: bytes of the arena tensors are allocated in; 0 means three quarters of the " \
         "memory that the process may use.")                                                       \
  CHOICE(                                                                                          \
      PLAN, "on", "on|off",                                                                        \
      "TensorFlow: on places tensors by the graph's plan before the first step, off leaves all "   \
      "of them to the dynamic path.")                                                              \
  NUMBER(PLAN_SLOTS, 2, 1, 64, "TensorFlow: places a planned tensor has at its receiver.")         \
  NUMBER(PLAN_LOOP_SLOTS, 4, 1, 64,                                                                \
         "TensorFlow: places of a planned tensor that is sent inside a loop.")                     \
  NUMBER(                                                                                          \
      PLAN_LIMIT, 0, 0, 64 * RDT_TIB,                                                              \
      "TensorFlow: bytes of places a task may hold; 0 means ARENA_LIMIT. Tensors beyond it take "  \
      "the dynamic path.")                                                                         \
  NUMBER(PLAN_COPY_BYTES, 16 * RDT_KIB, 0, 64 * RDT_TIB,                                           \
         "TensorFlow: planned tensors up to this many bytes are written into their places where "  \
         "the transport could also lend them (shm); larger ones are lent.")                        \
  NUMBER(FUSE_BYTES, 4 * RDT_KIB, 0, RDT_MIB,                                                      \
         "TensorFlow: planned tensors up to this many bytes that become ready together travel as " \
         "one; 0 sends each alone.")                                                               \
  NUMBER(PROMOTE_AFTER, 3, 0, 1000000,                                                             \
         "TensorFlow: times a tensor of unknown size must come with one shape before it gets a "   \
         "place; 0 means never.")                                                                  \
  NUMBER(BATCH_SIZE, 0, 0, 1024 * RDT_MIB,                                                         \
         "TensorFlow: largest batch, which bounds an unknown first dimension; 0 means unknown.")   \
  CHOICE(                                                                                          \
      PLACEMENT, "arena", "arena|traced",                                                          \
      "TensorFlow: arena allocates every larger tensor in registered memory, traced only those "   \
      "from where tensors were seen to be sent.")                                                  \
  CHOICE(                                                                                          \
      ABLATION, "none", "none|copy|rpc",                                                           \
      "TensorFlow, for measurements only: copy has each larger tensor copied where it is sent, "   \
      "rpc has the receiver ask for each tensor, and larger ones copied at both ends; none is "    \
      "as fast as it can be.")                                                                     \
  CHOICE(POLICY, "auto", "auto|rdma|grpc",                                                         \
         "TensorFlow: auto uses gRPC for peers that cannot be reached otherwise, rdma fails "      \
         "instead, grpc never connects.")                                                          \
  NUMBER(FAILBACK_MS, 1000, 0, 86400000,                                                           \
         "TensorFlow: milliseconds after which a peer that is served by gRPC is tried again "      \
         "otherwise, twice as long after each failure, up to 64 times as long; 0 means never.")    \
  NUMBER(STEP_TTL_S, 600, 1, 86400,                                                                \
         "TensorFlow: seconds until a tensor is dropped that came for a step which this task "     \
         "never starts.")                                                                          \
  CHOICE(CHECKSUM, "off", "off|crc32c",                                                            \
         "crc32c sends a checksum with each of TensorFlow's tensors that does not go by gRPC, "    \
         "and with each message of a group, and compares it at the receiver, where both ends "     \
         "say so.")                                                                                \
  NUMBER(DISABLE, 0, 0, 1, "TensorFlow: 1 leaves the plugin unloaded.")

typedef enum rdt_config_id {
#define RDT_CONFIG_ENUM(name, ...) RDT_CONFIG_##name,
  RDT_CONFIG_TABLE(RDT_CONFIG_ENUM, RDT_CONFIG_ENUM, RDT_CONFIG_ENUM)
#undef RDT_CONFIG_ENUM
      RDT_CONFIG_COUNT
} rdt_config_id;

/* The value in force of a NUMBER row; always within its range. Thread-safe. */
uint64_t rdt_config_number(rdt_config_id id);
/* Copies the text in force of any row, cut to `size`. Thread-safe. */
void rdt_config_text(rdt_config_id id, char *value, size_t size);
/* Returns RDT_ERR_RANGE, which names the variable, if the environment has a value that was
 * refused. */
rdt_status rdt_config_check(void);
/* Calls `found` with each variable of the environment that looks like a setting and is none, and with the name of
 * the setting nearest to it: a misspelt variable would otherwise have no effect, silently. */
void rdt_config_unknown_variables(void (*found)(const char *name, const char *nearest));

#endif
