/* SPDX-License-Identifier: Apache-2.0
 *
 * Which RDMA port and GID is chosen, on tables of machines as their users published them (names and
 * addresses changed): no device is needed.
 */
#include <string.h>

#include "transport/verbs/ports.h"
#include "unit.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define IPV4(a, b, c, d) {[10] = 0xff, 0xff, a, b, c, d}
#define LINK(last) {0xfe, 0x80, [8] = 0xa2, 0x88, 0xc2, 0xff, 0xfe, 0xb4, 0x87, last}
#define IPV6(last) {0xfd, 0x93, 0x16, 0xd3, [8] = 0x5e, 0x25, 0x73, 0xff, 0xfe, 0x31, 0x02, last}
#define INFINIBAND(last) {0xfe, 0x80, [8] = 0xec, 0x0d, 0x9a, 0x03, 0x00, 0x7d, 0x7d, last}

#define V1 RDT_VERBS_GID_ROCE_V1
#define V2 RDT_VERBS_GID_ROCE_V2
#define UP RDT_VERBS_NETDEV_UP
#define DOWN RDT_VERBS_NETDEV_DOWN
#define UNKNOWN RDT_VERBS_NETDEV_UNKNOWN

#define ROCE_PORT(name, port, rate, table) \
  {.device = name,                         \
   .number = port,                         \
   .transport = IBV_TRANSPORT_IB,          \
   .state = IBV_PORT_ACTIVE,               \
   .link_layer = IBV_LINK_LAYER_ETHERNET,  \
   .active_mtu = IBV_MTU_4096,             \
   .mbit_per_s = rate,                     \
   .gids = table,                          \
   .gid_count = COUNT(table)}
#define IB_PORT(name, port, rate, port_lid, table) \
  {.device = name,                                 \
   .number = port,                                 \
   .transport = IBV_TRANSPORT_IB,                  \
   .state = IBV_PORT_ACTIVE,                       \
   .link_layer = IBV_LINK_LAYER_INFINIBAND,        \
   .active_mtu = IBV_MTU_4096,                     \
   .mbit_per_s = rate,                             \
   .lid = port_lid,                                \
   .sm_lid = 1,                                    \
   .gids = table,                                  \
   .gid_count = COUNT(table)}

/* ---- Tools -------------------------------------------------------------------------------------- */

static char explained[4096];

static void collect(void *context, const char *line) {
  (void)context;
  size_t used = strlen(explained);
  snprintf(explained + used, sizeof(explained) - used, "%s\n", line);
}

static rdt_status choose(const rdt_verbs_port *ports, size_t count, const char *device,
                         const char *gid_index, char text[96]) {
  rdt_verbs_choice choice;
  explained[0] = '\0';
  rdt_status status =
      rdt_verbs_ports_choose(ports, count, device, gid_index, collect, NULL, &choice);
  if (status != RDT_OK) return status;
  int used = snprintf(text, 96, "%s:%u", choice.port->device, choice.port->number);
  if (choice.use_grh)
    snprintf(text + used, 96 - (size_t)used, " gid %u", choice.gid->index);
  else
    snprintf(text + used, 96 - (size_t)used, " lid %u", choice.port->lid);
  return status;
}

