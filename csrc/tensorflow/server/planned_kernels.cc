// SPDX-License-Identifier: Apache-2.0
//
// The kernels of _Send and _Recv: TensorFlow's own, except where this step's rendezvous is ours, and the graph passes
// planned the tensor or it lies in the memory of a device. The operations stay what they are, because TensorFlow's
// executor knows them by name.
#include "server/planned_kernels.h"

#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/task_name.h"
#include "memory/arena.h"
#include "receive/device_copy.h"
#include "receive/in_plans.h"
#include "send/out_edges.h"
#include "server/rendezvous.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/kernels/sendrecv_ops.h"

namespace rdmatensor {
namespace {

// Tensors of a function's call frame have keys of another kind.
bool HasPlainKeys(tensorflow::OpKernelConstruction* context) {
  bool by_call_frame = false;
  return !context->GetAttr("_hostmem_sendrecv", &by_call_frame).ok() || !by_call_frame;
}

// The edge of a _Send that the graph passes planned; else nullptr.
std::shared_ptr<OutEdge> PlannedEdge(tensorflow::OpKernelConstruction* context) {
  EdgeDefinition definition;
  if (!context->status().ok() || !definition.Read(context) || !HasPlainKeys(context)) {
    return nullptr;
  }
  return OutEdges::Get()->Add(std::move(definition));
}

// Sends `tensor`, the input or a copy of it, to the place of `edge`. False if there is none for it now.
bool SendPlanned(tensorflow::OpKernelContext* context, const OutEdge* edge,
                 const tensorflow::Tensor& tensor) {
  RdmaRendezvous* const rendezvous = RdmaRendezvous::Of(context, edge->definition->source);
  if (rendezvous == nullptr) return false;
  const bool is_dead = context->is_input_dead();
  static const auto* const none = new tensorflow::Tensor;
  AcceptedOffer::Sent sent{edge, 0, is_dead ? none : &tensor, is_dead};
  rendezvous->SendPlanned(context->frame_iter(), absl::MakeSpan(&sent, 1));
  return sent.went;
}

class PlannedSend : public tensorflow::SendOp {
 public:
  explicit PlannedSend(tensorflow::OpKernelConstruction* context)
      : SendOp(context), edge_(PlannedEdge(context)) {}

  void Compute(tensorflow::OpKernelContext* context) override {
    if (edge_ == nullptr || !SendPlanned(context, edge_.get(), context->input(0))) {
      SendOp::Compute(context);
    }
  }

 private:
  const std::shared_ptr<OutEdge> edge_;
};

// Sends from the memory of a device. The tensor is copied to the host, behind what the device still computes, and the
// copy goes as a tensor of a CPU would. The kernel ends when it went, so the executor keeps the tensor, the step and
// its session that long, and a copy that fails fails the step.
class DeviceSend : public tensorflow::AsyncOpKernel {
 public:
  explicit DeviceSend(tensorflow::OpKernelConstruction* context)
      : AsyncOpKernel(context), stock_(context), edge_(PlannedEdge(context)) {
    std::string source, destination, name;
    int64_t incarnation = 0;
    if (context->status().ok() && HasPlainKeys(context) &&
        context->GetAttr("send_device", &source).ok() &&
        context->GetAttr("recv_device", &destination).ok() &&
        context->GetAttr("send_device_incarnation", &incarnation).ok() &&
        context->GetAttr("tensor_name", &name).ok() && TaskOf(source) != TaskOf(destination)) {
      key_prefix_ = KeyPrefix(source, static_cast<uint64_t>(incarnation), destination, name);
    }
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    OP_REQUIRES_ASYNC(context, context->rendezvous() != nullptr,
                      absl::InternalError("rdmatensor: a _Send runs without a rendezvous"), done);
    if (!TakesOver(context)) {
      stock_.Compute(context);
      done();
      return;
    }
    const tensorflow::Tensor& input = context->input(0);
    auto* const device = static_cast<tensorflow::Device*>(context->device());
    tensorflow::DeviceContext* const copying =
        CopyingContext(*device, context->op_device_context());
    if (context->is_input_dead() || context->input_alloc_attr(0).on_host() || copying == nullptr) {
      End(context, Send(context, input), done);
      return;
    }
    auto copy = std::make_shared<tensorflow::Tensor>(input.dtype(), input.shape());
    Arena::Get()->PinForDevices();
    if (!copy->IsInitialized()) {
      const absl::Status status = absl::ResourceExhaustedError(
          absl::StrCat("rdmatensor: the host has no memory for a copy of ", input.TotalBytes(),
                       " bytes from ", device->name()));
      End(context, status, done);
    } else if (copy->TotalBytes() == 0) {
      End(context, Send(context, *copy), done);
    } else {
      copying->CopyDeviceTensorToCPU(&input, name(), device, copy.get(),
                                     [this, context, copy, done](const absl::Status& status) {
                                       End(context, status.ok() ? Send(context, *copy) : status,
                                           done);
                                     });
    }
  }

