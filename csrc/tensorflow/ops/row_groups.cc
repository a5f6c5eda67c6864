// SPDX-License-Identifier: Apache-2.0
#include "ops/row_groups.h"

namespace rdmatensor {

RowGroups::RowGroups(int64_t count) : shift_(28), next_(static_cast<size_t>(count), -1) {
  // At least half of the cells stay empty.
  while (shift_ > 1 && (int64_t{1} << (32 - shift_)) < 2 * count) --shift_;
  cells_.resize(size_t{1} << (32 - shift_));
  for (auto* each : {&rows_, &first_, &last_}) each->reserve(static_cast<size_t>(count));
}

int32_t RowGroups::Add(int32_t element, int32_t row) {
  // Fibonacci hashing: neighbours go apart, and rows that are multiples of something do not collide.
  size_t cell = (static_cast<uint32_t>(row) * 2654435769U) >> shift_;
  while (cells_[cell] != 0 && rows_[static_cast<size_t>(cells_[cell] - 1)] != row) {
    cell = (cell + 1) & (cells_.size() - 1);
  }
  if (cells_[cell] == 0) {
    rows_.push_back(row);
    first_.push_back(element);
    last_.push_back(element);
    cells_[cell] = static_cast<int32_t>(rows_.size());
    return cells_[cell] - 1;
  }
  const int32_t group = cells_[cell] - 1;
  int32_t& last = last_[static_cast<size_t>(group)];
  next_[static_cast<size_t>(last)] = element;
  last = element;
  return group;
}

}  // namespace rdmatensor
