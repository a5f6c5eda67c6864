// SPDX-License-Identifier: Apache-2.0
//
// A collective operation that a kernel has started, on its way to the kernel that waits for it.
#ifndef RDMATENSOR_TENSORFLOW_OPS_STARTED_H_
#define RDMATENSOR_TENSORFLOW_OPS_STARTED_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "rdmatensor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace rdmatensor {

class GroupState;

// Thread-safe. Made by std::make_shared.
class Started {
 public:
  explicit Started(std::shared_ptr<GroupState> group, std::string name)
      : group_(std::move(group)), name_(std::move(name)) {}

  // Ends the operation with `status` and the core's words for it.
  void End(rdt_status status);
  // Runs `then` once the operation has ended, on this thread if it has.
  void Then(std::function<void()> then);
  // Ends it here and at the other members, unless it has ended.
  void Cancel();
  bool HasEnded();

  GroupState& group() const { return *group_; }
  // After the end.
  const absl::Status& status() const { return status_; }

  const std::string& name() const { return name_; }

  // What the operation works on. Written before it starts.
  uint64_t tag[2] = {0, 0};
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  std::shared_ptr<char> input, output;  // may be one
  uint64_t bytes = 0;                   // of the inputs
  // Of each result: where it lies in `output`, and its shape.
  std::vector<std::pair<uint64_t, tensorflow::TensorShape>> results;

  // When the kernel began and the operation started, GetCurrentTimeNanos. When it ended, and whom it waited for, are
  // known after the end.
  int64_t called = 0, begun = 0, ended = 0;
  rdt_collective_report report{};

 private:
  const std::shared_ptr<GroupState> group_;
  const std::string name_;
  std::mutex mutex_;
  bool ended_ = false;
  absl::Status status_;
  std::vector<std::function<void()>> then_;
};

// How it travels between kernels.
struct StartedVariant {
  std::shared_ptr<Started> started;

  static const char* kTypeName;
  std::string TypeName() const { return kTypeName; }
  void Encode(tensorflow::VariantTensorData* data) const { data->set_type_name(TypeName()); }
  // It has no meaning in another process.
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_OPS_STARTED_H_
