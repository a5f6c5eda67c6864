/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures what messages, transfers and reductions cost here. Rank 0 does so when the group meets.
 */
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "core/post/channel.h"
#include "core/post/waiting.h"
#include "group/meet/meet.h"
#include "group/schedule/reduce.h"

#define PINGS 64
#define READS 8
#define BUDGET_NS 5000000 /* time for each measurement, which has at least one lap */
/* The same for pings. Where other processes keep the cores busy, most pings take as long as a turn of theirs, and
 * the group would choose its algorithms for such a latency as long as it lives. */
#define PINGS_BUDGET_NS 50000000
#define PING_MS 1000

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* The shortest lap counts: longer ones were interrupted. */
typedef struct {
  double start, began, best;
} stopwatch;

static void begin(stopwatch *watch) { watch->began = watch->best = 0, watch->start = now_ns(); }
static void lap_begin(stopwatch *watch) { watch->began = now_ns(); }

/* Returns true while there is time for another lap. */
static bool lap_end(stopwatch *watch, double budget_ns) {
  double now = now_ns(), took = now - watch->began;
  if (watch->best == 0 || took < watch->best) watch->best = took;
  return now - watch->start < budget_ns;
}

static rdt_status ping(rdt_group *group, rdt_channel *channel) {
  rdt_wire wire;
  unsigned before = atomic_load(&group->groups->pongs);
  rdt_deadline deadline = rdt_deadline_after(PING_MS);
  rdt_wire_begin(&wire, (rdt_message_type)0, 0);
  rdt_wire_put_u64(&wire, 0);
  rdt_status status = rdt_group_meeting_send(channel, RDT_GROUP_PING, &wire);
  while (status == RDT_OK && atomic_load(&group->groups->pongs) == before) {
    rdt_channel_poller_poll(channel);
    if (atomic_load(&channel->down)) status = rdt_channel_fail_down(channel);
    if (rdt_deadline_left(deadline) == 0)
      status = rdt_fail(RDT_ERR_DEADLINE, "%s does not answer", channel->peer_name);
  }
  return status;
}

static rdt_status measure_latency(rdt_group *group, rdt_channel *channel, double *latency_ns) {
  stopwatch watch;
  rdt_status status = RDT_OK;
  bool more = true;
  begin(&watch);
  rdt_channel_poller_begin(channel);
  for (int i = 0; i < PINGS && more && status == RDT_OK; i++) {
    lap_begin(&watch);
    status = ping(group, channel);
    more = lap_end(&watch, PINGS_BUDGET_NS);
  }
  rdt_channel_poller_end(channel);
  *latency_ns = watch.best / 2;
  return status;
}

static rdt_status read_once(rdt_remote_region *remote, uint64_t offset, char *to,
                            rdt_deadline deadline) {
  rdt_op op = {.kind = RDT_OP_READ,
               .local = to,
               .size = RDT_MEASURE_BYTES,
               .remote = remote,
               .remote_offset = offset};
  rdt_transfer *transfer;
  rdt_status status = rdt_channel_submit(remote->channel, &op, 1, &transfer);
  if (status != RDT_IN_PROGRESS) return status;
  status = rdt_transfer_wait(transfer, rdt_deadline_left(deadline));
  rdt_transfer_free(transfer);
  return status;
}

static rdt_status measure_bytes(rdt_channel *channel, const rdt_group_measure_place *place,
                                char *to, rdt_deadline deadline, double *byte_ns) {
  rdt_remote_region *remote;
  stopwatch watch;
  bool more = true;
  rdt_status status =
      rdt_remote_region_open(channel, place->key, rdt_deadline_left(deadline), &remote);
  if (status != RDT_OK) return status;
  begin(&watch);
  for (int i = 0; i < READS && more && status == RDT_OK; i++) {
    lap_begin(&watch);
    status = read_once(remote, place->offset, to, deadline);
    more = lap_end(&watch, BUDGET_NS);
  }
  rdt_remote_region_unref(remote);
  *byte_ns = watch.best / RDT_MEASURE_BYTES;
  return status;
}

static double measure_reduction(char *memory) {
  size_t half = RDT_MEASURE_BYTES / 2;
  stopwatch watch;
  bool more = true;
  memset(memory, 0, RDT_MEASURE_BYTES);
  begin(&watch);
  for (int i = 0; i < READS && more; i++) {
    lap_begin(&watch);
    rdt_group_reduce(RDT_FLOAT32, RDT_SUM, memory, memory, memory + half, half / sizeof(float));
    more = lap_end(&watch, BUDGET_NS);
  }
  return watch.best / (double)half;
}

/* Returns the first member inside, or outside, this host; 0 if there is none. */
static uint32_t example(const rdt_group *group, rdt_group_pair pair) {
  for (uint32_t i = 1; i < group->size; i++)
    if ((group->hosts[i] != group->hosts[0]) == (pair == RDT_PAIR_REMOTE)) return i;
  return 0;
}

rdt_status rdt_group_measure(rdt_group *group, const rdt_group_measure_place *places,
                             rdt_deadline deadline) {
  rdt_group_block *block;
  rdt_status status = rdt_group_scratch_take(group->groups, RDT_MEASURE_BYTES, &block);
  if (status != RDT_OK) return status;
  group->costs.reduce_byte_ns = measure_reduction(block->address);
  for (int pair = 0; pair < 2 && status == RDT_OK; pair++) {
    uint32_t member = example(group, (rdt_group_pair)pair);
    if (member == 0) continue;
    rdt_channel *channel = group->links[member].channel;
    status = measure_latency(group, channel, &group->costs.latency_ns[pair]);
    if (status == RDT_OK)
      status = measure_bytes(channel, &places[member], block->address, deadline,
                             &group->costs.byte_ns[pair]);
  }
  rdt_group_scratch_give(group->groups, block);
  return status;
}
