// SPDX-License-Identifier: Apache-2.0
//
// Which elements of a list of rows name the same row.
#ifndef RDMATENSOR_TENSORFLOW_OPS_ROW_GROUPS_H_
#define RDMATENSOR_TENSORFLOW_OPS_ROW_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rdmatensor {

class RowGroups {
 public:
  // Room for `count` elements, fewer than 2^30.
  explicit RowGroups(int64_t count);

  // Adds element `element`, which names `row` and has the next number. Returns the number of its group; groups are
  // numbered by their first elements.
  int32_t Add(int32_t element, int32_t row);

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  int32_t row(int64_t group) const { return rows_[static_cast<size_t>(group)]; }
  // The elements of a group in their order: Next(element) after First(group), until it is negative.
  int32_t First(int64_t group) const { return first_[static_cast<size_t>(group)]; }
  int32_t Next(int32_t element) const { return next_[static_cast<size_t>(element)]; }

 private:
  int shift_;
  std::vector<int32_t> cells_;  // of a hash table: 1 + the number of a group, or 0
  std::vector<int32_t> rows_, first_, last_, next_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_OPS_ROW_GROUPS_H_
