// SPDX-License-Identifier: Apache-2.0
//
// The events of receiving over a channel, for the room that knows whose tensors these are.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_RECEIVE_EVENTS_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_RECEIVE_EVENTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rdmatensor {

// Events of receiving over a channel, for the room that knows whose tensors these are. Called from any thread.
class ReceiveEvents {
 public:
  // A tensor of this key came outside the plan.
  virtual void OnDynamicTensor(absl::string_view key, const tensorflow::TensorShape& shape) = 0;
  // The tensors that the step still expects over the channel cannot come.
  virtual void OnStepFailed(int64_t step_id, const absl::Status& status) = 0;
  // A tensor that had to be fetched is here, and what had to wait for it.
  virtual void OnFetched() = 0;
  // The sender's memory cannot be reached; the channel is about to be closed.
  virtual void OnUnreachable(const std::string& why) = 0;

 protected:
  ~ReceiveEvents() = default;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_RECEIVE_EVENTS_H_
