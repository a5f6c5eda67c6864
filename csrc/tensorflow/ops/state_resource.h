// SPDX-License-Identifier: Apache-2.0
//
// Makes the state that operations share, such as a group, a resource of TensorFlow.
#ifndef RDMATENSOR_TENSORFLOW_OPS_STATE_RESOURCE_H_
#define RDMATENSOR_TENSORFLOW_OPS_STATE_RESOURCE_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/resource_handle.h"

namespace rdmatensor {

// `State` has a Description() for people.
template <typename State>
struct StateResource : tensorflow::ResourceBase {
  explicit StateResource(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::string DebugString() const override { return state()->Description(); }
  std::shared_ptr<State> state() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return state_;
  }
  void Replace(std::shared_ptr<State> state) {
    std::lock_guard<std::mutex> lock(mutex_);
    state_.swap(state);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<State> state_;
};

// Makes the handle of `state` the kernel's only output. The state lives as long as handles.
template <typename State>
void SetHandle(tensorflow::OpKernelContext* context, std::shared_ptr<State> state) {
  tensorflow::Tensor handle(tensorflow::DT_RESOURCE, tensorflow::TensorShape());
  handle.scalar<tensorflow::ResourceHandle>()() = tensorflow::ResourceHandle::MakeRefCountingHandle(
      new StateResource<State>(std::move(state)), context->device()->name());
  context->set_output(0, handle);
}

// The state whose handle is the kernel's first input.
template <typename State>
absl::StatusOr<std::shared_ptr<State>> StateOf(tensorflow::OpKernelContext* context) {
  const auto& handle = context->input(0).scalar<tensorflow::ResourceHandle>()();
  auto found = handle.template GetResource<StateResource<State>>();
  if (!found.ok()) return found.status();
  return (*found)->state();
}

// Gives the handle that is the kernel's first input another state: functions that have been traced with it go on.
template <typename State>
absl::Status ReplaceState(tensorflow::OpKernelContext* context, std::shared_ptr<State> state) {
  const auto& handle = context->input(0).scalar<tensorflow::ResourceHandle>()();
  auto found = handle.template GetResource<StateResource<State>>();
  if (found.ok()) (*found)->Replace(std::move(state));
  return found.status();
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_OPS_STATE_RESOURCE_H_
