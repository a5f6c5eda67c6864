// SPDX-License-Identifier: Apache-2.0
//
// Counts operations on rows of variables, by whose kernel did them.
#ifndef RDMATENSOR_TENSORFLOW_STATS_ROW_STATS_H_
#define RDMATENSOR_TENSORFLOW_STATS_ROW_STATS_H_

#include <cstdint>
#include <string>

namespace rdmatensor {

// All functions may be called from any thread.

// One operation that read or changed `rows` rows; negative if TensorFlow's kernel did it after all.
void CountRows(int64_t rows);
std::string RowsAsJson();
void ResetRows();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_STATS_ROW_STATS_H_
