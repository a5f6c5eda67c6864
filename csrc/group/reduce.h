/* SPDX-License-Identifier: Apache-2.0
 *
 * Element-wise reductions, vectorised for the processor at hand.
 */
#ifndef RDT_GROUP_REDUCE_H
#define RDT_GROUP_REDUCE_H

#include <stddef.h>

#include "rdmatensor.h"

/* From so many bytes on, what a group computes or copies goes past the cache (core/copy.h): members share it. */
#define RDT_GROUP_STREAMED ((size_t)4 << 20)

/* to[i] = left[i] op right[i] for `count` elements. `to` may be `left` or `right`; otherwise none overlap.
 * Any alignment. Integers wrap; float16 and bfloat16 are computed in float and rounded to nearest even
 * at the end of each call. A NaN result is always the same quiet NaN, and -0 is less than +0: swapping
 * left and right never changes a bit. Arguments were checked by rdt_reduce_check. */
void rdt_reduce(rdt_dtype dtype, rdt_reduction reduction, void *to, const void *left,
                const void *right, size_t count);
/* RDT_ERR_INVALID if there is no such dtype or reduction. */
rdt_status rdt_reduce_check(rdt_dtype dtype, rdt_reduction reduction);

#endif
