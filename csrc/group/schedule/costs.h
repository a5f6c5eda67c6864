/* SPDX-License-Identifier: Apache-2.0
 *
 * What the steps of a group's operations cost, and which algorithm is the cheapest. These
 * functions are pure: every member has the same numbers, and makes the same choice.
 */
#ifndef RDT_GROUP_COSTS_H
#define RDT_GROUP_COSTS_H

#include <stdint.h>

#include "rdmatensor.h"

typedef enum {
  RDT_PAIR_LOCAL = 0,
  RDT_PAIR_REMOTE = 1
} rdt_group_pair; /* inside a host, between hosts */

typedef struct rdt_group_costs {
  double latency_ns[2]; /* of a small message, by rdt_group_pair; 0 if there is no such pair */
  double byte_ns[2];    /* of each byte of a large one */
  double reduce_byte_ns;
} rdt_group_costs;

#define RDT_COSTS_MEMBERS 1024u

/* Returns the expected nanoseconds of an operation of `bytes` (of input) over `size`
 * (1..RDT_COSTS_MEMBERS) members on `hosts` (as in rdt_schedule_request, numbered 0, 1, ... in
 * the order in which they first appear). Returns a very large number if the algorithm does the
 * same as another one for that kind. Use it to compare algorithms: it is an alpha-beta-gamma
 * model (Thakur et al.). */
double rdt_group_costs_predict(const rdt_group_costs *costs, rdt_collective_kind kind,
                               rdt_algorithm algorithm, uint64_t bytes, uint32_t size,
                               const uint32_t *hosts);
/* Returns the cheapest algorithm; RDT_ALGORITHM_FLAT for kinds that have no other. */
rdt_algorithm rdt_group_costs_choose(const rdt_group_costs *costs, rdt_collective_kind kind,
                                     uint64_t bytes, uint32_t size, const uint32_t *hosts);

#endif
