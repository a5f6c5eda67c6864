// SPDX-License-Identifier: Apache-2.0
//
// The kernels of stores. Those that wait for another process do so on a thread of their own, and hold none of
// TensorFlow's.
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/core_status.h"
#include "ops/result_buffer.h"
#include "ops/state_resource.h"
#include "ops/store_state.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using DoneCallback = tensorflow::AsyncOpKernel::DoneCallback;
using Use = std::shared_ptr<StoreState::Use>;

absl::StatusOr<Use> UseOf(OpKernelContext* context) {
  const auto state = StateOf<StoreState>(context);
  if (!state.ok()) return state.status();
  return (*state)->Enter();
}

// Where tensors lie side by side. Each begins where TensorFlow can use it.
struct Layout {
  void Add(uint64_t size) {
    offsets.push_back(Aligned(bytes));
    bytes = offsets.back() + size;
  }
  std::vector<uint64_t> offsets;
  uint64_t bytes = 0;
};

Layout LayoutOf(OpKernelContext* context, int first) {
  Layout layout;
  for (int i = first; i < context->num_inputs(); ++i) layout.Add(context->input(i).TotalBytes());
  return layout;
}

// Copies the inputs from `first` on.
void Fill(OpKernelContext* context, int first, const Layout& layout, char* to) {
  uint64_t end = 0;
  for (size_t i = 0; i < layout.offsets.size(); ++i) {
    const Tensor& tensor = context->input(first + static_cast<int>(i));
    std::memset(to + end, 0, layout.offsets[i] - end);  // peers read these bytes, too
    if (tensor.TotalBytes() > 0) {
      std::memcpy(to + layout.offsets[i], tensor.data(), tensor.TotalBytes());
    }
    end = layout.offsets[i] + tensor.TotalBytes();
  }
}

absl::Status OtherSize(const std::string& what, uint64_t bytes, const std::string& has,
                       uint64_t size) {
  return absl::InvalidArgumentError(
      absl::StrCat("rdmatensor: ", what, ": the tensors take ", bytes, " bytes, ", has, " ", size,
                   ": all members give tensors of the same types and shapes, and open the store "
                   "with rdmatensor.train.store_nbytes(tensors)"));
}

absl::StatusOr<uint32_t> ScalarRank(OpKernelContext* context) {
  const Tensor& rank = context->input(1);
  if (rank.NumElements() != 1 || rank.flat<int32_t>()(0) < 0) {
    return absl::InvalidArgumentError(
        "rdmatensor: the rank of a store's member is one number from 0");
  }
  return static_cast<uint32_t>(rank.flat<int32_t>()(0));
}

absl::StatusOr<uint64_t> ScalarMark(OpKernelContext* context, int input) {
  const Tensor& mark = context->input(input);
  if (mark.NumElements() != 1) {
    return absl::InvalidArgumentError("rdmatensor: the mark of a store's version is one number");
  }
  return static_cast<uint64_t>(mark.flat<int64_t>()(0));
}

template <typename T>
void SetScalar(OpKernelContext* context, int index, T value) {
  Tensor scalar(tensorflow::DataTypeToEnum<T>::value, TensorShape());
  scalar.scalar<T>()() = value;
  context->set_output(index, scalar);
}

// Runs `call` on a thread of its own, then `conclude`. If the step is cancelled, it ends at once, and `call` goes on with
// what it holds, which is nothing of the context.
void RunAside(OpKernelContext* context, DoneCallback done, const std::string& name,
              std::function<absl::Status()> call, std::function<void()> conclude) {
  auto ended = std::make_shared<std::atomic<bool>>(false);
  tensorflow::CancellationManager* const manager = context->cancellation_manager();
  tensorflow::CancellationToken token = tensorflow::CancellationManager::kInvalidToken;
  if (manager != nullptr) {
    token = manager->get_cancellation_token();
    const auto cancel = [ended, context, done, name] {
      if (ended->exchange(true)) return;
      // Not here: what follows may give the manager up.
      (*context->runner())([context, done, name] {
        context->SetStatus(
            absl::CancelledError(absl::StrCat("rdmatensor: ", name, ": the step was cancelled")));
        done();
      });
    };
    if (!manager->RegisterCallback(token, cancel)) return cancel();
  }
  tsl::Env::Default()->SchedClosure([context, done = std::move(done), manager, token,
                                     ended = std::move(ended), call = std::move(call),
                                     conclude = std::move(conclude)]() mutable {
    const absl::Status status = call();
    call = nullptr;  // ends the use of the store
    if (ended->exchange(true)) return;
    if (manager != nullptr) (void)manager->TryDeregisterCallback(token);
    if (status.ok()) {
      conclude();
    } else {
      context->SetStatus(status);
    }
    done();
  });
}

