/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that list an algorithm's steps.
 */
#ifndef RDT_GROUP_SCHEDULE_ALGORITHMS_H
#define RDT_GROUP_SCHEDULE_ALGORITHMS_H

#include "group/schedule_build.h"

/* Lists one lane of an operation. For ALL_REDUCE and BROADCAST the range is the lane's share of
 * the data; for the other kinds it is the lane's share of every member's part. */
typedef void (*schedule_lane_fn)(schedule_builder *b, schedule_range range);

void schedule_flat_all_reduce(schedule_builder *b, schedule_range range);
void schedule_flat_reduce_scatter(schedule_builder *b, schedule_range range);
void schedule_flat_all_gather(schedule_builder *b, schedule_range range);
void schedule_flat_broadcast(schedule_builder *b, schedule_range range);
void schedule_flat_all_to_all(schedule_builder *b, schedule_range range);
void schedule_direct_all_reduce(schedule_builder *b, schedule_range range);
void schedule_direct_broadcast(schedule_builder *b, schedule_range range);
void schedule_halving_all_reduce(schedule_builder *b, schedule_range range);
void schedule_halving_all_gather(schedule_builder *b, schedule_range range);
void schedule_halving_broadcast(schedule_builder *b, schedule_range range);
void schedule_ring_all_reduce(schedule_builder *b, schedule_range range);
void schedule_ring_reduce_scatter(schedule_builder *b, schedule_range range);
void schedule_ring_all_gather(schedule_builder *b, schedule_range range);
void schedule_ring_broadcast(schedule_builder *b, schedule_range range);
void schedule_ring_all_to_all(schedule_builder *b, schedule_range range);
void schedule_hierarchical_all_reduce(schedule_builder *b, schedule_range range);
void schedule_hierarchical_broadcast(schedule_builder *b, schedule_range range);

#endif
