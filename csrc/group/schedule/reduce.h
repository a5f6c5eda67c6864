/* SPDX-License-Identifier: Apache-2.0
 *
 * Element-wise reductions, vectorised for the processor at hand.
 */
#ifndef RDT_GROUP_REDUCE_H
#define RDT_GROUP_REDUCE_H

#include <stddef.h>

#include "rdmatensor.h"

/* Reductions and copies of this many bytes or more bypass the cache (base/copy.h), which members
 * share. */
#define RDT_GROUP_STREAMED ((size_t)4 << 20)

/* Computes to[i] = left[i] op right[i] for `count` elements with any alignment. `to` may be
 * `left` or `right`; otherwise none may overlap. Integers wrap; float16 and bfloat16 are
 * computed in float and rounded to nearest even at the end of each call. A NaN result is always
 * the same quiet NaN, and -0 is less than +0: swapping left and right never changes a bit. Check
 * the arguments with rdt_group_reduce_check first. */
void rdt_group_reduce(rdt_dtype dtype, rdt_reduction reduction, void *to, const void *left,
                      const void *right, size_t count);
/* Computes to[i] = (left[i] + right[i]) * factor in the same way, for floating point only. */
void rdt_group_reduce_scaled(rdt_dtype dtype, void *to, const void *left, const void *right,
                             size_t count, double factor);
/* Returns RDT_ERR_INVALID if there is no such dtype or reduction. */
rdt_status rdt_group_reduce_check(rdt_dtype dtype, rdt_reduction reduction);

#endif
