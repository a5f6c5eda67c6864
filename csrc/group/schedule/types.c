/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and sizes of the public header's enumerators.
 */
#include "rdmatensor.h"

const char *rdt_algorithm_name(rdt_algorithm algorithm) {
  static const char *const names[RDT_ALGORITHM_COUNT] = {
      "auto", "flat", "halving", "ring", "direct", "hierarchical", "trees"};
  return (unsigned)algorithm < RDT_ALGORITHM_COUNT ? names[algorithm] : "";
}

size_t rdt_dtype_size(rdt_dtype dtype) {
  static const unsigned char sizes[] = {[RDT_FLOAT32] = 4,  [RDT_FLOAT64] = 8, [RDT_FLOAT16] = 2,
                                        [RDT_BFLOAT16] = 2, [RDT_INT8] = 1,    [RDT_INT16] = 2,
                                        [RDT_INT32] = 4,    [RDT_INT64] = 8,   [RDT_UINT8] = 1,
                                        [RDT_UINT16] = 2,   [RDT_UINT32] = 4,  [RDT_UINT64] = 8};
  return (unsigned)dtype < sizeof sizes ? sizes[dtype] : 0;
}
