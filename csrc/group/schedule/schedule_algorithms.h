/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that list an algorithm's steps.
 */
#ifndef RDT_GROUP_SCHEDULE_ALGORITHMS_H
#define RDT_GROUP_SCHEDULE_ALGORITHMS_H

#include "group/schedule/schedule_build.h"

/* Lists one lane of an operation. For ALL_REDUCE and BROADCAST the range is the lane's share of
 * the data; for the other kinds it is the lane's share of every member's part. */
typedef void (*rdt_schedule_lane_fn)(rdt_schedule_builder *b, rdt_schedule_range range);

void rdt_schedule_flat_all_reduce(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_flat_reduce_scatter(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_flat_all_gather(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_flat_broadcast(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_flat_all_to_all(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_flat_gather(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_flat_scatter(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_flat_reduce(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_direct_reduce(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_direct_all_reduce(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_direct_broadcast(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_halving_all_reduce(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_halving_all_gather(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_halving_broadcast(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_ring_all_reduce(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_ring_reduce_scatter(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_ring_all_gather(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_ring_broadcast(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_ring_all_to_all(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_hierarchical_all_reduce(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_hierarchical_broadcast(rdt_schedule_builder *b, rdt_schedule_range range);
/* The range is all of the data, or of a part; the lane tells the tree. */
void rdt_schedule_trees_all_reduce(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_trees_reduce_scatter(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_trees_all_gather(rdt_schedule_builder *b, rdt_schedule_range range);
void rdt_schedule_trees_broadcast(rdt_schedule_builder *b, rdt_schedule_range range);
/* Returns the lanes of an operation for which there are trees. */
uint32_t rdt_schedule_trees_lanes(const rdt_schedule_request *request);

#endif
