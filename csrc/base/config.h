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
         "Least severe level that is logged. The log goes to standard error.")                     \
  CHOICE(LOG_FORMAT, "text", "text|json",                                                          \
         "Format of log lines: text for people, json for log collectors, one object per line.")    \
  TEXT(METRICS, "",                                                                                \
       "Port on which rdmatensor.metrics.serve() answers Prometheus, such as 9100 for this host "  \
       "only, or 0.0.0.0:9100 for all who reach it. Empty disables it.")                           \
  NUMBER(DEADLINE_MS, 10000, 1, 86400000,                                                          \
         "Milliseconds after which a wait without its own time-out fails, connecting included, "   \
         "and after which a peer that takes no notifications counts as lost.")                     \
  TEXT(BIND_ADDRESS, "",                                                                           \
       "Address on which the bootstrap port listens. Empty means 127.0.0.1, and for TensorFlow "   \
       "servers the address of the task's entry in the cluster.")                                  \
  TEXT(BIND_PORT, "",                                                                              \
       "Port of the bootstrap, for firewalls: a number, or a range such as 7000-7010, of which "   \
       "each device takes the first free one. Empty takes any free port. A port that a program "   \
       "gives a device comes first.")                                                              \
  TEXT(SECRET_FILE, "",                                                                            \
       "File with the secret that all devices of a cluster share. Empty means no secret: only "    \
       "processes of this host can connect.")                                                      \
  NUMBER(INSECURE, 0, 0, 1,                                                                        \
         "1 accepts other hosts without a secret: whoever reaches the bootstrap port may then "    \
         "read and write this process's regions.")                                                 \
  CHOICE(ENCRYPT, "off", "off|on",                                                                 \
         "on encrypts every connection over TCP (TLS 1.3 with keys from the secret), refuses "     \
         "peers that do not, and uses no verbs, which cannot encrypt.")                            \
  NUMBER(CONNECTIONS, 1024, 1, 1048576,                                                            \
         "Connections that peers may have to a device; those of one host may have half of them.")  \
  TEXT(TRANSPORTS, RDT_TRANSPORT_NAMES, "Transports that may be used, separated by commas.")       \
  TEXT(FAULTS, "",                                                                                 \
       "For tests: faults to inject, such as seed=7,delay=0.01:5ms,break=#40; docs/faults.md "     \
       "lists the kinds.")                                                                         \
  TEXT(DEVICE, "",                                                                                 \
       "RDMA port to use, such as mlx5_1:1 or mlx5_1. Empty chooses the best active port.")        \
  TEXT(GID_INDEX, "",                                                                              \
       "Index of the GID to use, such as 3, or per device mlx5_1:3,rxe0:1. Empty chooses the "     \
       "best GID.")                                                                                \
  NUMBER(QUEUE_PAIRS, 2, 1, 8,                                                                     \
         "Queue pairs of a connection over verbs, sockets of one over tcp. Both ends use the "     \
         "smaller number.")                                                                        \
  CHOICE(WINDOWS, "auto", "auto|on|off",                                                           \
         "Verbs: memory windows, which open memory for one peer only to that peer's queue pairs. " \
         "auto uses them if the device has them, on rejects devices without them, off disables "   \
         "them.")                                                                                  \
  NUMBER(TRAFFIC_CLASS, 0, 0, 255, "Verbs: traffic class of RoCE packets, the DSCP times four.")   \
  NUMBER(SERVICE_LEVEL, 0, 0, 15,                                                                  \
         "Verbs: service level of packets, which selects the virtual lane of InfiniBand or the "   \
         "VLAN priority of RoCE.")                                                                 \
  NUMBER(SPIN_US, 50, 0, 1000000,                                                                  \
         "Microseconds that a thread polls for its transfer before it sleeps. The progress "       \
         "thread polls for two fifths of that, operations of groups for twenty times of it.")      \
  NUMBER(REMOTE_ALLOC_LIMIT, 1024 * RDT_MIB, 0, RDT_TIB,                                           \
         "Bytes that each peer may allocate on this device. All peers together may allocate 16 "   \
         "times as much.")                                                                         \
  CHOICE(                                                                                          \
      GROUP_ALGORITHM, "auto", "auto|flat|halving|ring|direct|hierarchical|trees",                 \
      "Groups: algorithm of collective operations. auto chooses the cheapest by measured costs.")  \
  NUMBER(ARENA_LIMIT, 0, 0, 64 * RDT_TIB,                                                          \
         "TensorFlow: bytes of the arena, in which tensors are allocated. 0 means three quarters " \
         "of the memory that the process may use.")                                                \
  CHOICE(PLAN, "on", "on|off",                                                                     \
         "TensorFlow: on gives tensors places by the graph's plan before the first step, off "     \
         "uses the dynamic path for all of them.")                                                 \
  NUMBER(PLAN_SLOTS, 2, 1, 32,                                                                     \
         "TensorFlow: slots of a planned tensor at its receiver; inside a loop twice as many.")    \
  NUMBER(PLAN_LIMIT, 0, 0, 64 * RDT_TIB,                                                           \
         "TensorFlow: bytes of places that a task may hold; 0 means ARENA_LIMIT. Tensors beyond "  \
         "the limit take the dynamic path.")                                                       \
  NUMBER(BATCH_SIZE, 0, 0, 1024 * RDT_MIB,                                                         \
         "TensorFlow: largest batch, which bounds an unknown first dimension; 0 means unknown.")   \
  CHOICE(POLICY, "auto", "auto|rdma|grpc",                                                         \
         "TensorFlow: auto uses gRPC for peers that no transport reaches, rdma fails instead, "    \
         "grpc never connects.")                                                                   \
  CHOICE(CONTROL, "auto", "auto|grpc",                                                             \
         "TensorFlow: how control messages travel: auto starts and ends steps, and drives eager "  \
         "contexts, over channels where there are any, grpc leaves that to TensorFlow.")           \
  CHOICE(ROW_KERNELS, "on", "on|off",                                                              \
         "TensorFlow: on lets the plugin's kernels read and update rows of variables in servers "  \
         "over grpc+rdma, off leaves that to TensorFlow's.")                                       \
  CHOICE(CHECKSUM, "off", "off|crc32c",                                                            \
         "crc32c adds a checksum to each tensor that does not use gRPC and to each message of a "  \
         "group; the receiver compares it if both ends have this setting.")                        \
  NUMBER(DISABLE, 0, 0, 1, "TensorFlow: 1 leaves the plugin unloaded.")

