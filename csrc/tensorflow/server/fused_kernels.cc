// SPDX-License-Identifier: Apache-2.0
//
// The kernels of operations that send or receive several tensors (graph/fusion.h), and the pass that makes these
// operations. The tensors have the keys, places and paths that they would have alone. What cannot go by the plan
// goes as _Send and _Recv would send it.
//
// The pass runs where the partitions of a graph are instantiated: for a session on each worker, for a function of
// TensorFlow 2 in one process for all workers. It changes the partitions of tasks that this process serves. A
// function's partitions for other tasks are sent to them, and nothing tells in time whether they have the plugin,
// without which they would not know the operations.
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "channel/server_context.h"
#include "graph/fusion.h"
#include "receive/in_plans.h"
#include "send/out_edges.h"
#include "server/rendezvous.h"
#include "stats/path_stats.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace rdmatensor {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

// What an _RdmaReceive gives its _RdmaUnpack, its only consumer.
struct Received {
  std::shared_ptr<std::vector<Tensor>> tensors;

  std::string TypeName() const { return "rdmatensor::Received"; }
  // It never leaves its device.
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

absl::Status Malformed() {
  return absl::InvalidArgumentError("rdmatensor: an operation for several tensors is malformed");
}

// A tensor's key in the step's rendezvous, for a rendezvous that is not ours.
absl::Status FindKey(const EdgeDefinition& edge, const tensorflow::FrameAndIter& at,
                     Rendezvous::ParsedKey* key) {
  return Rendezvous::ParseKey(SpellKey(edge.key_prefix, at), key);
}

class FusedSend : public tensorflow::OpKernel {
 public:
  explicit FusedSend(OpKernelConstruction* context) : OpKernel(context) {
    for (EdgeDefinition& each : EdgeDefinition::ReadAll(context)) {
      edges_.push_back(OutEdges::Get()->Add(std::move(each)));
    }
    OP_REQUIRES(context, !edges_.empty(), Malformed());
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES(context,
                context->rendezvous() != nullptr &&
                    static_cast<int>(edges_.size()) == context->num_inputs(),
                Malformed());
    std::vector<AcceptedOffer::Sent> all(edges_.size());
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].edge = edges_[i].get();
      all[i].tensor = &context->input(static_cast<int>(i));
    }
    RdmaRendezvous* const ours = RdmaRendezvous::Of(context, edges_.front()->definition->source);
    if (ours != nullptr) ours->SendPlanned(context->frame_iter(), absl::MakeSpan(all));
    CountPlan(PlanEvent::kOperation);
    CountPlan(PlanEvent::kInOperation, all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].went) continue;
      Rendezvous::ParsedKey key;
      Rendezvous::Args args;
      args.device_context = context->op_device_context();
      args.alloc_attrs = context->input_alloc_attr(static_cast<int>(i));
      OP_REQUIRES_OK(context, FindKey(*edges_[i]->definition, context->frame_iter(), &key));
      OP_REQUIRES_OK(context, context->rendezvous()->Send(key, args, *all[i].tensor, false));
    }
  }

 private:
  std::vector<std::shared_ptr<OutEdge>> edges_;
};

// One run of an _RdmaReceive. It deletes itself when all its receives have ended.
class Awaited {
 public:
  Awaited(OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done, size_t count)
      : context_(context),
        done_(std::move(done)),
        tensors_(std::make_shared<std::vector<Tensor>>(count)),
        left_(count) {}

  Rendezvous::DoneCallback CallbackOf(size_t number) {
    return [this, number](const absl::Status& status, const Rendezvous::Args&,
                          const Rendezvous::Args&, const Tensor& tensor,
                          bool is_dead) { End(number, status, tensor, is_dead); };
  }

  void End(size_t number, const absl::Status& status, const Tensor& tensor, bool is_dead) {
    if (status.ok() && !is_dead) {
      (*tensors_)[number] = tensor;
    } else {
      Fail(status.ok() ? absl::InternalError("rdmatensor: a tensor without a value came for an "
                                             "operation that receives several")
                       : status);
    }
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) Finish();
  }

 private:
  // As the executor does when a _Recv fails: the other receives end at once, too.
  void Fail(const absl::Status& status) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!status_.ok()) return;
      status_ = status;
    }
    context_->rendezvous()->StartAbort(status);
  }

  void Finish() {
    const std::unique_ptr<Awaited> last(this);
    Tensor* received = nullptr;
    if (status_.ok()) status_ = context_->allocate_output(0, {}, &received);
    if (status_.ok()) received->scalar<tensorflow::Variant>()() = Received{std::move(tensors_)};
    context_->SetStatus(status_);
    done_();
  }

  OpKernelContext* const context_;
  const tensorflow::AsyncOpKernel::DoneCallback done_;
  std::shared_ptr<std::vector<Tensor>> tensors_;
  std::atomic<size_t> left_;
  std::mutex mutex_;
  absl::Status status_;
};

