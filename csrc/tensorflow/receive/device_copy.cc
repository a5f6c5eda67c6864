// SPDX-License-Identifier: Apache-2.0
#include "receive/device_copy.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "memory/arena.h"
#include "tensorflow/core/framework/device.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

using tensorflow::Tensor;

// Holds what a copy uses until the copy is complete.
struct Copy {
  Waiter waiter;
  Tensor from, to;

  void End(const absl::Status& status) {
    from = Tensor();  // before what follows runs, so that its place or memory can be used again
    if (!status.ok()) {
      waiter.Fail(status);
      return;
    }
    waiter.done(status, tensorflow::Rendezvous::Args(), waiter.args, to, false);
  }
};

void Start(const std::shared_ptr<Copy>& copy) {
  tensorflow::Device* const device = copy->waiter.device;
  const tensorflow::Rendezvous::Args& args = copy->waiter.args;
  const Tensor& from = copy->from;
  tensorflow::DeviceContext* const context = CopyingContext(*device, args.device_context);
  if (context == nullptr) {
    copy->to = from;
    copy->End(absl::OkStatus());
    return;
  }
  Arena::Get()->PinForDevices();
  copy->to = Tensor(device->GetAllocator(args.alloc_attrs), from.dtype(), from.shape());
  if (!copy->to.IsInitialized()) {
    copy->End(absl::ResourceExhaustedError(absl::StrCat("rdmatensor: ", device->name(),
                                                        " has no memory for a received tensor of ",
                                                        from.TotalBytes(), " bytes")));
  } else if (from.TotalBytes() == 0) {
    copy->End(absl::OkStatus());
  } else {
    // Behind what the device still does with the memory that `to` was given.
    context->CopyCPUTensorToDevice(&from, device, &copy->to,
                                   [copy](const absl::Status& status) { copy->End(status); });
  }
}

}  // namespace

tensorflow::DeviceContext* CopyingContext(const tensorflow::DeviceBase& device,
                                          tensorflow::DeviceContext* given) {
  if (given != nullptr) return given;
  const auto* const info = device.tensorflow_accelerator_device_info();
  return info != nullptr ? info->default_context : nullptr;
}

void CompleteOnDevice(Waiter waiter, Tensor tensor) {
  auto copy = std::make_shared<Copy>();
  copy->waiter = std::move(waiter);
  copy->from = std::move(tensor);
  // The device's allocator may wait until other tensors are freed, which is not for the progress thread.
  tsl::Env::Default()->SchedClosure([copy = std::move(copy)] { Start(copy); });
}

}  // namespace rdmatensor
