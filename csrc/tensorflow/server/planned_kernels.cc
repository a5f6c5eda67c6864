// SPDX-License-Identifier: Apache-2.0
//
// The kernels of _Send and _Recv on CPUs: TensorFlow's own, except where the graph passes planned the
// tensor and this step's rendezvous is ours. The operations stay what they are, because TensorFlow's
// executor knows them by name.
#include <memory>
#include <utility>

#include "receive/in_plans.h"
#include "send/out_edges.h"
#include "server/rendezvous.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/kernels/sendrecv_ops.h"

namespace rdmatensor {
namespace {

// Tensors of a function's call frame have keys of another kind.
bool HasPlainKeys(tensorflow::OpKernelConstruction* context) {
  bool by_call_frame = false;
  return !context->GetAttr("_hostmem_sendrecv", &by_call_frame).ok() || !by_call_frame;
}

class PlannedSend : public tensorflow::SendOp {
 public:
  explicit PlannedSend(tensorflow::OpKernelConstruction* context) : SendOp(context) {
    EdgeDefinition definition;
    if (context->status().ok() && definition.Read(context) && HasPlainKeys(context)) {
      edge_ = OutEdges::Get()->Add(std::move(definition));
    }
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    if (edge_ == nullptr || !SendPlanned(context)) SendOp::Compute(context);
  }

 private:
  bool SendPlanned(tensorflow::OpKernelContext* context) {
    RdmaRendezvous* const rendezvous = RdmaRendezvous::Of(context, edge_->definition->source);
    if (rendezvous == nullptr) return false;
    const bool is_dead = context->is_input_dead();
    static const auto* const none = new tensorflow::Tensor;
    AcceptedOffer::Sent sent{edge_.get(), 0, is_dead ? none : &context->input(0), is_dead};
    rendezvous->SendPlanned(context->frame_iter(), absl::MakeSpan(&sent, 1));
    return sent.went;
  }

  std::shared_ptr<OutEdge> edge_;
};

class PlannedReceive : public tensorflow::RecvOp {
 public:
  explicit PlannedReceive(tensorflow::OpKernelConstruction* context) : RecvOp(context) {
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
    rendezvous->ReceivePlanned(context->frame_iter(), args, absl::MakeSpan(&receive, 1));
  }

 private:
  std::shared_ptr<InEdge> edge_;
};

// Above the stock kernels' priority, 0.
constexpr int kPriority = 10;
#define RDMATENSOR_REGISTER(name, kernel) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU).Priority(kPriority), kernel)
RDMATENSOR_REGISTER("_Send", PlannedSend);
RDMATENSOR_REGISTER("_HostSend", PlannedSend);
RDMATENSOR_REGISTER("_Recv", PlannedReceive);
RDMATENSOR_REGISTER("_HostRecv", PlannedReceive);
#undef RDMATENSOR_REGISTER

}  // namespace
}  // namespace rdmatensor
