/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the schedule of an operation by the algorithm asked for.
 */
#ifndef RDT_GROUP_SCHEDULE_MAKE_H
#define RDT_GROUP_SCHEDULE_MAKE_H

#include "group/schedule/schedule.h"

/* Makes a schedule. The caller frees it with rdt_schedule_free. If the algorithm has no schedule
 * for a kind, the most similar one serves: REDUCE_SCATTER, ALL_GATHER and ALL_TO_ALL know FLAT
 * and RING (and ALL_GATHER HALVING), DIRECT is FLAT there, HIERARCHICAL a RING that goes from
 * host to host (FLAT for ALL_TO_ALL). HIERARCHICAL is DIRECT where there are not two levels, and
 * TREES is RING where there are no trees for the kind and the root.
 * Both ends of a message have the same round number, so members never wait for each other in a
 * circle. The caller has checked that ranks, root and the sizes of the buffers are in range.
 * RDT_ERR_NO_MEMORY; RDT_ERR_UNSUPPORTED: no such kind or algorithm. Sources: Thakur,
 * Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH (2005);
 * Patarasuk, Yuan, Bandwidth optimal all-reduce (2009); Bruck et al., Efficient algorithms for
 * all-to-all communications (1997). */
rdt_status rdt_schedule_make(const rdt_schedule_request *request, rdt_schedule **schedule);

#endif