#define EXPECT_CHOICE(wanted, ports, device, gid_index)                                        \
  do {                                                                                         \
    char unit_text[96] = "";                                                                   \
    EXPECT_STATUS(RDT_OK, choose(ports, COUNT(ports), device, gid_index, unit_text));          \
    if (strcmp(unit_text, wanted) != 0) {                                                      \
      fprintf(stderr, "%s:%d: chosen is %s, not %s\n", __FILE__, __LINE__, unit_text, wanted); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)

#define EXPECT_REFUSAL(status, words, ports, device, gid_index)                       \
  do {                                                                                \
    char unit_text[96];                                                               \
    EXPECT_STATUS(status, choose(ports, COUNT(ports), device, gid_index, unit_text)); \
    EXPECT(strstr(rdt_last_error(), words));                                          \
  } while (0)

/* ---- Machines ----------------------------------------------------------------------------------- */

/* Two bonded pairs; the second one carries a VLAN whose interface is down, and one that is up. */
static rdt_verbs_gid bond_0[] = {{0, LINK(0xd6), V1, "bond0", UP},
                                 {1, LINK(0xd6), V2, "bond0", UP},
                                 {2, IPV4(10, 16, 29, 13), V1, "bond0", UP},
                                 {3, IPV4(10, 16, 29, 13), V2, "bond0", UP}};
static rdt_verbs_gid bond_1[] = {{0, LINK(0x4a), V1, "bond1", UP},
                                 {1, LINK(0x4a), V2, "bond1", UP},
                                 {2, IPV4(10, 16, 40, 13), V1, "bond1.40", DOWN},
                                 {3, IPV4(10, 16, 40, 13), V2, "bond1.40", DOWN},
                                 {4, IPV4(10, 16, 39, 13), V1, "bond1.39", UP},
                                 {5, IPV4(10, 16, 39, 13), V2, "bond1.39", UP}};
static const rdt_verbs_port bonds[] = {ROCE_PORT("mlx5_bond_0", 1, 100000, bond_0),
                                       ROCE_PORT("mlx5_bond_1", 1, 100000, bond_1)};

static void test_mlx5_bonds(void) {
  EXPECT_CHOICE("mlx5_bond_0:1 gid 3", bonds, "", "");
  EXPECT(strstr(explained, "mlx5_bond_1:1 is usable, but mlx5_bond_0:1 is preferred"));
  EXPECT(strstr(explained,
                "GID 1 of mlx5_bond_0:1, fe80::a288:c2ff:feb4:87d6, is passed over: a link-local "
                "address goes after an IPv4 one\n"));
  EXPECT(strstr(explained,
                "GID 2 of mlx5_bond_0:1, 10.16.29.13, is passed over: RoCE v1 goes after "
                "RoCE v2\n"));
  EXPECT(strstr(explained,
                "GID 3 of mlx5_bond_1:1, 10.16.40.13, is passed over: its interface is "
                "down\n"));
  EXPECT(!strstr(explained, "GID 3 of mlx5_bond_0:1")); /* the one that is taken */
  EXPECT_CHOICE("mlx5_bond_1:1 gid 5", bonds, "mlx5_bond_1", "");
  EXPECT_CHOICE("mlx5_bond_1:1 gid 1", bonds, "mlx5_bond_1:1", "mlx5_bond_1:1");
  EXPECT_CHOICE("mlx5_bond_0:1 gid 2", bonds, "", "2");
  /* A setting shared by a cluster names devices of other machines too. */
  EXPECT_CHOICE("mlx5_bond_0:1 gid 1", bonds, "", "rxe0:1,mlx5_bond_0:1");
  /* What is named is taken, even if it would not be chosen: here an interface that is down. */
  EXPECT_CHOICE("mlx5_bond_1:1 gid 3", bonds, "mlx5_bond_1", "3");
  /* Only the second has an index 4. */
  EXPECT_CHOICE("mlx5_bond_1:1 gid 4", bonds, "", "4");

  EXPECT_REFUSAL(RDT_ERR_INVALID, "available: mlx5_bond_0:1, mlx5_bond_1:1", bonds, "mlx5_0", "");
  EXPECT_REFUSAL(RDT_ERR_INVALID, "available: mlx5_bond_0:1, mlx5_bond_1:1", bonds, "mlx5_bond_0:2",
                 "");
  EXPECT_REFUSAL(RDT_ERR_INVALID, "3 10.16.29.13 (RoCE v2 on bond0)", bonds, "mlx5_bond_0", "9");
  EXPECT_REFUSAL(RDT_ERR_INVALID, "none of these devices", bonds, "", "rxe0:1,mlx5_7:3");
  EXPECT_REFUSAL(RDT_ERR_INVALID, "give a device", bonds, "mlx5_bond_0:0", "");
  EXPECT_REFUSAL(RDT_ERR_INVALID, "give an index", bonds, "", "first");
}

/* One device with two ports, of which the first has no cable; eth3 has two IPv4 networks. */
static rdt_verbs_gid dual_1[] = {{0, LINK(0xbc), V1, "eth2", DOWN},
                                 {1, LINK(0xbc), V2, "eth2", DOWN}};
static rdt_verbs_gid dual_2[] = {{0, LINK(0xbd), V1, "eth3", UP},
                                 {1, LINK(0xbd), V2, "eth3", UP},
                                 {4, IPV4(192, 0, 2, 8), V1, "eth3", UP},
                                 {5, IPV4(192, 0, 2, 8), V2, "eth3", UP},
                                 {6, IPV4(198, 51, 100, 8), V1, "eth3", UP},
                                 {7, IPV4(198, 51, 100, 8), V2, "eth3", UP}};

static void test_mlx5_dual_port(void) {
  rdt_verbs_port ports[] = {ROCE_PORT("mlx5_0", 1, 40000, dual_1),
                            ROCE_PORT("mlx5_0", 2, 40000, dual_2)};
  ports[0].state = IBV_PORT_DOWN;
  EXPECT_CHOICE("mlx5_0:2 gid 5", ports, "", "");
  /* The GIDs of a port that is down are of no interest. */
  EXPECT(strstr(explained, "mlx5_0:1 is down (no cable, or its network interface is down)\n") ==
         explained);
  EXPECT(!strstr(explained, "of mlx5_0:1"));
  EXPECT(strstr(explained,
                "GID 7 of mlx5_0:2, 198.51.100.8, is passed over: it is as good as GID 5, "
                "which comes first\n"));
  EXPECT_CHOICE("mlx5_0:2 gid 5", ports, "mlx5_0", "");
  EXPECT_REFUSAL(RDT_ERR_INVALID, "DEVICE is \"mlx5_0:1\", which cannot be used: mlx5_0:1 is down",
                 ports, "mlx5_0:1", "");
  ports[1].state = IBV_PORT_INIT;
  EXPECT_REFUSAL(RDT_ERR_UNSUPPORTED, "mlx5_0:2 is initializing", ports, "", "");
  EXPECT(strstr(rdt_last_error(), "mlx5_0:1 is down"));
}

/* Shared devices seen from a container: it has macvlan interfaces of its own on two of them, at indices
 * that do not start at 0; of the host's entries neither interface nor namespace is ours. */
static rdt_verbs_gid pod_0[] = {{0, LINK(1), V1, "", UNKNOWN},
                                {1, LINK(1), V2, "", UNKNOWN},
                                {2, IPV4(10, 0, 0, 5), V1, "", UNKNOWN},
                                {3, IPV4(10, 0, 0, 5), V2, "", UNKNOWN}};
static rdt_verbs_gid pod_1[] = {{0, LINK(2), V1, "ens2", UNKNOWN},
                                {1, LINK(2), V2, "ens2", UNKNOWN},
                                {2, IPV4(10, 0, 1, 5), V1, "ens2", UNKNOWN},
                                {3, IPV4(10, 0, 1, 5), V2, "ens2", UNKNOWN},
                                {4, LINK(3), V1, "net1", UP},
                                {5, LINK(3), V2, "net1", UP},
                                {6, IPV4(10, 152, 0, 12), V1, "net1", UP},
                                {7, IPV4(10, 152, 0, 12), V2, "net1", UP}};
static rdt_verbs_gid pod_2[] = {{4, LINK(4), V1, "net2", UP}, {5, LINK(4), V2, "net2", UP}};

static void test_container(void) {
  const rdt_verbs_port ports[] = {ROCE_PORT("mlx5_0", 1, 200000, pod_0),
                                  ROCE_PORT("mlx5_1", 1, 200000, pod_1),
                                  ROCE_PORT("mlx5_2", 1, 200000, pod_2)};
  EXPECT_CHOICE("mlx5_1:1 gid 7", ports, "", "");
  EXPECT(strstr(explained,
                "GID 3 of mlx5_1:1, 10.0.1.5, is passed over: no interface that has it is "
                "seen here\n"));
  /* Nothing known of any interface: the host's IPv4 address is the best guess. */
  EXPECT_CHOICE("mlx5_0:1 gid 3", ports, "mlx5_0", "");
  EXPECT_CHOICE("mlx5_2:1 gid 5", ports, "mlx5_2", "");
}

static rdt_verbs_gid ib_1[] = {{0, INFINIBAND(0x1a), RDT_VERBS_GID_IB, "", UNKNOWN}};
static rdt_verbs_gid ib_2[] = {{0, INFINIBAND(0x1b), RDT_VERBS_GID_IB, "", UNKNOWN}};

static void test_mlx5_infiniband(void) {
  rdt_verbs_port ports[] = {
      IB_PORT("mlx5_0", 1, 200000, 17, ib_1), IB_PORT("mlx5_1", 1, 400000, 18, ib_2),
      IB_PORT("mlx5_10", 1, 400000, 27, ib_2), IB_PORT("mlx5_2", 1, 400000, 19, ib_2)};
  EXPECT_CHOICE("mlx5_1:1 lid 18", ports, "", ""); /* the faster, then by name */
  ports[1].state = IBV_PORT_ARMED;
  EXPECT_CHOICE("mlx5_2:1 lid 19", ports, "", ""); /* before mlx5_10 */
  EXPECT(strstr(explained, "mlx5_1:1 is armed"));
  ports[0].grh_required = true;
  EXPECT_CHOICE("mlx5_0:1 gid 0", ports, "mlx5_0", "");
  ports[0].grh_required = false;
  ports[0].lid = 0;
  EXPECT_CHOICE("mlx5_0:1 gid 0", ports, "mlx5_0", "");
  ports[0].gid_count = 0;
  EXPECT_REFUSAL(RDT_ERR_INVALID, "has no GID that peers could reach; available: none", ports,
                 "mlx5_0", "");
}

/* One port of each kind: at equal rate InfiniBand does not lose to the best address on Ethernet. */
static rdt_verbs_gid mlx4_ib[] = {{0, INFINIBAND(0x21), RDT_VERBS_GID_IB, "", UNKNOWN}};
static rdt_verbs_gid mlx4_eth[] = {{0, LINK(0x21), V1, "eth2", UP},
                                   {1, IPV4(203, 0, 113, 12), V1, "eth2", UP},
                                   {2, IPV4(10, 10, 10, 2), V1, "eth2.10", UP}};

static void test_mlx4_mixed(void) {
  rdt_verbs_port ports[] = {IB_PORT("mlx4_0", 1, 56000, 1, mlx4_ib),
                            ROCE_PORT("mlx4_0", 2, 40000, mlx4_eth)};
  EXPECT_CHOICE("mlx4_0:1 lid 1", ports, "", "");
  EXPECT_CHOICE("mlx4_0:2 gid 1", ports, "mlx4_0:2", ""); /* an old card: RoCE v1 is all it has */
  ports[0].state = IBV_PORT_DOWN;
  EXPECT_CHOICE("mlx4_0:2 gid 1", ports, "", "");
}

/* IPv6 only: link-local and unique local addresses, none mapped from IPv4. */
static rdt_verbs_gid bnxt[] = {{0, LINK(0x31), V1, "enp65s0f0np0", UP},
                               {1, LINK(0x31), V2, "enp65s0f0np0", UP},
                               {2, IPV6(0x31), V1, "enp65s0f0np0", UP},
                               {3, IPV6(0x31), V2, "enp65s0f0np0", UP}};

static void test_bnxt_re(void) {
  const rdt_verbs_port ports[] = {ROCE_PORT("bnxt_re0", 1, 400000, bnxt)};
  EXPECT_CHOICE("bnxt_re0:1 gid 3", ports, "", "");
}

static rdt_verbs_gid efa_gids[] = {{0, LINK(0x41), RDT_VERBS_GID_IB, "", UNKNOWN}};
static rdt_verbs_gid iwarp_gids[] = {{0, {0x3c, 0xfd, 0xfe}, RDT_VERBS_GID_IB, "", UNKNOWN}};

static void test_no_reliable_connections(void) {
  rdt_verbs_port ports[] = {IB_PORT("rdmap16s27", 1, 100000, 0, efa_gids),
                            ROCE_PORT("irdma0", 1, 100000, iwarp_gids),
                            {.device = "hfi1_0"}};
  ports[0].transport = IBV_TRANSPORT_UNSPECIFIED;
  ports[1].transport = IBV_TRANSPORT_IWARP;
  strcpy(ports[2].unusable, "is left out: libibverbs has no driver for it");
  EXPECT_REFUSAL(RDT_ERR_UNSUPPORTED, "rdmap16s27:1 has no reliable connections", ports, "", "");
  EXPECT(strstr(rdt_last_error(), "irdma0:1 is iWARP"));
  EXPECT(strstr(rdt_last_error(), "hfi1_0 is left out: libibverbs has no driver"));
  EXPECT_REFUSAL(RDT_ERR_INVALID, "irdma0:1 is iWARP", ports, "irdma0", "");
  EXPECT_REFUSAL(RDT_ERR_INVALID, "hfi1_0 is left out", ports, "hfi1_0:1", "");
  /* The same card with RoCE switched on. */
  ports[1] = (rdt_verbs_port)ROCE_PORT("irdma0", 1, 100000, bnxt);
  EXPECT_CHOICE("irdma0:1 gid 3", ports, "", "");
}

static rdt_verbs_gid rxe_0[] = {{0, LINK(0x51), V2, "eth0", UP},
                                {1, IPV4(10, 0, 2, 15), V2, "eth0", UP}};
static rdt_verbs_gid rxe_1[] = {{0, LINK(0x52), V2, "eth1", DOWN}};
static rdt_verbs_gid rxe_lo[] = {{0, LINK(0x53), V2, "lo", UP},
                                 {1, IPV4(127, 0, 0, 1), V2, "lo", UP},
                                 {2, {[15] = 1}, V2, "lo", UP}};

static void test_rxe(void) {
  rdt_verbs_port ports[] = {ROCE_PORT("rxe0", 1, 10000, rxe_0), ROCE_PORT("rxe1", 1, 10000, rxe_1),
                            ROCE_PORT("rxe_lo", 1, 40000, rxe_lo)};
  ports[1].state = IBV_PORT_DOWN;
  EXPECT_CHOICE("rxe0:1 gid 1", ports, "", ""); /* reachable before fast */
  EXPECT_CHOICE("rxe0:1 gid 0", ports, "rxe0", "0");
  /* Its interface went down, its port is still thought active. */
  ports[1].state = IBV_PORT_ACTIVE;
  EXPECT_REFUSAL(RDT_ERR_INVALID, "(RoCE v2 on eth1, which is down)", ports, "rxe1", "");
  EXPECT_CHOICE("rxe_lo:1 gid 0", ports, "rxe_lo", "");
  rxe_lo[0].netdev_state = DOWN;
  EXPECT_CHOICE("rxe_lo:1 gid 1", ports, "rxe_lo", "");
}

/* A device with many virtual functions, whose table is longer than what a connection can name. */
static rdt_verbs_gid long_table[] = {{254, LINK(0x61), V2, "eth0", UP},
                                     {255, IPV6(0x61), V2, "eth0", UP},
                                     {256, IPV4(10, 0, 0, 61), V2, "eth0", UP},
                                     {259, IPV6(0x61), V2, "eth0", UP}};

static void test_index_of_more_than_a_byte(void) {
  rdt_verbs_port ports[] = {ROCE_PORT("mlx5_0", 1, 100000, long_table)};
  EXPECT_CHOICE("mlx5_0:1 gid 255", ports, "", "");
  EXPECT(strstr(explained,
                "GID 256 of mlx5_0:1, 10.0.0.61, is passed over: connections can name indices up "
                "to 255 only\n"));
  EXPECT_CHOICE("mlx5_0:1 gid 254", ports, "", "254");
  EXPECT_REFUSAL(RDT_ERR_INVALID,
                 "cannot use GID 259, which GID_INDEX names: connections can name indices up to "
                 "255 only",
                 ports, "", "mlx5_0:259");
  EXPECT_REFUSAL(RDT_ERR_INVALID, "has no GID 258", ports, "", "258");
  ports[0].gids += 2;
  ports[0].gid_count -= 2;
  EXPECT_REFUSAL(RDT_ERR_UNSUPPORTED, "has no GID that peers could reach; available: 256 10.0.0.61",
                 ports, "", "");
}

static void test_nothing_there(void) {
  char text[96];
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED, choose(NULL, 0, "", "", text));
  EXPECT(strstr(rdt_last_error(), "no RDMA device"));
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED, choose(NULL, 0, "mlx5_0:1", "mlx5_0:3", text));
  EXPECT_STATUS(RDT_ERR_INVALID, choose(NULL, 0, "mlx5_0:one", "", text));
}

