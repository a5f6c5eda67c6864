// SPDX-License-Identifier: Apache-2.0
//
// What Python reads of the group of this process, without TensorFlow.
#ifndef RDMATENSOR_TENSORFLOW_OPS_STATISTICS_H_
#define RDMATENSOR_TENSORFLOW_OPS_STATISTICS_H_

#include <cstddef>
#include <memory>

namespace rdmatensor {

class GroupState;

// Shows the numbers of this group from now on, if no other is shown that lives: groups of a part come later.
void ShowStatisticsOf(const std::shared_ptr<GroupState>& group);

}  // namespace rdmatensor

extern "C" {
// Writes GroupState::Statistics() of the group that is shown if it fits into `size` bytes, and returns the bytes it
// needs; 0 if there is no group. From any thread.
__attribute__((visibility("default"))) size_t rdt_tf_training_json(char* out, size_t size);
}

#endif  // RDMATENSOR_TENSORFLOW_OPS_STATISTICS_H_
