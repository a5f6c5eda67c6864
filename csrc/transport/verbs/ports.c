/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/ports.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

const char *rdt_verbs_gid_type_text(rdt_verbs_gid_type type) {
  static const char *const names[] = {"InfiniBand", "RoCE v1", "RoCE v2"};
  return type < RDT_VERBS_GID_UNKNOWN ? names[type] : "unknown type";
}

static const char *state_text(enum ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "is down (no cable, or its network interface is down)";
    case IBV_PORT_INIT:
      return "is initializing (InfiniBand needs a running subnet manager)";
    case IBV_PORT_ARMED:
      return "is armed (the subnet manager has not activated it yet)";
    case IBV_PORT_ACTIVE_DEFER:
      return "lost its link a moment ago";
    default:
      return "does nothing (NOP state)";
  }
}

static const uint8_t ipv4_prefix[12] = {[10] = 0xff, [11] = 0xff};

static bool is_ipv4(const uint8_t raw[16]) {
  return memcmp(raw, ipv4_prefix, sizeof(ipv4_prefix)) == 0;
}

void rdt_verbs_gid_text(const uint8_t raw[16], char text[RDT_VERBS_GID_TEXT_SIZE]) {
  if (is_ipv4(raw))
    inet_ntop(AF_INET, raw + sizeof(ipv4_prefix), text, RDT_VERBS_GID_TEXT_SIZE);
  else
    inet_ntop(AF_INET6, raw, text, RDT_VERBS_GID_TEXT_SIZE);
}

void rdt_verbs_choice_text(const rdt_verbs_choice *choice, char *text, size_t size) {
  const rdt_verbs_port *port = choice->port;
  char address[RDT_VERBS_GID_TEXT_SIZE + 64] = "", gid[RDT_VERBS_GID_TEXT_SIZE];
  if (choice->gid) rdt_verbs_gid_text(choice->gid->raw, gid);
  if (!choice->use_grh)
    snprintf(address, sizeof(address), "LID %u", port->lid);
  else if (choice->gid)
    snprintf(address, sizeof(address), "GID %u %s (%s%s%s)", choice->gid->index, gid,
             rdt_verbs_gid_type_text(choice->gid->type), choice->gid->netdev[0] ? " on " : "",
             choice->gid->netdev);
  snprintf(text, size, "%s:%u (%s, %g Gbit/s, MTU %u), %s", port->device, port->number,
           port->link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand",
           port->mbit_per_s / 1000.0, 128u << port->active_mtu, address);
}

/* Parses all of [text, text + length) as a whole number from `low` to `high`. Returns -1 if it
 * is not one. */
static int parse_number(const char *text, size_t length, int low, int high) {
  int number = 0;
  if (length == 0 || length > 6) return -1;
  for (size_t i = 0; i < length; i++) {
    if (!isdigit((unsigned char)text[i])) return -1;
    number = number * 10 + (text[i] - '0');
  }
  return number < low || number > high ? -1 : number;
}

static bool is_device_name(const char *text, size_t length) {
  if (length == 0 || length >= IBV_SYSFS_NAME_MAX) return false;
  for (size_t i = 0; i < length; i++)
    if (!isgraph((unsigned char)text[i]) || strchr(",:/", text[i])) return false;
  return true;
}

rdt_status rdt_verbs_parse_device(const char *setting, char name[IBV_SYSFS_NAME_MAX],
                                  uint8_t *port) {
  size_t length = strcspn(setting, ":");
  const char *number = setting + length;
  int parsed = *number ? parse_number(number + 1, strlen(number + 1), 1, UINT8_MAX) : 0;
  if (!is_device_name(setting, length) || parsed < 0)
    return rdt_fail(RDT_ERR_INVALID,
                    "DEVICE is \"%s\": give a device, as mlx5_1, or a device and a port from 1, as "
                    "mlx5_1:1",
                    setting);
  memcpy(name, setting, length);
  name[length] = '\0';
  *port = (uint8_t)parsed;
  return RDT_OK;
}

/* One item, "device:index", of a GID_INDEX list. */
typedef struct gid_item {
  const char *device;
  size_t length;
  int index;
} gid_item;

/* Takes the item at *at, and moves *at behind it and its comma. Returns false if it is
 * malformed. */