/* ---- Parts -------------------------------------------------------------------------------------- */

/* Each row is better than the next. */
static void test_order_of_addresses(void) {
  const rdt_verbs_gid order[] = {
      {0, IPV4(192, 168, 1, 1), V2, "a", UP},
      {0, IPV6(1), V2, "a", UP},
      {0, IPV4(192, 168, 1, 1), V2, "", UNKNOWN},
      {0, IPV6(1), V2, "", UNKNOWN},
      {0, LINK(1), V2, "a", UP},
      {0, LINK(1), V2, "", UNKNOWN},
      {0, IPV4(127, 0, 0, 1), V2, "lo", UP},
      {0, {[15] = 1}, V2, "", UNKNOWN},
      {0, IPV4(192, 168, 1, 1), V1, "a", UP},
      {0, LINK(1), V1, "a", UP},
      {0, IPV4(192, 168, 1, 1), RDT_VERBS_GID_UNKNOWN, "a", UP},
  };
  for (size_t i = 0; i + 1 < COUNT(order); i++) {
    if (rdt_verbs_gid_rank(&order[i]) <= rdt_verbs_gid_rank(&order[i + 1])) {
      fprintf(stderr, "row %zu is not better than the next\n", i);
      exit(1);
    }
  }
  EXPECT(rdt_verbs_gid_rank(&order[COUNT(order) - 1]) > 0);
  /* 169.254/16 is as good as fe80::/10. */
  EXPECT(rdt_verbs_gid_rank(&(rdt_verbs_gid){0, IPV4(169, 254, 1, 1), V2, "a", UP}) ==
         rdt_verbs_gid_rank(&order[4]));
  const rdt_verbs_gid refused[] = {
      {0, {0}, V2, "a", UP},              /* empty */
      {0, IPV4(0, 0, 0, 0), V2, "a", UP}, /* no address */
      {0, {0xfe, 0x80}, V2, "a", UP},     /* no interface identifier */
      {0, IPV4(192, 168, 1, 1), V2, "a", DOWN},
  };
  for (size_t i = 0; i < COUNT(refused); i++) EXPECT(rdt_verbs_gid_rank(&refused[i]) == 0);
}

