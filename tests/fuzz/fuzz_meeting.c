/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages by which members of a group meet, at rank 0 and at another member: raw ones, and those of an honest
 * member with fields changed. What is taken from a table makes sense, and nobody waits for what is not there.
 */
#include <math.h>

#include "group_stage.h"

#define SIZE 3u
#define STEPS 32
#define NAME "fuzz"

static stage here;
static rdt_group *root, *other; /* rank 0, rank 1 */

static void start(void) {
  if (here.device) return;
  stage_open(&here);
  for (uint32_t peer = 0; peer < PEERS; peer++) rdt_groups_connected(here.channels[peer]);
  root = stage_group(&here, NAME, 0, SIZE);
  other = stage_group(&here, NAME, 1, SIZE);
  rdt_group *complete = stage_group(&here, "complete", 0, 2);
  complete->id = 55;
  rdt_group_meeting_link(complete, 1, here.channels[4]);
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/* The honest value, or the input's if the next bit of `what` says so. */
static uint64_t value(uint64_t honest, uint32_t *what, fuzz_input *input) {
  bool changed = *what & 1;
  *what >>= 1;
  return changed ? fuzz_number(input, fuzz_u8(input) & 1 ? 8 : 1) : honest;
}

static void put_text(rdt_wire *wire, const char *honest, uint32_t *what, fuzz_input *input) {
  bool changed = *what & 1;
  *what >>= 1;
  if (!changed) {
    rdt_wire_put_text(wire, honest);
    return;
  }
  size_t size;
  const uint8_t *bytes = fuzz_bytes(input, fuzz_u8(input), &size);
  rdt_wire_put_bytes(wire, bytes, size);
}

static uint64_t bits_of(double number) {
  uint64_t bits;
  memcpy(&bits, &number, sizeof(bits));
  return bits;
}

static void put_join(rdt_wire *wire, uint32_t peer, uint32_t *what, fuzz_input *input) {
  uint32_t order = (uint32_t)value(0x01020305u, what, input);
  char address[32], host[32];
  snprintf(address, sizeof(address), STAGE_ADDRESS, 1 + peer);
  snprintf(host, sizeof(host), "host-%u", peer / 2);
  rdt_wire_put_bytes(wire, &order, sizeof(order));
  rdt_wire_put_u32(wire, (uint32_t)value(peer, what, input));
  rdt_wire_put_u32(wire, (uint32_t)value(SIZE, what, input));
  rdt_wire_put_u32(wire, (uint32_t)value(0, what, input));
  rdt_wire_put_u64(wire, value(1000 + peer, what, input));
  rdt_wire_put_u64(wire, value(0x1000, what, input));
  rdt_wire_put_u64(wire, value(16384, what, input));
  rdt_wire_put_u64(wire, value(0, what, input));
  rdt_wire_put_u64(wire, value(1, what, input));
  rdt_wire_put_u64(wire, value(0, what, input));
  put_text(wire, address, what, input);
  put_text(wire, host, what, input);
}

static void put_table(rdt_wire *wire, uint32_t *what, fuzz_input *input) {
  uint32_t first = fuzz_u8(input) % (SIZE + 1), last = fuzz_u8(input) % (SIZE + 2);
  rdt_wire_put_u64(wire, value(77, what, input));
  rdt_wire_put_u64(wire, value(8192, what, input));
  rdt_wire_put_u64(wire, value(0, what, input));
  for (int i = 0; i < 5; i++) rdt_wire_put_u64(wire, value(bits_of(100.5), what, input));
  rdt_wire_put_u32(wire, first);
  for (uint32_t i = first; i < last; i++) {
    char address[32];
    snprintf(address, sizeof(address), STAGE_ADDRESS, 1 + i);
    put_text(wire, address, what, input);
    rdt_wire_put_u64(wire, value(1000 + i, what, input));
    rdt_wire_put_u64(wire, value(0x1000, what, input));
    rdt_wire_put_u32(wire, (uint32_t)value(i ? 1 : 0, what, input));
  }
}

static void put_fields(rdt_wire *wire, uint32_t kind, uint32_t peer, fuzz_input *input) {
  uint32_t what = (uint32_t)fuzz_number(input, 3);
  if (kind <= RDT_GROUP_TABLE)
    put_text(wire, NAME, &what, input);
  else
    rdt_wire_put_u64(wire, value(77, &what, input));
  if (kind == RDT_GROUP_JOIN) {
    put_join(wire, peer, &what, input);
  } else if (kind == RDT_GROUP_REFUSE) {
    rdt_wire_put_u32(wire, (uint32_t)value((uint32_t)RDT_ERR_REFUSED, &what, input));
    put_text(wire, "no", &what, input);
  } else if (kind == RDT_GROUP_TABLE) {
    put_table(wire, &what, input);
  } else {
    rdt_wire_put_u32(wire, (uint32_t)value(peer, &what, input));
    rdt_wire_put_u32(wire, (uint32_t)value(1, &what, input));
  }
}

static void send_message(fuzz_input *input) {
  uint8_t kind_byte = fuzz_u8(input), bytes[RDT_WIRE_MESSAGE_SIZE];
  uint32_t kind = RDT_GROUP_JOIN + kind_byte % 8, peer = fuzz_u8(input) % PEERS;
  size_t size;
  if (kind_byte & 128) {
    const uint8_t *raw = fuzz_chunk(input, &size);
    if (size > sizeof(bytes)) size = sizeof(bytes);
    memcpy(bytes, raw, size);
  } else {
    rdt_wire wire;
    rdt_wire_begin(&wire, (rdt_message_type)0, 0);
    put_fields(&wire, kind, peer, input);
    if (rdt_wire_unload(&wire, bytes, sizeof(bytes), &size) != RDT_OK) return;
  }
  void *copy = fuzz_copy(bytes, size);
  rdt_groups_take(here.channels[peer], kind, copy, size);
  free(copy);
}

/* ---- meeting -------------------------------------------------------------------------------------------- */

static void check(const rdt_group *group) {
  uint32_t hosts = 0;
  if (group->id == 0) return;
  for (int i = 0; i < 2; i++) {
    FUZZ_EXPECT(isfinite(group->costs.latency_ns[i]) && group->costs.latency_ns[i] >= 0);
    FUZZ_EXPECT(isfinite(group->costs.byte_ns[i]) && group->costs.byte_ns[i] >= 0);
  }
  FUZZ_EXPECT(isfinite(group->costs.reduce_byte_ns) && group->costs.reduce_byte_ns >= 0);
  FUZZ_EXPECT(group->eager <= 16384 && group->chunk <= 1u << 30);
  for (uint32_t i = 0; i < group->size; i++) {
    FUZZ_EXPECT(group->hosts[i] <= hosts);
    if (group->hosts[i] == hosts) hosts++;
  }
  for (int kind = RDT_ALL_REDUCE; kind < RDT_BARRIER; kind++) {
    rdt_algorithm chosen;
    FUZZ_EXPECT(rdt_group_choose(group, (rdt_collective_kind)kind, 1000, &chosen) == RDT_OK);
    FUZZ_EXPECT(chosen > RDT_ALGORITHM_AUTO && chosen < RDT_ALGORITHM_COUNT);
  }
}

static void reset(rdt_group *group) {
  rdt_groups *groups = group->groups;
  pthread_mutex_lock(&groups->lock);
  rdt_group_join_requests_expire(groups, INT64_MAX);
  for (uint32_t i = 0; i < group->size; i++) {
    rdt_channel_unref(group->links[i].channel);
    memset(&group->links[i], 0, sizeof(group->links[i]));
  }
  group->id = 0;
  group->eager = 16384;
  group->chunk = 0;
  group->reads = false;
  memset(&group->costs, 0, sizeof(group->costs));
  pthread_mutex_unlock(&groups->lock);
}

/* At rank 0, members that have all come are not measured: their channels are being closed. */
static void forbid_sending(bool forbidden) {
  for (uint32_t peer = 0; peer < PEERS; peer++)
    atomic_store(&here.channels[peer]->close_requested, forbidden);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input input = {data, size};
  start();
  rdt_group *group = fuzz_u8(&input) & 1 ? root : other;
  reset(group);
  for (int i = 0; i < STEPS && input.left > 0; i++) send_message(&input);
  forbid_sending(group == root);
  const rdt_expected any = {0};
  if (rdt_group_meet(group, STAGE_ROOT, any, rdt_now_ms() - 1) == RDT_OK)
    FUZZ_EXPECT(group == other);
  forbid_sending(false);
  check(group);
  stage_drain(&here);
  reset(group);
  return 0;
}

/* ---- seeds ------------------------------------------------------------------------------------------------ */

static void put(fuzz_output *out, uint32_t kind, uint32_t peer, uint32_t first, uint32_t last) {
  fuzz_put_number(out, kind - RDT_GROUP_JOIN, 1);
  fuzz_put_number(out, peer, 1);
  fuzz_put_number(out, 0, 3);
  if (kind != RDT_GROUP_TABLE) return;
  fuzz_put_number(out, first, 1);
  fuzz_put_number(out, last, 1);
}

size_t fuzz_seed(unsigned number, uint8_t *seed, size_t capacity) {
  fuzz_output out = {seed, 0, capacity};
  if (number > 3) return 0;
  fuzz_put_number(&out, number == 0, 1);
  if (number == 0) {
    put(&out, RDT_GROUP_JOIN, 1, 0, 0);
    put(&out, RDT_GROUP_JOIN, 1, 0, 0); /* again */
    put(&out, RDT_GROUP_JOIN, 2, 0, 0);
  } else if (number == 1) {
    put(&out, RDT_GROUP_TABLE, 0, 0, SIZE);
    put(&out, RDT_GROUP_LINK, 2, 0, 0);
    put(&out, RDT_GROUP_GO, 0, 0, 0);
  } else if (number == 2) { /* in parts */
    put(&out, RDT_GROUP_TABLE, 0, 0, 1);
    put(&out, RDT_GROUP_TABLE, 0, 1, SIZE);
    put(&out, RDT_GROUP_LINK, 2, 0, 0);
    put(&out, RDT_GROUP_READY, 2, 0, 0);
    put(&out, RDT_GROUP_PING, 2, 0, 0);
    put(&out, RDT_GROUP_PONG, 2, 0, 0);
  } else {
    put(&out, RDT_GROUP_REFUSE, 0, 0, 0);
  }
  return out.size;
}