static bool next_gid_item(const char **at, gid_item *item) {
  size_t length = strcspn(*at, ",");
  const char *colon = memchr(*at, ':', length);
  if (!colon) return false;
  item->device = *at;
  item->length = (size_t)(colon - *at);
  item->index = parse_number(colon + 1, length - item->length - 1, 0, UINT16_MAX);
  *at += length;
  if (**at == ',') {
    ++*at;
    if (!**at) return false;
  }
  return item->index >= 0 && is_device_name(item->device, item->length);
}

static bool item_is_for(const gid_item *item, const char *device) {
  return strlen(device) == item->length && memcmp(device, item->device, item->length) == 0;
}

rdt_status rdt_verbs_parse_gid_index(const char *setting, const char *device, int *index) {
  int found = parse_number(setting, strlen(setting), 0, UINT16_MAX);
  if (found < 0) {
    for (const char *at = setting; *at;) {
      gid_item item;
      if (!next_gid_item(&at, &item))
        return rdt_fail(RDT_ERR_INVALID,
                        "GID_INDEX is \"%s\": give an index, as 3, or one per device, as "
                        "mlx5_1:3,rxe0:1",
                        setting);
      if (!item_is_for(&item, device)) continue;
      if (found >= 0)
        return rdt_fail(RDT_ERR_INVALID, "GID_INDEX is \"%s\": it names %s twice", setting, device);
      found = item.index;
    }
  }
  *index = found;
  return RDT_OK;
}

typedef enum { SCOPE_NONE, SCOPE_LOOPBACK, SCOPE_LINK, SCOPE_IPV6, SCOPE_IPV4 } gid_scope;

static gid_scope scope_of(const uint8_t raw[16]) {
  static const uint8_t zero[16], loopback[16] = {[15] = 1};
  if (is_ipv4(raw)) {
    const uint8_t *ip = raw + sizeof(ipv4_prefix);
    if (ip[0] == 0) return SCOPE_NONE;
    if (ip[0] == 127) return SCOPE_LOOPBACK;
    return ip[0] == 169 && ip[1] == 254 ? SCOPE_LINK : SCOPE_IPV4;
  }
  /* An entry that is only fe80:: has no interface identifier, and counts as empty. */
  if (memcmp(raw + 8, zero, 8) == 0) return SCOPE_NONE;
  if (memcmp(raw, loopback, sizeof(loopback)) == 0) return SCOPE_LOOPBACK;
  return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80 ? SCOPE_LINK : SCOPE_IPV6;
}

/* Ranks by scope, for interfaces that are up or unknown. An unknown one may belong to another
 * network namespace, where the port reaches peers that this namespace's routes do not. */
static const int rank_up[] = {0, 2, 4, 7, 8}, rank_unknown[] = {0, 1, 3, 5, 6};
#define RANK_ROCE_V1 10
#define RANK_ROCE_V2 20
#define RANK_BEST \
  28 /* on Ethernet; also what InfiniBand, and a GID that the user names, counts as */

int rdt_verbs_gid_rank(const rdt_verbs_gid *gid) {
  gid_scope scope = scope_of(gid->raw);
  if (scope == SCOPE_NONE || gid->netdev_state == RDT_VERBS_NETDEV_DOWN) return 0;
  if (gid->index > RDT_VERBS_GID_INDEX_MAX) return 0;
  int rank = gid->netdev_state == RDT_VERBS_NETDEV_UP ? rank_up[scope] : rank_unknown[scope];
  if (gid->type == RDT_VERBS_GID_ROCE_V2) return rank + RANK_ROCE_V2;
  return gid->type == RDT_VERBS_GID_ROCE_V1 ? rank + RANK_ROCE_V1 : rank;
}

/* What one call of rdt_verbs_ports_choose works with. */
typedef struct chooser {
  const rdt_verbs_port *ports;
  size_t count;
  char wanted_device[IBV_SYSFS_NAME_MAX]; /* "" for any */
  uint8_t wanted_port;                    /* 0 for any */
  const char *gid_setting;
  rdt_verbs_explain_fn explain;
  void *context;
  char refusals[768]; /* all reasons, for the error if no port remains */
} chooser;

typedef struct candidate {
  rdt_verbs_choice choice;
  int rank;
} candidate;