static void test_device_setting(void) {
  char name[IBV_SYSFS_NAME_MAX], longest[IBV_SYSFS_NAME_MAX + 3];
  uint8_t port;
  EXPECT_STATUS(RDT_OK, rdt_verbs_parse_device("mlx5_1:2", name, &port));
  EXPECT(strcmp(name, "mlx5_1") == 0 && port == 2);
  EXPECT_STATUS(RDT_OK, rdt_verbs_parse_device("rocep1s0f0", name, &port));
  EXPECT(strcmp(name, "rocep1s0f0") == 0 && port == 0);
  EXPECT_STATUS(RDT_OK, rdt_verbs_parse_device("a:255", name, &port));
  const char *bad[] = {":1",   "a:",   "a:0", "a:256", "a:-1", "a:1:1",
                       "a: 1", "a:1x", "a,b", "a b",   "../a", "a:99999999999999999999"};
  for (size_t i = 0; i < COUNT(bad); i++)
    EXPECT_STATUS(RDT_ERR_INVALID, rdt_verbs_parse_device(bad[i], name, &port));
  memset(longest, 'x', sizeof(longest));
  strcpy(longest + IBV_SYSFS_NAME_MAX - 1, ":1");
  EXPECT_STATUS(RDT_OK, rdt_verbs_parse_device(longest, name, &port));
  strcpy(longest + IBV_SYSFS_NAME_MAX - 1, "x:1");
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_verbs_parse_device(longest, name, &port));
}

