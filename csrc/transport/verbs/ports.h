/* SPDX-License-Identifier: Apache-2.0
 *
 * Which port of which device to use, and by which address (GID) peers reach it. Scanning reads the
 * machine into plain tables. Choosing is a pure function of such tables, so that tables of other
 * machines can be tested.
 */
#ifndef RDT_TRANSPORT_VERBS_PORTS_H
#define RDT_TRANSPORT_VERBS_PORTS_H

#include <infiniband/verbs.h>
#include <net/if.h>
#include <stdbool.h>

#include "rdmatensor.h"

typedef enum rdt_verbs_gid_type {
  RDT_VERBS_GID_IB = 0,
  RDT_VERBS_GID_ROCE_V1 = 1,
  RDT_VERBS_GID_ROCE_V2 = 2,
  RDT_VERBS_GID_UNKNOWN = 3 /* neither the library nor sysfs reports it */
} rdt_verbs_gid_type;

typedef enum rdt_verbs_netdev_state {
  RDT_VERBS_NETDEV_UNKNOWN = 0, /* not reported, or in another network namespace */
  RDT_VERBS_NETDEV_DOWN = 1,
  RDT_VERBS_NETDEV_UP = 2
} rdt_verbs_netdev_state;

/* A connection names its own GID in one byte (sgid_index of ibv_global_route); tables can be longer. */
#define RDT_VERBS_GID_INDEX_MAX UINT8_MAX

/* One entry of a port's GID table that is not empty. */
typedef struct rdt_verbs_gid {
  uint32_t index;  /* above RDT_VERBS_GID_INDEX_MAX it is never chosen */
  uint8_t raw[16]; /* network byte order */
  rdt_verbs_gid_type type;
  char netdev[IF_NAMESIZE]; /* "eth0", "bond0.100"; "" if unknown */
  rdt_verbs_netdev_state netdev_state;
} rdt_verbs_gid;

/* What a device can do at most. */
typedef struct rdt_verbs_limits {
  uint64_t max_mr_size;       /* bytes of one registration */
  uint32_t max_qp, max_qp_wr; /* queue pairs; work requests of one queue */
  uint32_t max_cq, max_cqe;   /* completion queues; entries of one */
  uint32_t max_srq;           /* 0: no shared receive queues */
  uint32_t max_srq_wr;        /* receives of one shared queue */
  uint32_t max_mr, max_pd;
  uint32_t max_sge, max_srq_sge;
  uint32_t max_qp_rd_atom;      /* reads and atomics that a queue pair serves at a time */
  uint32_t max_qp_init_rd_atom; /* reads and atomics a queue pair may have outstanding */
  enum ibv_atomic_cap atomics;
  bool windows;          /* memory windows of type 2B */
  bool on_demand_paging; /* for reliable connections: writes, reads, sends */
  bool relaxed_ordering; /* registrations may ask for it; devices that cannot ignore it */
} rdt_verbs_limits;

/* One port, as the machine reports it. */
typedef struct rdt_verbs_port {
  char device[IBV_SYSFS_NAME_MAX]; /* "mlx5_0" */
  uint8_t number;                  /* counts from 1; 0 if the device could not be opened */
  enum ibv_transport_type transport;
  enum ibv_port_state state;
  uint8_t link_layer; /* IBV_LINK_LAYER_INFINIBAND or IBV_LINK_LAYER_ETHERNET */
  enum ibv_mtu active_mtu;
  uint32_t max_message; /* bytes of one work request */
  uint32_t mbit_per_s;  /* active width x speed, before encoding; 0 if not reported */
  uint16_t lid, sm_lid; /* InfiniBand only */
  uint8_t lmc;          /* InfiniBand only */
  uint8_t sm_sl;        /* InfiniBand only */
  bool grh_required;    /* InfiniBand only: the fabric routes by GID */
  rdt_verbs_limits limits;
  rdt_verbs_gid *gids;
  size_t gid_count;
  char unusable[192]; /* why the scan could not read it; "" if it could */
} rdt_verbs_port;