/* Appends to a text of fixed size, and marks it if it does not fit. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size,
                                                         const char *format, ...) {
  size_t used = strlen(text);
  va_list args;
  va_start(args, format);
  int length = vsnprintf(text + used, size - used, format, args);
  va_end(args);
  if (length >= 0 && used + (size_t)length >= size) memcpy(text + size - 4, "...", 4);
}

/* "mlx5_0:1", or "mlx5_0" for a device that did not open. */
static const char *port_name(const rdt_verbs_port *port, char name[IBV_SYSFS_NAME_MAX + 8]) {
  if (port->number)
    snprintf(name, IBV_SYSFS_NAME_MAX + 8, "%s:%u", port->device, port->number);
  else
    snprintf(name, IBV_SYSFS_NAME_MAX + 8, "%s", port->device);
  return name;
}

static bool is_wanted(const chooser *self, const rdt_verbs_port *port) {
  if (!self->wanted_device[0]) return true;
  if (strcmp(self->wanted_device, port->device) != 0) return false;
  return self->wanted_port == 0 || port->number == 0 || self->wanted_port == port->number;
}

__attribute__((format(printf, 3, 4))) static void refuse(chooser *self, const rdt_verbs_port *port,
                                                         const char *format, ...) {
  char line[384], name[IBV_SYSFS_NAME_MAX + 8], why[256];
  va_list args;
  va_start(args, format);
  vsnprintf(why, sizeof(why), format, args);
  va_end(args);
  snprintf(line, sizeof(line), "%s %s", port_name(port, name), why);
  append(self->refusals, sizeof(self->refusals), "%s%s", self->refusals[0] ? "; " : "", line);
  if (self->explain) self->explain(self->context, line);
}

/* "0 fe80::1 (RoCE v1 on eth2), ..." */
static void list_gids(const rdt_verbs_port *port, char *text, size_t size) {
  text[0] = '\0';
  for (size_t i = 0; i < port->gid_count; i++) {
    const rdt_verbs_gid *gid = &port->gids[i];
    char address[RDT_VERBS_GID_TEXT_SIZE];
    rdt_verbs_gid_text(gid->raw, address);
    append(text, size, "%s%u %s (%s%s%s%s)", i ? ", " : "", gid->index, address,
           rdt_verbs_gid_type_text(gid->type), gid->netdev[0] ? " on " : "", gid->netdev,
           gid->netdev_state == RDT_VERBS_NETDEV_DOWN ? ", which is down" : "");
  }
  if (!port->gid_count) append(text, size, "none");
}

static const rdt_verbs_gid *find_gid(const rdt_verbs_port *port, uint32_t index) {
  for (size_t i = 0; i < port->gid_count; i++)
    if (port->gids[i].index == index) return &port->gids[i];
  return NULL;
}

static const rdt_verbs_gid *best_gid(const rdt_verbs_port *port) {
  const rdt_verbs_gid *best = NULL;
  for (size_t i = 0; i < port->gid_count; i++)
    if (!best || rdt_verbs_gid_rank(&port->gids[i]) > rdt_verbs_gid_rank(best))
      best = &port->gids[i];
  return best && rdt_verbs_gid_rank(best) > 0 ? best : NULL;
}

static const char *scope_text(gid_scope scope) {
  static const char *const names[] = {"no", "a loopback", "a link-local", "an IPv6", "an IPv4"};
  return names[scope];
}

/* Explains why `gid` cannot be used, or ranks below `best`, which is NULL if none can be used. */
static void why_not_gid(const rdt_verbs_gid *gid, const rdt_verbs_gid *best, char *text,
                        size_t size) {
  gid_scope scope = scope_of(gid->raw), best_scope = best ? scope_of(best->raw) : SCOPE_NONE;
  if (gid->index > RDT_VERBS_GID_INDEX_MAX)
    snprintf(text, size, "connections can name indices up to %d only", RDT_VERBS_GID_INDEX_MAX);
  else if (scope == SCOPE_NONE || !best || gid->netdev_state == RDT_VERBS_NETDEV_DOWN)
    snprintf(text, size, "%s",
             scope == SCOPE_NONE ? "it holds no address" : "its interface is down");
  else if (gid->type != best->type)
    snprintf(text, size, "%s goes after %s", rdt_verbs_gid_type_text(gid->type),
             rdt_verbs_gid_type_text(best->type));
  else if (scope < best_scope)
    snprintf(text, size, "%s address goes after %s one", scope_text(scope), scope_text(best_scope));
  else if (rdt_verbs_gid_rank(gid) < rdt_verbs_gid_rank(best))
    snprintf(text, size, "no interface that has it is seen here");
  else
    snprintf(text, size, "it is as good as GID %u, which comes first", best->index);
}

