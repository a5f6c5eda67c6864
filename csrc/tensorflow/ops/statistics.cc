// SPDX-License-Identifier: Apache-2.0
#include "ops/statistics.h"

#include <cstring>
#include <mutex>
#include <string>

#include "ops/group_state.h"

namespace rdmatensor {
namespace {

std::mutex mutex;
std::weak_ptr<GroupState>& Shown() {
  static auto* const shown =
      new std::weak_ptr<GroupState>;  // threads may ask while the process ends
  return *shown;
}

}  // namespace

void ShowStatisticsOf(const std::shared_ptr<GroupState>& group) {
  std::lock_guard<std::mutex> lock(mutex);
  // One that was left may live on for a while, such as in an operation that failed.
  const std::shared_ptr<GroupState> shown = Shown().lock();
  if (shown == nullptr || shown->Left()) Shown() = group;
}

}  // namespace rdmatensor

size_t rdt_tf_training_json(char* out, size_t size) {
  std::shared_ptr<rdmatensor::GroupState> group;
  {
    std::lock_guard<std::mutex> lock(rdmatensor::mutex);
    group = rdmatensor::Shown().lock();
  }
  if (group == nullptr) return 0;
  const std::string json = group->Statistics();
  if (out != nullptr && json.size() < size) std::memcpy(out, json.c_str(), json.size() + 1);
  return json.size() + 1;
}