/* The port and address to use, pointing into the table that they were chosen from. */
typedef struct rdt_verbs_choice {
  const rdt_verbs_port *port;
  const rdt_verbs_gid *gid; /* NULL only on InfiniBand without use_grh */
  bool use_grh;             /* address peers by GID (always on Ethernet), not by LID */
} rdt_verbs_choice;

/* Reads every port of every device of the machine, ordered by device name and port number. Zero ports
 * are a result, not an error. RDT_ERR_UNSUPPORTED as rdt_verbs_library(), RDT_ERR_SYSTEM if the kernel
 * refuses the list, RDT_ERR_NO_MEMORY. The caller frees the table with rdt_verbs_ports_free. */
rdt_status rdt_verbs_ports_scan(rdt_verbs_port **ports, size_t *count);
/* Ignores NULL. */
void rdt_verbs_ports_free(rdt_verbs_port *ports, size_t count);

/* How good an address is on Ethernet: 0 must not or cannot be used, more is better. RoCE v2 before v1; IPv4 before
 * routable IPv6 before link-local before loopback; a live network interface before an unknown one. */
int rdt_verbs_gid_rank(const rdt_verbs_gid *gid);

/* Receives one line for each port and address that was not chosen, with the reason. */
typedef void (*rdt_verbs_explain_fn)(void *context, const char *line);

/* The best port of the table: active, with reliable connections and an address that peers can reach; of
 * several the one with the address of highest rank (InfiniBand counts as the best on Ethernet), then the
 * highest rate, then the first by name and number. On InfiniBand the GID is index 0 and counts only if
 * `use_grh`: when the port has no LID, the fabric demands it, or, as the caller may find, the peer is in
 * another subnet.
 *
 * `device_setting` ("", "mlx5_1", "mlx5_1:1") and `gid_setting` ("", "3", "mlx5_1:3,rxe0:1") are the
 * settings DEVICE and GID_INDEX. What DEVICE names must exist and be usable. One GID_INDEX may serve many
 * machines: of the devices it names one must exist here. A GID that it names must exist, and counts as of
 * the highest rank.
 *
 * RDT_ERR_INVALID: a setting is malformed, or names what does not exist or cannot be used (the message
 * lists what there is). RDT_ERR_UNSUPPORTED: no port is usable; the message holds every refusal.
 * `explain` may be NULL. Pure: neither logs nor looks at the machine. Thread-safe. */
rdt_status rdt_verbs_ports_choose(const rdt_verbs_port *ports, size_t count,
                                  const char *device_setting, const char *gid_setting,
                                  rdt_verbs_explain_fn explain, void *context,
                                  rdt_verbs_choice *choice);

/* Splits "mlx5_1:1" or "mlx5_1" into the name and the port, 0 for any. RDT_ERR_INVALID. `setting` must
 * not be empty. */
rdt_status rdt_verbs_parse_device(const char *setting, char name[IBV_SYSFS_NAME_MAX],
                                  uint8_t *port);
/* The index that `setting` gives for `device`, -1 if it says nothing about it. RDT_ERR_INVALID if any
 * part of it is malformed, or a device occurs twice. */
rdt_status rdt_verbs_parse_gid_index(const char *setting, const char *device, int *index);

#define RDT_VERBS_GID_TEXT_SIZE 48
/* "192.168.1.7" for an IPv4-mapped GID, else "fe80::1". */
void rdt_verbs_gid_text(const uint8_t raw[16], char text[RDT_VERBS_GID_TEXT_SIZE]);
/* "RoCE v2", "RoCE v1", "InfiniBand", "unknown type"; static storage. */
const char *rdt_verbs_gid_type_text(rdt_verbs_gid_type type);

/* The line for the log about a choice: "mlx5_1:1 (Ethernet, 100 Gbit/s, MTU 4096), GID 3 10.0.0.7
 * (RoCE v2 on eth2)". Cut to `size`. */
void rdt_verbs_choice_text(const rdt_verbs_choice *choice, char *text, size_t size);

#endif
