/* SPDX-License-Identifier: Apache-2.0
 *
 * What messages, transfers and reductions cost here, found out by rank 0 when the group meets.
 */
#include <stdlib.h>

#include "core/group/meeting.h"
#include "core/group/reduce.h"
#include "core/status.h"

#define BATCHES 4
#define PINGS 8      /* of a batch; the best batch counts */
#define SLOW_US 5000 /* a transfer that takes longer is not repeated */
#define PING_MS 1000

static rdt_status ping(rdt_group *group, rdt_channel *channel) {
  rdt_wire wire;
  unsigned before = atomic_load(&group->groups->pongs);
  rdt_deadline deadline = rdt_deadline_after(PING_MS);
  rdt_wire_begin(&wire, (rdt_message_type)0, 0);
  rdt_wire_put_u64(&wire, 0);
  rdt_status status = rdt_meeting_send(channel, RDT_GROUP_PING, &wire);
  while (status == RDT_OK && atomic_load(&group->groups->pongs) == before) {
    rdt_channel_poll(channel);
    if (atomic_load(&channel->down)) status = rdt_channel_fail_down(channel);
    if (rdt_deadline_left(deadline) == 0)
      status = rdt_fail(RDT_ERR_DEADLINE, "%s does not answer", channel->peer_name);
  }
  return status;
}

/* Half of the best round trip. */
static rdt_status measure_latency(rdt_group *group, rdt_channel *channel, double *latency_ns) {
  rdt_status status = RDT_OK;
  *latency_ns = 0;
  rdt_channel_begin_polling(channel);
  for (int batch = 0; batch < BATCHES && status == RDT_OK; batch++) {
    int64_t start = rdt_now_us();
    for (int i = 0; i < PINGS && status == RDT_OK; i++) status = ping(group, channel);
    double each = (double)(rdt_now_us() - start) * 1000 / (2 * PINGS);
    if (batch == 0 || each < *latency_ns) *latency_ns = each;
  }
  rdt_channel_end_polling(channel);
  return status;
}

static rdt_status read_once(rdt_remote_region *remote, char *to, rdt_deadline deadline,
                            int64_t *took_us) {
  rdt_op op = {.kind = RDT_OP_READ, .local = to, .size = RDT_MEASURE_BYTES, .remote = remote};
  rdt_transfer *transfer;
  int64_t start = rdt_now_us();
  rdt_status status = rdt_channel_submit(remote->channel, &op, 1, &transfer);
  if (status == RDT_IN_PROGRESS) {
    status = rdt_transfer_wait(transfer, rdt_deadline_left(deadline));
    rdt_transfer_free(transfer);
  }
  *took_us = rdt_now_us() - start;
  return status;
}

static rdt_status measure_bytes(rdt_channel *channel, uint64_t key, char *to, rdt_deadline deadline,
                                double *byte_ns) {
  rdt_remote_region *remote;
  int64_t took = 0, best = INT64_MAX;
  rdt_status status = rdt_remote_region_open(channel, key, rdt_deadline_left(deadline), &remote);
  if (status != RDT_OK) return status;
  for (int i = 0; i < 3 && status == RDT_OK; i++) {
    status = read_once(remote, to, deadline, &took);
    if (took < best) best = took;
    if (took > SLOW_US) break;
  }
  rdt_remote_region_unref(remote);
  *byte_ns = (double)(best > 0 ? best : 1) * 1000 / RDT_MEASURE_BYTES;
  return status;
}

static double measure_reduction(char *memory) {
  uint32_t *numbers = (uint32_t *)memory;
  size_t count = RDT_MEASURE_BYTES / 2 / sizeof(*numbers);
  int64_t best = INT64_MAX;
  for (size_t i = 0; i < 2 * count; i++) numbers[i] = 0; /* as floats too, and touched */
  for (int i = 0; i < 3; i++) {
    int64_t start = rdt_now_us();
    rdt_reduce(RDT_FLOAT32, RDT_SUM, memory, memory, memory + RDT_MEASURE_BYTES / 2, count);
    int64_t took = rdt_now_us() - start;
    if (took < best) best = took;
  }
  return (double)(best > 0 ? best : 1) * 1000 / ((double)RDT_MEASURE_BYTES / 2);
}

/* The first member inside, or outside of, this host; 0 if there is none. */
static uint32_t example(const rdt_group *group, rdt_pair pair) {
  for (uint32_t i = 1; i < group->size; i++)
    if ((group->hosts[i] != group->hosts[0]) == (pair == RDT_PAIR_REMOTE)) return i;
  return 0;
}

rdt_status rdt_group_measure(rdt_group *group, const uint64_t *keys, rdt_deadline deadline) {
  rdt_block *block = rdt_scratch_take(group->groups, RDT_MEASURE_BYTES);
  if (!block) return RDT_ERR_NO_MEMORY;
  rdt_status status = RDT_OK;
  group->costs.reduce_byte_ns = measure_reduction(block->address);
  for (int pair = 0; pair < 2 && status == RDT_OK; pair++) {
    uint32_t member = example(group, (rdt_pair)pair);
    if (member == 0) continue;
    rdt_channel *channel = group->links[member].channel;
    status = measure_latency(group, channel, &group->costs.latency_ns[pair]);
    if (status == RDT_OK)
      status = measure_bytes(channel, keys[member], block->address, deadline,
                             &group->costs.byte_ns[pair]);
  }
  rdt_scratch_give(group->groups, block);
  return status;
}