/* Numbers that measurements chose. Only tests and benchmarks change them, by rdt_config_set or by the variable
 * RDMATENSOR_TEST_<NAME>. CONSTANT(name, default, minimum, maximum). */
#define RDT_CONFIG_CONSTANTS(CONSTANT)                                                            \
  /* Work requests under way on a queue pair, operations on a socket. */                          \
  CONSTANT(QUEUE_DEPTH, 256, 64, 8192)                                                            \
  /* Longer transfers are split over all queue pairs; over tcp at most 512 KiB stay together. */  \
  CONSTANT(STRIPE_BYTES, RDT_MIB, 64 * RDT_KIB, 64 * RDT_MIB)                                     \
  /* A channel's notification ring in each direction, rounded up to a power of two. */            \
  CONSTANT(RING_BYTES, 4 * RDT_MIB, 4096, 1024 * RDT_MIB)                                         \
  /* Notifications that a device queues for its reader before senders have to wait. */            \
  CONSTANT(NOTIFY_QUEUE_BYTES, 64 * RDT_MIB, 4096, RDT_TIB)                                       \
  /* Regions that each peer may allocate here, and that are opened here of each peer. */          \
  CONSTANT(REMOTE_REGIONS, 1024, 1, 1048576)                                                      \
  /* Bytes of a peer's regions that are opened here at once. */                                   \
  CONSTANT(REMOTE_OPEN_LIMIT, RDT_TIB, 1, 64 * RDT_TIB)                                           \
  /* Messages of groups of up to this many bytes travel inside the notification. */               \
  CONSTANT(GROUP_EAGER_BYTES, 16 * RDT_KIB, 0, 256 * RDT_KIB)                                     \
  /* Pieces of a group's long messages. 0: 512 KB where members share no memory, else uncut. */   \
  CONSTANT(GROUP_CHUNK_BYTES, 0, 0, 1024 * RDT_MIB)                                               \
  /* TensorFlow: tensors of up to this many bytes travel inside the notification. */              \
  CONSTANT(INLINE_BYTES, 16 * RDT_KIB, 0, RDT_MIB)                                                \
  /* TensorFlow: tensors from this size on are used in place in the sender's memory (shm). */     \
  CONSTANT(ALIAS_BYTES, 0, 0, 64 * RDT_TIB)                                                       \
  /* TensorFlow: planned tensors of up to this many bytes are written, larger ones lent (shm). */ \
  CONSTANT(PLAN_COPY_BYTES, 16 * RDT_KIB, 0, 64 * RDT_TIB)                                        \
  /* TensorFlow: planned tensors of up to this many bytes travel together; 0 sends each alone. */ \
  CONSTANT(FUSE_BYTES, 4 * RDT_KIB, 0, RDT_MIB)                                                   \
  /* TensorFlow: equal shapes of a tensor of unknown size until it gets a place; 0 is never. */   \
  CONSTANT(PROMOTE_AFTER, 3, 0, 1000000)                                                          \
  /* TensorFlow: until a transport is tried again for a peer on gRPC; doubles; 0 is never. */     \
  CONSTANT(FAILBACK_MS, 1000, 0, 86400000)                                                        \
  /* TensorFlow, for measurements: 1 copies larger tensors at their sender, 2 uses RecvTensor. */ \
  CONSTANT(ABLATION, 0, 0, 2)

typedef enum rdt_config_id {
#define RDT_CONFIG_ENUM(name, ...) RDT_CONFIG_##name,
  RDT_CONFIG_TABLE(RDT_CONFIG_ENUM, RDT_CONFIG_ENUM, RDT_CONFIG_ENUM)
      RDT_CONFIG_CONSTANTS(RDT_CONFIG_ENUM)
#undef RDT_CONFIG_ENUM
          RDT_CONFIG_COUNT,
  RDT_CONFIG_SETTINGS = RDT_CONFIG_QUEUE_DEPTH /* how many are settings */
} rdt_config_id;

/* The value in force of a NUMBER row or a constant; always within its range. Thread-safe. */
uint64_t rdt_config_number(rdt_config_id id);
/* Copies the text in force of any row, cut to `size`. Thread-safe. */
void rdt_config_text(rdt_config_id id, char *value, size_t size);
/* Returns RDT_ERR_INVALID, which names the variable, if the environment has a value that was
 * refused. */
rdt_status rdt_config_check(void);
/* Calls `found` with each variable of the environment that looks like a setting and is none, and with the name of
 * the setting nearest to it: a misspelt variable would otherwise have no effect, silently. */
void rdt_config_unknown_variables(void (*found)(const char *name, const char *nearest));

#endif