static void test_gid_setting(void) {
  int index;
  EXPECT_STATUS(RDT_OK, rdt_verbs_parse_gid_index("", "mlx5_1", &index));
  EXPECT(index == -1);
  EXPECT_STATUS(RDT_OK, rdt_verbs_parse_gid_index("3", "mlx5_1", &index));
  EXPECT(index == 3);
  EXPECT_STATUS(RDT_OK, rdt_verbs_parse_gid_index("mlx5_1:3,rxe0:1", "rxe0", &index));
  EXPECT(index == 1);
  EXPECT_STATUS(RDT_OK, rdt_verbs_parse_gid_index("mlx5_1:3,rxe0:0", "rxe0", &index));
  EXPECT(index == 0);
  EXPECT_STATUS(RDT_OK, rdt_verbs_parse_gid_index("mlx5_10:3", "mlx5_1", &index));
  EXPECT(index == -1);
  const char *bad[] = {"-1",
                       "x",
                       "3,",
                       ",",
                       "mlx5_1",
                       "mlx5_1:",
                       ":3",
                       "mlx5_1:3,",
                       "mlx5_1:3,,rxe0:1",
                       "3,rxe0:1",
                       "mlx5_1:x",
                       "mlx5_1:1:3",
                       "70000",
                       "mlx5_1:3 ,rxe0:1"};
  for (size_t i = 0; i < COUNT(bad); i++)
    EXPECT_STATUS(RDT_ERR_INVALID, rdt_verbs_parse_gid_index(bad[i], "mlx5_1", &index));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_verbs_parse_gid_index("rxe0:1,rxe0:2", "rxe0", &index));
  EXPECT(strstr(rdt_last_error(), "names rxe0 twice"));
}