class StoreKernel : public tensorflow::OpKernel {
 public:
  explicit StoreKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("store", &store_));
    OP_REQUIRES_OK(construction, construction->GetAttr("detail", &name_));
    OP_REQUIRES_OK(construction, construction->GetAttr("bytes", &bytes_));
    OP_REQUIRES_OK(construction, construction->GetAttr("slot_bytes", &slot_bytes_));
  }
  void Compute(OpKernelContext* context) override {
    auto state = std::make_shared<StoreState>(reinterpret_cast<rdt_store*>(store_), name_,
                                              static_cast<uint64_t>(bytes_),
                                              static_cast<uint64_t>(slot_bytes_));
    SetHandle(context, std::move(state));
  }

 private:
  int64_t store_ = 0, bytes_ = 0, slot_bytes_ = 0;
  std::string name_;
};

class StoreLeaveKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    const auto state = StateOf<StoreState>(context);
    OP_REQUIRES_OK(context, state.status());
    (*state)->Leave();
  }
};

class StorePublishKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    const absl::StatusOr<Use> use = UseOf(context);
    OP_REQUIRES_OK(context, use.status());
    const absl::StatusOr<uint64_t> mark = ScalarMark(context, 1);
    OP_REQUIRES_OK(context, mark.status());
    StoreState::Use& store = **use;
    const std::string name = absl::StrCat("publishing in store ", store->name);
    const Layout layout = LayoutOf(context, 2);
    OP_REQUIRES(context, layout.bytes == store->bytes,
                OtherSize(name, layout.bytes, "a version has", store->bytes));
    std::lock_guard<std::mutex> lock(store->publishing);
    void* memory = nullptr;
    uint64_t version = 0;
    rdt_status status = rdt_store_begin(store.store(), &memory);
    if (status == RDT_OK) {
      Fill(context, 2, layout, static_cast<char*>(memory));
      status = rdt_store_publish(store.store(), *mark, &version);
    }
    OP_REQUIRES(context, status == RDT_OK, StatusOf(status, name));
    SetScalar(context, 0, static_cast<int64_t>(version));
  }
};

class StorePullKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit StorePullKernel(OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &types_));
    OP_REQUIRES_OK(construction, construction->GetAttr("shapes", &shapes_));
    OP_REQUIRES_OK(construction, construction->GetAttr("timeout_ms", &timeout_ms_));
    OP_REQUIRES(construction, types_.size() == shapes_.size(),
                absl::InvalidArgumentError("a shape is needed for each type"));
    for (size_t i = 0; i < types_.size(); ++i) {
      layout_.Add(static_cast<uint64_t>(shapes_[i].num_elements()) *
                  static_cast<uint64_t>(tensorflow::DataTypeSize(types_[i])));
    }
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const absl::StatusOr<Use> use = UseOf(context);
    OP_REQUIRES_OK_ASYNC(context, use.status(), done);
    const absl::StatusOr<uint32_t> rank = ScalarRank(context);
    OP_REQUIRES_OK_ASYNC(context, rank.status(), done);
    StoreState::Use& store = **use;
    const std::string name = absl::StrCat("pulling from rank ", *rank, " of store ", store->name);
    OP_REQUIRES_ASYNC(context, layout_.bytes == store->bytes,
                      OtherSize(name, layout_.bytes, "a version has", store->bytes), done);
    auto bytes = std::make_shared<Tensor>();
    OP_REQUIRES_OK_ASYNC(
        context,
        context->allocate_temp(tensorflow::DT_UINT8,
                               TensorShape({static_cast<int64_t>(layout_.bytes)}), bytes.get()),
        done);
    // The tensors are parts of what was read.
    const std::shared_ptr<char> memory(bytes, static_cast<char*>(bytes->data()));
    auto pulled = std::make_shared<rdt_store_pulled>();
    auto call = [use = *use, rank = *rank, memory, pulled, name, size = layout_.bytes,
                 timeout_ms = static_cast<int>(timeout_ms_)] {
      const rdt_status status =
          rdt_store_pull(use->store(), rank, 0, size, memory.get(), timeout_ms, pulled.get());
      return status == RDT_OK ? absl::OkStatus() : StatusOf(status, name);
    };
    auto conclude = [this, context, memory, pulled] {
      SetScalar(context, 0, static_cast<int64_t>(pulled->version));
      SetScalar(context, 1, static_cast<int64_t>(pulled->mark));
      for (size_t i = 0; i < types_.size(); ++i) {
        context->set_output(2 + static_cast<int>(i),
                            PartOf(memory, layout_.offsets[i], types_[i], shapes_[i]));
      }
    };
    RunAside(context, std::move(done), name, std::move(call), std::move(conclude));
  }

 private:
  std::vector<tensorflow::DataType> types_;
  std::vector<TensorShape> shapes_;
  int64_t timeout_ms_ = 0;
  Layout layout_;
};

class StorePushKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit StorePushKernel(OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("timeout_ms", &timeout_ms_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const absl::StatusOr<Use> use = UseOf(context);
    OP_REQUIRES_OK_ASYNC(context, use.status(), done);
    const absl::StatusOr<uint32_t> rank = ScalarRank(context);
    OP_REQUIRES_OK_ASYNC(context, rank.status(), done);
    const absl::StatusOr<uint64_t> mark = ScalarMark(context, 2);
    OP_REQUIRES_OK_ASYNC(context, mark.status(), done);
    StoreState::Use& store = **use;
    const std::string name = absl::StrCat("pushing to rank ", *rank, " of store ", store->name);
    const Layout layout = LayoutOf(context, 3);
    OP_REQUIRES_ASYNC(context, layout.bytes <= store->slot_bytes,
                      OtherSize(name, layout.bytes, "a slot has", store->slot_bytes), done);
    Tensor data = context->input(3);  // one tensor is sent where it lies
    if (layout.offsets.size() > 1) {
      OP_REQUIRES_OK_ASYNC(
          context,
          context->allocate_temp(tensorflow::DT_UINT8,
                                 TensorShape({static_cast<int64_t>(layout.bytes)}), &data),
          done);
      Fill(context, 3, layout, static_cast<char*>(data.data()));
    }
    auto sent = std::make_shared<int>(0);
    auto call = [use = *use, rank = *rank, mark = *mark, data = std::move(data), sent, name,
                 size = layout.bytes, timeout_ms = static_cast<int>(timeout_ms_)] {
      const rdt_status status = rdt_store_push(use->store(), rank, size > 0 ? data.data() : nullptr,
                                               size, mark, timeout_ms, sent.get());
      return status == RDT_OK ? absl::OkStatus() : StatusOf(status, name);
    };
    RunAside(context, std::move(done), name, std::move(call),
             [context, sent] { SetScalar(context, 0, *sent != 0); });
  }

 private:
  int64_t timeout_ms_ = 0;
};

class StoreTakeKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    const absl::StatusOr<Use> use = UseOf(context);
    OP_REQUIRES_OK(context, use.status());
    StoreState::Use& store = **use;
    const std::string name = absl::StrCat("taking from store ", store->name);
    rdt_store_arrival arrival{};
    const rdt_status status = rdt_store_take(store.store(), 0, &arrival);
    OP_REQUIRES(context, status >= RDT_OK, StatusOf(status, name));
    const bool arrived = status == RDT_OK;
    if (arrived) {
      const absl::Status copied = Copy(context, arrival, name);
      // The slot is freed even if the tensors do not fit, or its sender could never push again.
      (void)rdt_store_release(store.store(), arrival.rank);
      OP_REQUIRES_OK(context, copied);
    } else {
      for (int i = 1; i < context->num_inputs(); ++i) context->set_output(i + 2, context->input(i));
    }
    SetScalar(context, 0, arrived);
    SetScalar(context, 1, arrived ? static_cast<int32_t>(arrival.rank) : -1);
    SetScalar(context, 2, static_cast<int64_t>(arrival.mark));
  }

 private:
  static absl::Status Copy(OpKernelContext* context, const rdt_store_arrival& arrival,
                           const std::string& name) {
    const Layout layout = LayoutOf(context, 1);
    if (layout.bytes != arrival.size) {
      return OtherSize(name, layout.bytes, absl::StrCat("what rank ", arrival.rank, " sent has"),
                       arrival.size);
    }
    for (size_t i = 0; i < layout.offsets.size(); ++i) {
      const int number = static_cast<int>(i);
      Tensor* tensor = nullptr;
      TF_RETURN_IF_ERROR(
          context->allocate_output(number + 3, context->input(number + 1).shape(), &tensor));
      if (tensor->TotalBytes() == 0) continue;
      std::memcpy(tensor->data(), static_cast<const char*>(arrival.data) + layout.offsets[i],
                  tensor->TotalBytes());
    }
    return absl::OkStatus();
  }
};

#define RDT_REGISTER(name, kernel) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU), kernel)
RDT_REGISTER("RdmatensorStore", StoreKernel);
RDT_REGISTER("RdmatensorStoreLeave", StoreLeaveKernel);
RDT_REGISTER("RdmatensorStorePublish", StorePublishKernel);
RDT_REGISTER("RdmatensorStorePull", StorePullKernel);
RDT_REGISTER("RdmatensorStorePush", StorePushKernel);
RDT_REGISTER("RdmatensorStoreTake", StoreTakeKernel);

}  // namespace
}  // namespace rdmatensor
