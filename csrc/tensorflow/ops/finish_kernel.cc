// SPDX-License-Identifier: Apache-2.0
//
// The kernel that waits for an operation. It holds no thread, and its results lie where they arrived.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/spans.h"
#include "ops/result_buffer.h"
#include "ops/started.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"

namespace rdmatensor {
namespace {

using tensorflow::OpKernelContext;

class FinishKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit FinishKernel(tensorflow::OpKernelConstruction* construction)
      : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &count_));
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &dtype_));
  }

  bool IsExpensive() override { return false; }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto* const variant =
        context->input(0).scalar<tensorflow::Variant>()().get<StartedVariant>();
    OP_REQUIRES_ASYNC(
        context, variant != nullptr && variant->started != nullptr,
        absl::InvalidArgumentError("rdmatensor: this is no operation that was started"), done);
    std::shared_ptr<Started> started = variant->started;
    if (started->HasEnded()) {
      Conclude(context, *started);
      done();
      return;
    }
    tensorflow::CancellationManager* const manager = context->cancellation_manager();
    tensorflow::CancellationToken token = tensorflow::CancellationManager::kInvalidToken;
    if (manager != nullptr) {
      token = manager->get_cancellation_token();
      if (!manager->RegisterCallback(token, [started] { started->Cancel(); })) started->Cancel();
    }
    Started* const waited = started.get();
    waited->Then([this, context, manager, token, started = std::move(started),
                  done = std::move(done)]() mutable {
      // This may be the thread that makes all progress, and what follows in the graph takes its time.
      (*context->runner())(
          [this, context, manager, token, started = std::move(started), done = std::move(done)] {
            if (manager != nullptr) (void)manager->TryDeregisterCallback(token);
            Conclude(context, *started);
            done();
          });
    });
  }

 private:
  void Conclude(OpKernelContext* context, const Started& started) const {
    if (Tracing()) Trace(started);
    if (!started.status().ok()) return context->SetStatus(started.status());
    if (started.results.size() != static_cast<size_t>(count_) ||
        (count_ != 0 && started.dtype != dtype_)) {
      return context->SetStatus(
          absl::InvalidArgumentError("rdmatensor: the operation has other results"));
    }
    for (int i = 0; i < count_; ++i) {
      const auto& [offset, shape] = started.results[static_cast<size_t>(i)];
      context->set_output(i, PartOf(started.output, offset, dtype_, shape));
    }
  }

  // Where the time of the operation went: copying, waiting for the last member, moving bytes, and getting here.
  static void Trace(const Started& started) {
    const int64_t heard = std::min(started.begun + started.report.waited_ns, started.ended);
    const auto span = [&](const char* what, int64_t begin, int64_t end) {
      tsl::profiler::TraceMeRecorder::Record(
          {tsl::profiler::TraceMeEncode(what,
                                        {{"operation", started.name()},
                                         {"bytes", started.bytes},
                                         {"peer", absl::StrCat("rank ", started.report.last)}}),
           begin, end});
    };
    span("rdmatensor::fill", started.called, started.begun);
    if (heard > started.begun) span("rdmatensor::late", started.begun, heard);
    span("rdmatensor::reduce", heard, started.ended);
    span("rdmatensor::finish", started.ended, tsl::profiler::GetCurrentTimeNanos());
  }

  int64_t count_ = 0;
  tensorflow::DataType dtype_ = tensorflow::DT_INVALID;
};

REGISTER_KERNEL_BUILDER(Name("RdmatensorFinish").Device(tensorflow::DEVICE_CPU), FinishKernel);
REGISTER_KERNEL_BUILDER(Name("RdmatensorWait").Device(tensorflow::DEVICE_CPU), FinishKernel);

}  // namespace
}  // namespace rdmatensor
