/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the machine's RDMA ports into tables, from libibverbs and, if that is too old to report
 * types and interfaces of GIDs, from sysfs.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <limits.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "transport/verbs/library.h"
#include "transport/verbs/ports.h"

#define SYSFS_DEVICES "/sys/class/infiniband"
#define SYSFS_VERBS "/sys/class/infiniband_verbs"

/* Parses gid_attrs/types, where InfiniBand and RoCE v1 share a name. The link layer tells them
 * apart. */
#define SYSFS_ROCE_V2 "RoCE v2"
#define SYSFS_ROCE_V1 "IB/RoCE v1"

/* The kernel takes answers of up to 64 KiB. */
#define MAX_TABLE_QUERY (UINT16_MAX / sizeof(struct ibv_gid_entry))

typedef struct scan {
  rdt_verbs_port *ports;
  size_t count, capacity;
  const struct ifaddrs *interfaces; /* of this network namespace */
} scan;

static rdt_status no_memory(void) { return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left"); }

/* Reads the first line of a file without its newline; "" if it cannot be read. */
static void read_line(const char *path, char *text, int size) {
  FILE *file = fopen(path, "re");
  if (!file || !fgets(text, size, file)) text[0] = '\0';
  text[strcspn(text, "\n")] = '\0';
  if (file) fclose(file);
}

/* Adds a port that has only its device's name. Returns NULL if there is no memory. */
static rdt_verbs_port *add_port(scan *self, const char *device) {
  if (self->count == self->capacity) {
    size_t capacity = self->capacity ? 2 * self->capacity : 8;
    rdt_verbs_port *grown = realloc(self->ports, capacity * sizeof(*grown));
    if (!grown) return NULL;
    self->ports = grown;
    self->capacity = capacity;
  }
  rdt_verbs_port *port = &self->ports[self->count++];
  memset(port, 0, sizeof(*port));
  snprintf(port->device, sizeof(port->device), "%s", device);
  return port;
}

/* Adds a device that cannot be used, so that choosing can say why. */
static rdt_status add_unusable(scan *self, const char *device, uint8_t number, const char *why) {
  rdt_verbs_port *port = add_port(self, device);
  if (!port) return no_memory();
  port->number = number;
  snprintf(port->unusable, sizeof(port->unusable), "is left out: %s", why);
  return RDT_OK;
}

/* Returns true if the last bytes of `raw` derive from the hardware address `mac`, as in a link-
 * local GID. A VLAN's number may be between the two halves. */
static bool is_from_mac(const uint8_t raw[16], const uint8_t mac[6]) {
  return raw[8] == (mac[0] ^ 2) && memcmp(raw + 9, mac + 1, 2) == 0 &&
         memcmp(raw + 13, mac + 3, 3) == 0;
}

static bool is_address(const struct sockaddr *address, const uint8_t raw[16]) {
  static const uint8_t ipv4_prefix[12] = {[10] = 0xff, [11] = 0xff};
  switch (address->sa_family) {
    case AF_INET:
      return memcmp(raw, ipv4_prefix, sizeof(ipv4_prefix)) == 0 &&
             memcmp(raw + 12, &((const struct sockaddr_in *)address)->sin_addr, 4) == 0;
    case AF_INET6:
      return memcmp(raw, &((const struct sockaddr_in6 *)address)->sin6_addr, 16) == 0;
    case AF_PACKET:
      return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80 &&
             is_from_mac(raw, ((const struct sockaddr_ll *)address)->sll_addr);
    default:
      return false;
  }
}

/* Returns true if the interface called `name` of this namespace has the address in `raw`. */
static bool holds_address(const scan *self, const char *name, const uint8_t raw[16]) {
  for (const struct ifaddrs *each = self->interfaces; each; each = each->ifa_next)
    if (each->ifa_addr && strcmp(each->ifa_name, name) == 0 && is_address(each->ifa_addr, raw))
      return true;
  return false;
}

static rdt_verbs_netdev_state interface_state(const scan *self, const char *name) {
  for (const struct ifaddrs *each = self->interfaces; each; each = each->ifa_next)
    if (strcmp(each->ifa_name, name) == 0)
      return (each->ifa_flags & IFF_UP) && (each->ifa_flags & IFF_RUNNING) ? RDT_VERBS_NETDEV_UP
                                                                           : RDT_VERBS_NETDEV_DOWN;
  return RDT_VERBS_NETDEV_UNKNOWN;
}

/* The kernel reports names and numbers of interfaces in the device's namespace. In another
 * namespace, such as a container's, the same name or number may be an unrelated interface. So
 * this compares `ifindex` (0 if not reported) and the address. */
static void set_netdev(const scan *self, rdt_verbs_gid *gid, const char *name, unsigned ifindex) {
  char from_index[IF_NAMESIZE] = "";
  if (ifindex) if_indextoname(ifindex, from_index);
  if (!name[0]) name = from_index;
  snprintf(gid->netdev, sizeof(gid->netdev), "%s", name);
  if (!name[0] || (ifindex && strcmp(name, from_index) != 0)) return;
  rdt_verbs_netdev_state state = interface_state(self, name);
  /* An interface that goes down loses its IPv6 addresses at once, and its GIDs a moment later. */
  if (state == RDT_VERBS_NETDEV_DOWN || holds_address(self, name, gid->raw))
    gid->netdev_state = state;
}

/* Reads an attribute of a GID; "" if it has none, as in some containers. */
static void read_gid_attribute(const char *ibdev_path, uint8_t port, const char *attribute,
                               uint32_t index, char *text, int size) {
  char path[IBV_SYSFS_PATH_MAX + 64];
  snprintf(path, sizeof(path), "%s/ports/%u/gid_attrs/%s/%u", ibdev_path, port, attribute, index);
  read_line(path, text, size);
}

static rdt_verbs_gid_type type_from_sysfs(const char *text, uint8_t link_layer) {
  if (link_layer != IBV_LINK_LAYER_ETHERNET) return RDT_VERBS_GID_IB;
  if (strcmp(text, SYSFS_ROCE_V2) == 0) return RDT_VERBS_GID_ROCE_V2;
  return strcmp(text, SYSFS_ROCE_V1) == 0 ? RDT_VERBS_GID_ROCE_V1 : RDT_VERBS_GID_UNKNOWN;
}

static rdt_verbs_gid_type type_from_library(uint32_t type, uint8_t link_layer) {
  if (link_layer != IBV_LINK_LAYER_ETHERNET) return RDT_VERBS_GID_IB;
  if (type == IBV_GID_TYPE_ROCE_V2) return RDT_VERBS_GID_ROCE_V2;
  return type == IBV_GID_TYPE_ROCE_V1 ? RDT_VERBS_GID_ROCE_V1 : RDT_VERBS_GID_UNKNOWN;
}

/* Reads the GID table of the whole device at once, with rdma-core 32 and newer. Returns false if
 * that is not supported. */
static bool read_gids_by_table(const scan *self, struct ibv_context *context, rdt_verbs_port *port,
                               size_t table_size, size_t port_count) {
  size_t capacity = table_size * port_count;
  if (capacity > MAX_TABLE_QUERY) capacity = MAX_TABLE_QUERY;
  const rdt_verbs_functions *library = rdt_verbs_library();
  struct ibv_gid_entry *entries =
      library->query_gid_table ? calloc(capacity, sizeof(*entries)) : NULL;
  if (!entries) return false;
  ssize_t count = library->query_gid_table(context, entries, capacity, 0, sizeof(*entries));
  for (ssize_t i = 0; i < count && port->gid_count < table_size; i++) {
    const struct ibv_gid_entry *entry = &entries[i];
    char netdev[IF_NAMESIZE];
    if (entry->port_num != port->number) continue;
    rdt_verbs_gid *gid = &port->gids[port->gid_count++];
    gid->index = entry->gid_index;
    memcpy(gid->raw, entry->gid.raw, sizeof(gid->raw));
    gid->type = type_from_library(entry->gid_type, port->link_layer);
    read_gid_attribute(context->device->ibdev_path, port->number, "ndevs", gid->index, netdev,
                       sizeof(netdev));
    set_netdev(self, gid, netdev, entry->ndev_ifindex);
  }
  free(entries);
  return count >= 0;
}

static void read_gids_one_by_one(const scan *self, struct ibv_context *context,
                                 rdt_verbs_port *port, size_t table_size) {
  static const union ibv_gid zero;
  const char *path = context->device->ibdev_path;
  for (uint32_t i = 0; i < table_size; i++) {
    char type[32], netdev[IF_NAMESIZE];
    union ibv_gid raw = zero;
    if (rdt_verbs_library()->query_gid(context, port->number, (int)i, &raw) != 0) continue;
    if (memcmp(&raw, &zero, sizeof(raw)) == 0) continue;
    rdt_verbs_gid *gid = &port->gids[port->gid_count++];
    gid->index = i;
    memcpy(gid->raw, raw.raw, sizeof(gid->raw));
    read_gid_attribute(path, port->number, "types", i, type, sizeof(type));
    read_gid_attribute(path, port->number, "ndevs", i, netdev, sizeof(netdev));
    gid->type = type_from_sysfs(type, port->link_layer);
    set_netdev(self, gid, netdev, 0);
  }
}

/* Multiplies active speed and width. Speeds are per lane, in the units of the specification:
 * powers of two, from SDR's 1 to NDR's 128. */
static uint32_t rate_of(const struct ibv_port_attr *attr) {
  static const struct {
    uint8_t code;
    uint32_t mbit_per_s;
  } speeds[] = {{1, 2500},   {2, 5000},   {4, 10000},  {8, 10000},
                {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
  static const struct {
    uint8_t code, lanes;
  } widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
  uint32_t speed = 0, lanes = 0;
  for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++)
    if (speeds[i].code == attr->active_speed) speed = speeds[i].mbit_per_s;
  for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
    if (widths[i].code == attr->active_width) lanes = widths[i].lanes;
  return speed * lanes;
}

static uint32_t at_least_zero(int value) { return value > 0 ? (uint32_t)value : 0; }

static rdt_verbs_limits limits_of(const struct ibv_device_attr_ex *extended) {
  const struct ibv_device_attr *attr = &extended->orig_attr;
  const uint32_t paging = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
  return (rdt_verbs_limits){
      .max_mr_size = attr->max_mr_size,
      .max_qp = at_least_zero(attr->max_qp),
      .max_qp_wr = at_least_zero(attr->max_qp_wr),
      .max_cq = at_least_zero(attr->max_cq),
      .max_cqe = at_least_zero(attr->max_cqe),
      .max_srq = at_least_zero(attr->max_srq),
      .max_srq_wr = at_least_zero(attr->max_srq_wr),
      .max_mr = at_least_zero(attr->max_mr),
      .max_pd = at_least_zero(attr->max_pd),
      .max_sge = at_least_zero(attr->max_sge),
      .max_srq_sge = at_least_zero(attr->max_srq_sge),
      .max_qp_rd_atom = at_least_zero(attr->max_qp_rd_atom),
      .max_qp_init_rd_atom = at_least_zero(attr->max_qp_init_rd_atom),
      .atomics = attr->atomic_cap,
      .windows = (attr->device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0,
      .on_demand_paging = (extended->odp_caps.general_caps & IBV_ODP_SUPPORT) &&
                          (extended->odp_caps.per_transport_caps.rc_odp_caps & paging) == paging,
      .relaxed_ordering = rdt_verbs_library()->reg_mr_iova2 != NULL,
  };
}

static void fill_port(rdt_verbs_port *port, const struct ibv_port_attr *attr) {
  port->state = attr->state;
  port->link_layer = attr->link_layer;
  /* Drivers older than RoCE do not report it. */
  if (port->link_layer == IBV_LINK_LAYER_UNSPECIFIED) port->link_layer = IBV_LINK_LAYER_INFINIBAND;
  port->active_mtu = attr->active_mtu;
  port->max_message = attr->max_msg_sz;
  port->mbit_per_s = rate_of(attr);
  port->lid = attr->lid;
  port->sm_lid = attr->sm_lid;
  port->lmc = attr->lmc;
  port->sm_sl = attr->sm_sl;
  port->grh_required = (attr->flags & IBV_QPF_GRH_REQUIRED) != 0;
}

static rdt_status scan_port(scan *self, struct ibv_context *context, uint8_t number,
                            uint8_t port_count, const rdt_verbs_limits *limits) {
  struct ibv_port_attr attr;
  const char *device = rdt_verbs_library()->get_device_name(context->device);
  if (rdt_verbs_query_port(context, number, &attr) != RDT_OK)
    return add_unusable(self, device, number, rdt_last_error());
  rdt_verbs_port *port = add_port(self, device);
  if (!port) return no_memory();
  port->number = number;
  port->transport = context->device->transport_type;
  port->limits = *limits;
  fill_port(port, &attr);
  size_t table_size = at_least_zero(attr.gid_tbl_len);
  if (!table_size) return RDT_OK;
  port->gids = calloc(table_size, sizeof(*port->gids));
  if (!port->gids) return no_memory();
  if (!read_gids_by_table(self, context, port, table_size, port_count)) {
    port->gid_count = 0;
    memset(port->gids, 0, table_size * sizeof(*port->gids));
    read_gids_one_by_one(self, context, port, table_size);
  }
  return RDT_OK;
}

static rdt_status scan_device(scan *self, struct ibv_device *device) {
  const char *name = rdt_verbs_library()->get_device_name(device);
  struct ibv_device_attr_ex attr;
  struct ibv_context *context;
  if (rdt_verbs_open(device, &context) != RDT_OK)
    return add_unusable(self, name, 0, rdt_last_error());
  rdt_status status = RDT_OK;
  if (rdt_verbs_query_device(context, &attr) != RDT_OK) {
    status = add_unusable(self, name, 0, rdt_last_error());
  } else {
    rdt_verbs_limits limits = limits_of(&attr);
    for (unsigned i = 1; i <= attr.orig_attr.phys_port_cnt && status == RDT_OK; i++)
      status = scan_port(self, context, (uint8_t)i, attr.orig_attr.phys_port_cnt, &limits);
  }
  rdt_verbs_close_device(context);
  return status;
}

/* Explains why libibverbs does not list a device that the kernel has. */
static const char *why_unlisted(const char *device) {
  char path[NAME_MAX + 64], name[IBV_SYSFS_NAME_MAX];
  DIR *directory = opendir(SYSFS_VERBS);
  const char *why = directory ? "it is being removed, and waits for those who use it"
                              : "the kernel's module ib_uverbs is not loaded: modprobe ib_uverbs";
  for (struct dirent *entry; directory && (entry = readdir(directory));) {
    if (entry->d_name[0] == '.') continue;
    snprintf(path, sizeof(path), SYSFS_VERBS "/%s/ibdev", entry->d_name);
    read_line(path, name, sizeof(name));
    if (strcmp(name, device) != 0) continue;
    snprintf(path, sizeof(path), "/dev/infiniband/%s", entry->d_name);
    why = access(path, F_OK) == 0 ? "libibverbs has no driver for it: apt install ibverbs-providers"
                                  : "its /dev/infiniband/uverbs* is missing: in a container, pass "
                                    "--device=/dev/infiniband";
  }
  if (directory) closedir(directory);
  return why;
}

static rdt_status add_unlisted(scan *self) {
  DIR *devices = opendir(SYSFS_DEVICES);
  rdt_status status = RDT_OK;
  for (struct dirent *entry; devices && status == RDT_OK && (entry = readdir(devices));) {
    size_t i = 0;
    if (entry->d_name[0] == '.') continue;
    while (i < self->count && strcmp(self->ports[i].device, entry->d_name) != 0) i++;
    if (i == self->count)
      status = add_unusable(self, entry->d_name, 0, why_unlisted(entry->d_name));
  }
  if (devices) closedir(devices);
  return status;
}

static int by_name_and_number(const void *a, const void *b) {
  const rdt_verbs_port *left = a, *right = b;
  int order = strverscmp(left->device, right->device);
  return order ? order : left->number - right->number;
}

rdt_status rdt_verbs_ports_scan(rdt_verbs_port **ports, size_t *count) {
  struct ibv_device **list;
  struct ifaddrs *interfaces = NULL;
  int devices;
  rdt_status status = rdt_verbs_list_devices(&list, &devices);
  if (status != RDT_OK) return status;
  if (getifaddrs(&interfaces) != 0) interfaces = NULL; /* without it no GID's interface is known */
  scan self = {.interfaces = interfaces};
  for (int i = 0; i < devices && status == RDT_OK; i++) status = scan_device(&self, list[i]);
  if (status == RDT_OK) status = add_unlisted(&self);
  if (interfaces) freeifaddrs(interfaces);
  rdt_verbs_free_devices(list);
  if (status != RDT_OK) {
    rdt_verbs_ports_free(self.ports, self.count);
    return status;
  }
  if (self.count) qsort(self.ports, self.count, sizeof(*self.ports), by_name_and_number);
  *ports = self.ports;
  *count = self.count;
  return RDT_OK;
}

void rdt_verbs_ports_free(rdt_verbs_port *ports, size_t count) {
  for (size_t i = 0; i < count; i++) free(ports[i].gids);
  free(ports);
}
