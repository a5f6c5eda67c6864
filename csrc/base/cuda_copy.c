/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies. The device copies straight between devices, and to and from host memory that is pinned; otherwise through
 * chunks, while the processor fills or empties others. The caller's memory is never under a copy that was given up,
 * unless it is a block of our own, which is kept.
 */
#include <string.h>

#include "base/cuda.h"
#include "base/cuda_driver.h"
#include "base/status.h"

/* Each part has DEADLINE_MS. */
#define STRAIGHT_PART ((uint64_t)256 << 20)

typedef struct copy {
  rdt_cuda_lane *lane;
  rdt_cuda_stream_handle on;
  char *to;
  const char *from;
  uint64_t size;
  bool to_device, runs; /* runs: a part of it was queued that is not known to have ended */
} copy;

static int begin_part(copy *self, const void *to, const void *from, uint64_t size, unsigned event) {
  int error = rdt_cuda.copy((uintptr_t)to, (uintptr_t)from, size, self->on);
  if (error != 0) return error;
  self->runs = true;
  return rdt_cuda.event_record(self->lane->events[event], self->on);
}

static int copy_straight(copy *self) {
  int error = 0;
  for (uint64_t done = 0, part; done < self->size && error == 0; done += part) {
    part = self->size - done < STRAIGHT_PART ? self->size - done : STRAIGHT_PART;
    error = begin_part(self, self->to + done, self->from + done, part, 0);
    if (error == 0) error = rdt_cuda_await(self->lane->events[0]);
    if (error == 0) self->runs = false;
  }
  return error;
}

static int copy_by_chunks(copy *self) {
  int error = rdt_cuda_lane_need_chunks(self->lane);
  const uint64_t parts = (self->size + RDT_CUDA_CHUNK - 1) / RDT_CUDA_CHUNK;
  for (uint64_t begun = 0, ended = 0; ended < parts && error == 0;) {
    const bool begins = begun < parts && begun - ended < RDT_CUDA_CHUNKS;
    const uint64_t part = begins ? begun++ : ended++, start = part * RDT_CUDA_CHUNK;
    const uint64_t left = self->size - start, size = left < RDT_CUDA_CHUNK ? left : RDT_CUDA_CHUNK;
    const unsigned number = (unsigned)(part % RDT_CUDA_CHUNKS);
    char *chunk = self->lane->chunks + (size_t)number * RDT_CUDA_CHUNK;
    if (begins && self->to_device) {
      memcpy(chunk, self->from + start, size);
      error = begin_part(self, self->to + start, chunk, size, number);
    } else if (begins) {
      error = begin_part(self, chunk, self->from + start, size, number);
    } else {
      error = rdt_cuda_await(self->lane->events[number]);
      if (error == 0 && !self->to_device) memcpy(self->to + start, chunk, size);
      if (error == 0) self->runs = begun > ended;
    }
  }
  return error;
}

/* Nothing is queued before the stream has got there, so a copy that comes too late for its caller does not come at all. */
static int copy_in_time(copy *self, bool between_devices) {
  int error = rdt_cuda_lane_await(self->lane, self->on);
  if (error != 0) return error;
  if (between_devices) return copy_straight(self);
  self->lane->host = rdt_cuda_pinned_block(self->to_device ? self->from : self->to, self->size,
                                           self->lane->ordinal);
  return self->lane->host ? copy_straight(self) : copy_by_chunks(self);
}

static rdt_status copy_on(rdt_cuda_user user, void *to, const void *from, uint64_t size) {
  const rdt_cuda_device *entered;
  rdt_status status = rdt_cuda_need();
  if (status != RDT_OK || size == 0) return status;
  const int target = rdt_cuda_device_at((uintptr_t)to),
            source = rdt_cuda_device_at((uintptr_t)from);
  const int ordinal = target >= 0 ? target : source;
  if (ordinal < 0)
    return rdt_fail(RDT_ERR_INVALID, "neither %p nor %p is memory of a CUDA device", to, from);
  status = rdt_cuda_enter(ordinal, &entered);
  if (status != RDT_OK) return status;
  copy self = {NULL, entered->streams[user], to, from, size, target >= 0, false};
  int error = rdt_cuda_lane_take(ordinal, &self.lane);
  if (error == 0) {
    self.lane->other = target >= 0 ? source : -1;
    error = copy_in_time(&self, target >= 0 && source >= 0);
    if (self.runs)
      rdt_cuda_lane_abandon(self.lane, self.on);
    else
      rdt_cuda_lane_give_back(self.lane);
  }
  rdt_cuda_leave();
  if (error == 0) return RDT_OK;
  return rdt_cuda_fail(error, "copy %llu bytes to or from CUDA device %d", (unsigned long long)size,
                       ordinal);
}

rdt_status rdt_cuda_copy(void *to, const void *from, uint64_t size) {
  return copy_on(RDT_CUDA_PROGRAM, to, from, size);
}

rdt_status rdt_cuda_copy_for_peer(void *to, const void *from, uint64_t size) {
  return copy_on(RDT_CUDA_PEERS, to, from, size);
}

rdt_status rdt_cuda_wait(const void *address, uint64_t waited) {
  const rdt_cuda_device *entered;
  rdt_cuda_lane *lane;
  rdt_status status = rdt_cuda_check(address, 1);
  const int ordinal = status == RDT_OK ? rdt_cuda_device_at((uintptr_t)address) : -1;
  if (status == RDT_OK) status = rdt_cuda_enter(ordinal, &entered);
  if (status != RDT_OK) return status;
  int error = rdt_cuda_lane_take(ordinal, &lane);
  if (error == 0) {
    error = rdt_cuda_lane_await(lane, (rdt_cuda_stream_handle)(uintptr_t)waited);
    rdt_cuda_lane_give_back(lane);
  }
  rdt_cuda_leave();
  return error == 0 ? RDT_OK : rdt_cuda_fail(error, "wait for a stream of CUDA device %d", ordinal);
}