static void test_texts(void) {
  char text[128], small[16];
  rdt_verbs_choice choice;
  EXPECT_STATUS(RDT_OK, rdt_verbs_ports_choose(bonds, COUNT(bonds), "", "", NULL, NULL, &choice));
  rdt_verbs_choice_text(&choice, text, sizeof(text));
  EXPECT(
      strcmp(
          text,
          "mlx5_bond_0:1 (Ethernet, 100 Gbit/s, MTU 4096), GID 3 10.16.29.13 (RoCE v2 on bond0)") ==
      0);
  rdt_verbs_choice_text(&choice, small, sizeof(small));
  EXPECT(strcmp(small, "mlx5_bond_0:1 (") == 0);
  const rdt_verbs_port ib[] = {IB_PORT("mlx5_0", 1, 56000, 17, ib_1)};
  EXPECT_STATUS(RDT_OK, rdt_verbs_ports_choose(ib, 1, "", "", NULL, NULL, &choice));
  rdt_verbs_choice_text(&choice, text, sizeof(text));
  EXPECT(strcmp(text, "mlx5_0:1 (InfiniBand, 56 Gbit/s, MTU 4096), LID 17") == 0);
  rdt_verbs_gid_text(bond_0[0].raw, text);
  EXPECT(strcmp(text, "fe80::a288:c2ff:feb4:87d6") == 0);
}

/* More reasons than a message holds: it is cut, and says so. */
static void test_many_refusals(void) {
  static rdt_verbs_port ports[64];
  for (size_t i = 0; i < COUNT(ports); i++) {
    ports[i] = (rdt_verbs_port)ROCE_PORT("", 1, 0, rxe_1);
    snprintf(ports[i].device, sizeof(ports[i].device), "mlx5_%zu", i);
    ports[i].state = IBV_PORT_DOWN;
  }
  EXPECT_REFUSAL(RDT_ERR_UNSUPPORTED, "...", ports, "", "");
  EXPECT(strstr(explained, "mlx5_63:1 is down"));
}

int main(void) {
  test_mlx5_bonds();
  test_mlx5_dual_port();
  test_container();
  test_mlx5_infiniband();
  test_mlx4_mixed();
  test_bnxt_re();
  test_no_reliable_connections();
  test_rxe();
  test_index_of_more_than_a_byte();
  test_nothing_there();
  test_order_of_addresses();
  test_device_setting();
  test_gid_setting();
  test_texts();
  test_many_refusals();
  return 0;
}
