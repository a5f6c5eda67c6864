/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/fault/link.h"

#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/faults.h"

/* Shorter times add up until they are worth a sleep. */
#define SHORTEST_SLEEP_US 20

/* When what has passed has left the two directions, in microseconds. */
static _Atomic int64_t free_at[2];

void rdt_fault_pass_link(bool incoming, uint64_t bytes) {
  int64_t now = rdt_now_us(), latency = rdt_link_latency_us(), end;
  int64_t free = atomic_load(&free_at[incoming]), takes = (int64_t)rdt_link_us(bytes);
  do end = (now > free + latency ? now : free) + takes;
  while (!atomic_compare_exchange_weak(&free_at[incoming], &free, end));
  int64_t wait = end + latency - now;
  if (wait >= SHORTEST_SLEEP_US) usleep((useconds_t)wait);
}
