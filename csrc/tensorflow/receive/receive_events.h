// SPDX-License-Identifier: Apache-2.0
//
// Who is told what comes over a channel.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_RECEIVE_EVENTS_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_RECEIVE_EVENTS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rdmatensor {

class OfferedPlaces;
struct ServerContext;

// Learns the sizes of tensors that come outside the plan. Called from any thread.
class DynamicObserver {
 public:
  // A tensor of this key came over the channel of `places`.
  virtual void Observe(const ServerContext& server, absl::string_view key,
                       const tensorflow::TensorShape& shape,
                       const std::shared_ptr<OfferedPlaces>& places) = 0;

 protected:
  ~DynamicObserver() = default;
};

// What happens to the tensors of a channel, for its end, which knows whose they are. Called from any thread.
class ReceiveEvents {
 public:
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
