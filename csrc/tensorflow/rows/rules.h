// SPDX-License-Identifier: Apache-2.0
//
// What happens to one row, without TensorFlow. The results have the same bits as those of TensorFlow's kernels on
// x86-64: the same operations, in the same order.
#ifndef RDMATENSOR_TENSORFLOW_ROWS_RULES_H_
#define RDMATENSOR_TENSORFLOW_ROWS_RULES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace rdmatensor {

void AddToRow(float* row, const float* values, int64_t width);
void SubtractFromRow(float* row, const float* values, int64_t width);

// The most slots, and the most numbers, that a rule has.
inline constexpr int kMostSlots = 2, kMostNumbers = 5;

// How an optimizer's operation changes a row and its slots. Its inputs are the variable, the slots, and others.
struct UpdateRule {
  // `scratch` has room for a row.
  using Change = void (*)(const float* numbers, bool flag, int64_t width, const float* gradient,
                          float* row, float* const* slots, float* scratch);
  const char* operation;
  int slots;
  int gradient;              // the input; the next one has the ids
  std::vector<int> numbers;  // the inputs
  const char* flag;          // the attribute; nullptr: none
  Change change;
  bool (*fits)(const float* numbers, bool flag) = nullptr;  // the cases that it does; nullptr: all
};

const std::vector<UpdateRule>& UpdateRules();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_ROWS_RULES_H_