/* Writes a line for each address of the port except the best. */
static void explain_gids(const chooser *self, const rdt_verbs_port *port,
                         const rdt_verbs_gid *best) {
  for (size_t i = 0; i < port->gid_count && self->explain; i++) {
    const rdt_verbs_gid *gid = &port->gids[i];
    char line[320], name[IBV_SYSFS_NAME_MAX + 8], address[RDT_VERBS_GID_TEXT_SIZE], why[96];
    if (gid == best) continue;
    rdt_verbs_gid_text(gid->raw, address);
    why_not_gid(gid, best, why, sizeof(why));
    snprintf(line, sizeof(line), "GID %u of %s, %s, is passed over: %s", gid->index,
             port_name(port, name), address, why);
    self->explain(self->context, line);
  }
}

/* Returns true if the port itself can be used. Otherwise refuses it with the reason. */
static bool is_fit(chooser *self, const rdt_verbs_port *port) {
  if (port->unusable[0])
    refuse(self, port, "%s", port->unusable);
  else if (port->transport == IBV_TRANSPORT_IWARP)
    refuse(self, port, "is iWARP, which connects by rdma_cm only: that is not supported");
  else if (port->transport != IBV_TRANSPORT_IB)
    refuse(self, port,
           "has no reliable connections (its transport is neither InfiniBand nor RoCE)");
  else if (port->state != IBV_PORT_ACTIVE)
    refuse(self, port, "%s", state_text(port->state));
  else
    return true;
  return false;
}

/* Finds the address of a usable port. Refuses the port if it has none. */
static bool find_address(chooser *self, const rdt_verbs_port *port, int wanted_index,
                         candidate *found) {
  bool ethernet = port->link_layer == IBV_LINK_LAYER_ETHERNET;
  char gids[192];
  const rdt_verbs_gid *gid = wanted_index >= 0 ? find_gid(port, (uint32_t)wanted_index)
                             : ethernet        ? best_gid(port)
                                               : find_gid(port, 0);
  bool use_grh = ethernet || port->grh_required || port->lid == 0;
  list_gids(port, gids, sizeof(gids));
  if (ethernet && wanted_index < 0) explain_gids(self, port, gid);
  if (!gid && wanted_index >= 0)
    refuse(self, port, "has no GID %d, which GID_INDEX names; available: %s", wanted_index, gids);
  else if (gid && gid->index > RDT_VERBS_GID_INDEX_MAX)
    refuse(self, port,
           "cannot use GID %d, which GID_INDEX names: connections can name indices up to %d only",
           wanted_index, RDT_VERBS_GID_INDEX_MAX);
  else if (!gid && use_grh)
    refuse(self, port, "has no GID that peers could reach; available: %s", gids);
  else {
    int rank = ethernet && wanted_index < 0 ? rdt_verbs_gid_rank(gid) : RANK_BEST;
    *found = (candidate){{port, gid, use_grh}, rank};
    return true;
  }
  return false;
}

static bool is_better(const candidate *a, const candidate *b) {
  const rdt_verbs_port *left = a->choice.port, *right = b->choice.port;
  if (a->rank != b->rank) return a->rank > b->rank;
  if (left->mbit_per_s != right->mbit_per_s) return left->mbit_per_s > right->mbit_per_s;
  int order = strverscmp(left->device, right->device); /* mlx5_2 before mlx5_10 */
  return order ? order < 0 : left->number < right->number;
}

/* Keeps the better port in `best`, and explains the other. */
static void settle(const chooser *self, candidate *best, const candidate *found) {
  candidate other = *found;
  if (!best->choice.port || is_better(found, best)) {
    other = *best;
    *best = *found;
  }
  if (!other.choice.port || !self->explain) return;
  char line[320], better[IBV_SYSFS_NAME_MAX + 8], name[IBV_SYSFS_NAME_MAX + 8];
  snprintf(line, sizeof(line), "%s is usable, but %s is preferred",
           port_name(other.choice.port, name), port_name(best->choice.port, better));
  self->explain(self->context, line);
}