 private:
  // Whether the tensor goes to another task over our rendezvous, and is nothing but bytes.
  bool TakesOver(tensorflow::OpKernelContext* context) const {
    return !key_prefix_.empty() && tensorflow::DataTypeCanUseMemcpy(context->input_dtype(0)) &&
           dynamic_cast<RdmaRendezvous*>(context->rendezvous()) != nullptr;
  }

  // Sends a tensor that lies in the host's memory.
  absl::Status Send(tensorflow::OpKernelContext* context, const tensorflow::Tensor& tensor) {
    if (edge_ != nullptr && SendPlanned(context, edge_.get(), tensor)) return absl::OkStatus();
    tensorflow::Rendezvous::ParsedKey key;
    tensorflow::Rendezvous::Args args;
    args.alloc_attrs.set_on_host(true);
    const absl::Status status =
        tensorflow::Rendezvous::ParseKey(SpellKey(key_prefix_, context->frame_iter()), &key);
    if (!status.ok()) return status;
    return context->rendezvous()->Send(key, args, tensor, context->is_input_dead());
  }

  static void End(tensorflow::OpKernelContext* context, const absl::Status& status,
                  const DoneCallback& done) {
    context->SetStatus(status);
    done();
  }

  tensorflow::SendOp stock_;
  const std::shared_ptr<OutEdge> edge_;
  std::string key_prefix_;  // empty: not to another task
};

class PlannedReceive : public tensorflow::RecvOp {
 public:
  explicit PlannedReceive(tensorflow::OpKernelConstruction* context)
      : RecvOp(context),
        on_device_(context->device_type() != tensorflow::DEVICE_CPU &&
                   output_memory_types()[0] == tensorflow::DEVICE_MEMORY) {
    EdgeDefinition definition;
    if (context->status().ok() && definition.Read(context) && HasPlainKeys(context)) {
      edge_ = InPlans::Get()->Add(std::move(definition));
    }
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    RdmaRendezvous* const rendezvous =
        edge_ != nullptr ? RdmaRendezvous::Of(context, edge_->definition->destination) : nullptr;
    if (rendezvous == nullptr || !rendezvous->CanReceivePlanned()) {
      RecvOp::ComputeAsync(context, std::move(done));
      return;
    }
    tensorflow::Rendezvous::Args args;
    args.device_context = context->op_device_context();
    args.alloc_attrs = context->output_alloc_attr(0);
    args.cancellation_manager = context->cancellation_manager();
    RdmaRendezvous::PlannedReceive receive;
    receive.edge = edge_.get();
    receive.done = [context, done = std::move(done)](
                       const absl::Status& status, const tensorflow::Rendezvous::Args&,
                       const tensorflow::Rendezvous::Args&, const tensorflow::Tensor& tensor,
                       bool is_dead) {
      context->SetStatus(status);
      // No output is how a dead tensor is passed on.
      if (status.ok() && !is_dead) context->set_output(0, tensor);
      done();
    };
    auto* const device = on_device_ ? static_cast<tensorflow::Device*>(context->device()) : nullptr;
    rendezvous->ReceivePlanned(context->frame_iter(), args, device, absl::MakeSpan(&receive, 1));
  }

 private:
  const bool on_device_;  // the tensor goes into the device's memory
  std::shared_ptr<InEdge> edge_;
};

// Above the stock kernels' priority, 0.
constexpr int kPriority = 10;

template <typename Kernel>
void Register(const char* operation, const char* device_type, bool in_host_memory) {
  tensorflow::KernelDefBuilder definition(operation);
  definition.Device(device_type).Priority(kPriority);
  if (in_host_memory) definition.HostMemory("tensor");
  const tensorflow::kernel_factory::OpKernelRegistrar registrar(
      definition.Build(), "rdmatensor",
      [](tensorflow::OpKernelConstruction* context) -> tensorflow::OpKernel* {
        return new Kernel(context);
      });
  (void)registrar;
}

template <typename Send>
void RegisterAll(const char* device_type, bool has_host_memory) {
  Register<Send>("_Send", device_type, false);
  Register<PlannedReceive>("_Recv", device_type, false);
  Register<PlannedSend>("_HostSend", device_type, has_host_memory);
  Register<PlannedReceive>("_HostRecv", device_type, has_host_memory);
}

const bool cpu_kernels_registered = [] {
  RegisterAll<PlannedSend>(tensorflow::DEVICE_CPU, false);
  return true;
}();

}  // namespace

// TensorFlow registers its own for all types at once (DEVICE_DEFAULT), where it takes only one kernel, and looks there
// if a type has none.
void RegisterTransferKernels(const std::string& device_type) {
  static std::mutex mutex;
  static auto* const types = new std::set<std::string>{tensorflow::DEVICE_CPU};
  std::lock_guard<std::mutex> lock(mutex);
  if (types->insert(device_type).second) RegisterAll<DeviceSend>(device_type.c_str(), true);
}

}  // namespace rdmatensor
