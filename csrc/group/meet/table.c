/* SPDX-License-Identifier: Apache-2.0
 *
 * The TABLE, in which rank 0 tells all members about each other and about costs. It is sent in
 * parts, because one message does not hold a large group.
 */
#include <string.h>

#include "group/meet/meet.h"

#define TABLE_PART 600                   /* bytes after which a part is sent */
#define MOST_CHUNK (1024u * 1024 * 1024) /* of GROUP_CHUNK_BYTES */

static void put_double(rdt_wire *wire, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  rdt_wire_put_u64(wire, bits);
}

/* Checks a cost in nanoseconds: finite, not negative, and less than a quarter of an hour. */
static double get_cost(rdt_wire *wire) {
  uint64_t bits = rdt_wire_get_u64(wire);
  double value;
  memcpy(&value, &bits, sizeof(value));
  if (value >= 0 && value < 1e12) return value; /* false for NaN */
  wire->bad = true;
  return 0;
}

static void put_costs(rdt_wire *wire, const rdt_group_costs *costs) {
  for (int i = 0; i < 2; i++) {
    put_double(wire, costs->latency_ns[i]);
    put_double(wire, costs->byte_ns[i]);
  }
  put_double(wire, costs->reduce_byte_ns);
}

static void get_costs(rdt_wire *wire, rdt_group_costs *costs) {
  for (int i = 0; i < 2; i++) {
    costs->latency_ns[i] = get_cost(wire);
    costs->byte_ns[i] = get_cost(wire);
  }
  costs->reduce_byte_ns = get_cost(wire);
}

/* Sends a part of the table: as many members from `first` on as fit. */
static uint32_t put_table(rdt_wire *wire, const rdt_group *group, const rdt_group_member *members,
                          uint32_t first) {
  uint32_t next = first;
  rdt_group_meeting_begin(wire, group, RDT_GROUP_TABLE);
  rdt_wire_put_u64(wire, group->id);
  rdt_wire_put_u64(wire, group->eager);
  rdt_wire_put_u64(wire, group->chunk);
  put_costs(wire, &group->costs);
  rdt_wire_put_u32(wire, first);
  while (next < group->size && wire->at < TABLE_PART) {
    rdt_wire_put_text(wire, members[next].address);
    rdt_wire_put_u64(wire, members[next].generation);
    rdt_wire_put_u64(wire, members[next].mark);
    rdt_wire_put_u32(wire, members[next].host);
    next++;
  }
  return next;
}

rdt_status rdt_group_table_send(const rdt_group *group, const rdt_group_member *members) {
  for (uint32_t first = 0; first < group->size;) {
    rdt_wire wire;
    first = put_table(&wire, group, members, first);
    for (uint32_t i = 1; i < group->size; i++) {
      rdt_status status = rdt_group_meeting_send(group->links[i].channel, RDT_GROUP_TABLE, &wire);
      if (status != RDT_OK) return status;
    }
  }
  return RDT_OK;
}

/* Numbers hosts in the order in which they occur. */
static bool is_next_host(const rdt_group *group, uint32_t known, uint32_t host) {
  uint32_t hosts = 0;
  for (uint32_t i = 0; i < known; i++)
    if (group->hosts[i] >= hosts) hosts = group->hosts[i] + 1;
  return host <= hosts;
}

bool rdt_group_table_get(rdt_group *group, rdt_wire *wire, rdt_group_member *members,
                         uint32_t *known) {
  uint64_t id = rdt_wire_get_u64(wire), eager = rdt_wire_get_u64(wire);
  uint64_t chunk = rdt_wire_get_u64(wire);
  get_costs(wire, &group->costs);
  uint32_t first = rdt_wire_get_u32(wire);
  if (wire->bad || id == 0 || first != *known || eager > group->eager || chunk > MOST_CHUNK)
    return false;
  group->eager = eager;
  group->chunk = chunk;
  while (*known < group->size && wire->at < wire->size && !wire->bad) {
    rdt_group_member *next = &members[*known];
    rdt_wire_get_text(wire, next->address, sizeof(next->address));
    next->generation = rdt_wire_get_u64(wire);
    next->mark = rdt_wire_get_u64(wire);
    next->host = rdt_wire_get_u32(wire);
    if (!is_next_host(group, *known, next->host)) return false;
    group->hosts[(*known)++] = next->host;
  }
  if (rdt_wire_close(wire) != RDT_OK) return false;
  pthread_mutex_lock(&group->groups->lock);
  if (*known == group->size) group->id = id;
  pthread_mutex_unlock(&group->groups->lock);
  return true;
}