static void list_ports(const chooser *self, char *text, size_t size) {
  char name[IBV_SYSFS_NAME_MAX + 8];
  text[0] = '\0';
  for (size_t i = 0; i < self->count; i++)
    append(text, size, "%s%s", i ? ", " : "", port_name(&self->ports[i], name));
  if (!self->count) append(text, size, "none");
}

/* Checks that DEVICE names something on this machine. */
static rdt_status check_wanted_device(const chooser *self, const char *setting) {
  char names[256];
  for (size_t i = 0; i < self->count; i++)
    if (is_wanted(self, &self->ports[i])) return RDT_OK;
  list_ports(self, names, sizeof(names));
  return rdt_fail(RDT_ERR_INVALID, "DEVICE is \"%s\", which was not found; available: %s", setting,
                  names);
}

/* Checks that, if GID_INDEX names devices, this machine has one of them. */
static rdt_status check_gid_setting(const chooser *self) {
  if (!self->gid_setting[0]) return RDT_OK;
  for (size_t i = 0; i < self->count; i++) {
    int index;
    rdt_status status = rdt_verbs_parse_gid_index(self->gid_setting, self->ports[i].device, &index);
    if (status != RDT_OK || index >= 0) return status;
  }
  char names[256];
  list_ports(self, names, sizeof(names));
  return rdt_fail(RDT_ERR_INVALID,
                  "GID_INDEX is \"%s\": this machine has none of these devices; available: %s",
                  self->gid_setting, names);
}

/* Checks the syntax in any case, and whether the named devices exist only if the machine has
 * any: that it has no RDMA is no fault of the settings. */
static rdt_status read_settings(chooser *self, const char *device_setting) {
  int index;
  rdt_status status = rdt_verbs_parse_gid_index(self->gid_setting, "", &index);
  if (status == RDT_OK && device_setting[0])
    status = rdt_verbs_parse_device(device_setting, self->wanted_device, &self->wanted_port);
  if (status != RDT_OK || !self->count) return status;
  status = check_wanted_device(self, device_setting);
  return status == RDT_OK ? check_gid_setting(self) : status;
}

static rdt_status nothing_left(const chooser *self, const char *device_setting) {
  if (!self->count)
    return rdt_fail(RDT_ERR_UNSUPPORTED,
                    "this machine has no RDMA device (or, in a container, none was passed to it)");
  if (device_setting[0])
    return rdt_fail(RDT_ERR_INVALID, "DEVICE is \"%s\", which cannot be used: %s", device_setting,
                    self->refusals);
  if (self->gid_setting[0])
    return rdt_fail(RDT_ERR_INVALID, "with GID_INDEX \"%s\" no RDMA port is usable: %s",
                    self->gid_setting, self->refusals);
  return rdt_fail(RDT_ERR_UNSUPPORTED, "no RDMA port is usable: %s", self->refusals);
}

rdt_status rdt_verbs_ports_choose(const rdt_verbs_port *ports, size_t count,
                                  const char *device_setting, const char *gid_setting,
                                  rdt_verbs_explain_fn explain, void *context,
                                  rdt_verbs_choice *choice) {
  chooser self = {.ports = ports,
                  .count = count,
                  .gid_setting = gid_setting,
                  .explain = explain,
                  .context = context};
  candidate best = {0};
  rdt_status status = read_settings(&self, device_setting);
  for (size_t i = 0; i < count && status == RDT_OK; i++) {
    candidate found;
    int wanted_index;
    if (!is_wanted(&self, &ports[i]) || !is_fit(&self, &ports[i])) continue;
    status = rdt_verbs_parse_gid_index(gid_setting, ports[i].device, &wanted_index);
    if (status != RDT_OK || !find_address(&self, &ports[i], wanted_index, &found)) continue;
    settle(&self, &best, &found);
  }
  if (status != RDT_OK) return status;
  if (!best.choice.port) return nothing_left(&self, device_setting);
  *choice = best.choice;
  return RDT_OK;
}
