// SPDX-License-Identifier: Apache-2.0
#include "collective/host_tensors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "memory/arena.h"
#include "receive/device_copy.h"
#include "tensorflow/core/framework/device.h"

namespace rdmatensor {

using tensorflow::Tensor;

HostTensors::HostTensors(tensorflow::OpKernelContext* context,
                         const tensorflow::CollectiveParams& params)
    : context_(context),
      params_(params),
      device_(static_cast<tensorflow::Device*>(context->device())),
      output_(context->mutable_output(0)) {
  if (params.instance.type != tensorflow::BROADCAST_COLLECTIVE || params.is_source) {
    input_ = &context->input(0);
  }
  if (!context->output_alloc_attr(0).on_host()) {
    copying_ = CopyingContext(*device_, context->op_device_context());
  }
}

// Whether the group may write its results where it reads the input.
bool HostTensors::SharesOutput() const {
  const tensorflow::CollectiveType type = params_.instance.type;
  return type == tensorflow::REDUCTION_COLLECTIVE || type == tensorflow::BROADCAST_COLLECTIVE;
}

absl::Status HostTensors::Failed(const char* what, const absl::Status& status) const {
  return absl::Status(status.code(),
                      absl::StrCat("rdmatensor: ", device_->name(), " did not copy ", what, " of ",
                                   params_.name, ": ", status.message()));
}

absl::Status HostTensors::TakeInput() {
  if (copying_ == nullptr) return absl::OkStatus();
  const Tensor* const from = input_;
  output_copy_ = Tensor(output_->dtype(), output_->shape());
  if (from != nullptr) {
    input_copy_ = SharesOutput() ? output_copy_ : Tensor(from->dtype(), from->shape());
  }
  if (!output_copy_.IsInitialized() || (from != nullptr && !input_copy_.IsInitialized())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rdmatensor: the host has no memory for copies of ", output_->TotalBytes(),
                     " bytes from ", device_->name()));
  }
  output_ = &output_copy_;
  Arena::Get()->PinForDevices();
  if (from == nullptr) return absl::OkStatus();
  input_ = &input_copy_;
  if (from->TotalBytes() == 0) return absl::OkStatus();
  const absl::Status status =
      copying_->CopyDeviceTensorToCPUSync(from, params_.name, device_, &input_copy_);
  return status.ok() ? status : Failed("the input", status);
}

absl::Status HostTensors::GiveOutput() {
  if (copying_ == nullptr || output_copy_.TotalBytes() == 0) return absl::OkStatus();
  const absl::Status status =
      copying_->CopyCPUTensorToDeviceSync(&output_copy_, device_, context_->mutable_output(0));
  return status.ok() ? status : Failed("the output", status);
}

absl::Status HostTensors::MoveToDevice(Tensor* tensor) const {
  if (copying_ == nullptr) return absl::OkStatus();
  Tensor copy(device_->GetAllocator(context_->output_alloc_attr(0)), tensor->dtype(),
              tensor->shape());
  if (!copy.IsInitialized()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rdmatensor: ", device_->name(), " has no memory for the size of a group"));
  }
  const absl::Status status = copying_->CopyCPUTensorToDeviceSync(tensor, device_, &copy);
  *tensor = std::move(copy);
  return status.ok() ? status : Failed("the group's size", status);
}

}  // namespace rdmatensor