class FusedReceive : public tensorflow::AsyncOpKernel {
 public:
  explicit FusedReceive(OpKernelConstruction* context) : AsyncOpKernel(context) {
    for (EdgeDefinition& each : EdgeDefinition::ReadAll(context)) {
      edges_.push_back(InPlans::Get()->Add(std::move(each)));
    }
    OP_REQUIRES(context, !edges_.empty(), Malformed());
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    OP_REQUIRES_ASYNC(context, context->rendezvous() != nullptr, Malformed(), done);
    Rendezvous::Args args;
    args.device_context = context->op_device_context();
    args.cancellation_manager = context->cancellation_manager();
    const tensorflow::FrameAndIter at = context->frame_iter();
    Rendezvous::ParsedKey key;
    for (const auto& edge : edges_) {
      OP_REQUIRES_OK_ASYNC(context, FindKey(*edge->definition, at, &key), done);
    }
    CountPlan(PlanEvent::kOperation);
    CountPlan(PlanEvent::kInOperation, edges_.size());
    RdmaRendezvous* const ours =
        RdmaRendezvous::Of(context, edges_.front()->definition->destination);
    auto* const awaited = new Awaited(context, std::move(done), edges_.size());
    if (ours == nullptr || !ours->CanReceivePlanned()) {
      // The last of them may end the step, so nothing of it is used afterwards.
      for (size_t i = 0, count = edges_.size(); i < count; ++i) {
        (void)FindKey(*edges_[i]->definition, at, &key);
        context->rendezvous()->RecvAsync(key, args, awaited->CallbackOf(i));
      }
      return;
    }
    std::vector<RdmaRendezvous::PlannedReceive> all(edges_.size());
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = {edges_[i].get(), awaited->CallbackOf(i)};
    }
    ours->ReceivePlanned(at, args, nullptr, absl::MakeSpan(all));
  }

 private:
  std::vector<std::shared_ptr<InEdge>> edges_;
};

class Unpack : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const Received* const received =
        input.NumElements() == 1 ? input.scalar<tensorflow::Variant>()().get<Received>() : nullptr;
    OP_REQUIRES(context,
                received != nullptr && received->tensors != nullptr &&
                    static_cast<int>(received->tensors->size()) == context->num_outputs(),
                Malformed());
    for (int i = 0; i < context->num_outputs(); ++i) {
      // Moved, so that a consumer can work in place.
      Tensor& tensor = (*received->tensors)[static_cast<size_t>(i)];
      OP_REQUIRES(context, tensor.dtype() == context->expected_output_dtype(i), Malformed());
      context->set_output(i, std::move(tensor));
    }
  }
};

REGISTER_KERNEL_BUILDER(Name(kFusedSendOp).Device(tensorflow::DEVICE_CPU), FusedSend);
REGISTER_KERNEL_BUILDER(Name(kFusedReceiveOp).Device(tensorflow::DEVICE_CPU), FusedReceive);
REGISTER_KERNEL_BUILDER(Name(kUnpackOp).Device(tensorflow::DEVICE_CPU), Unpack);

class FuseTransfersPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.partition_graphs == nullptr) return absl::OkStatus();
    for (const auto& [device, partition] : *options.partition_graphs) {
      const std::string task = TaskOfDevice(device);
      bool served = false;
      ServerContexts::Get()->ForEach([&](const ServerContext& server) {
        served |= server.task == task && server.settings.plan;
      });
      if (served) FuseTransfers(partition.get());
    }
    return absl::OkStatus();
  }
};

// After the passes that read _Send and _Recv.
const bool fusion_registered = [] {
  auto pass = std::make_unique<FuseTransfersPass>();
  pass->set_name("rdmatensor_fuse_transfers");
  tensorflow::OptimizationPassRegistry::Global()->Register(
      tensorflow::OptimizationPassRegistry::POST_PARTITIONING, 1001, std::move(pass));
  return true;
}();

}  // namespace
}  // namespace rdmatensor
