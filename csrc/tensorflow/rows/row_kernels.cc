// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow asks one object for each kernel that it creates, whether this is for a session, a function or an eager
// operation, in the process that will run it. Its own such object serves XLA, and ours extends it. So no graph
// changes, and no other process learns of these kernels.
#include "rows/row_kernels.h"

#include <mutex>
#include <set>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "tensorflow/compiler/jit/xla_kernel_creator.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/function.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace rdmatensor {
namespace {

using tensorflow::FunctionLibraryRuntime;
using tensorflow::NodeProperties;
using tensorflow::OpKernel;

constexpr char kIds[] = "Tindices";

struct Served {
  std::mutex mutex;
  std::set<uint64_t> incarnations;
  static Served& Get() {
    static auto* const served = new Served;
    return *served;
  }
};

bool IsServed(const tensorflow::Device* device) {
  Served& served = Served::Get();
  std::lock_guard<std::mutex> lock(served.mutex);
  return device != nullptr && device->device_type() == tensorflow::DEVICE_CPU &&
         served.incarnations.count(device->attributes().incarnation()) > 0;
}

tensorflow::DataType TypeOf(const NodeProperties& node, const char* attribute) {
  tensorflow::DataType type = tensorflow::DT_INVALID;
  (void)tensorflow::TryGetNodeAttr(tensorflow::AttrSlice(node.node_def), attribute, &type);
  return type;
}

const RowOperation* Find(const FunctionLibraryRuntime& library, const NodeProperties& node) {
  static const auto* const operations = [] {
    auto* const all = new absl::flat_hash_map<absl::string_view, const RowOperation*>;
    for (const auto* const some : {&ReadsAndScatters(), &Updates(), &Sums()}) {
      for (const RowOperation& each : *some) all->emplace(each.name, &each);
    }
    return all;
  }();
  const auto found = operations->find(node.node_def.op());
  if (found == operations->end() || !IsServed(library.device())) return nullptr;
  const RowOperation& operation = *found->second;
  const tensorflow::DataType ids = TypeOf(node, kIds);
  const bool fits = TypeOf(node, operation.type) == tensorflow::DT_FLOAT &&
                    (ids == tensorflow::DT_INT32 || ids == tensorflow::DT_INT64);
  return fits ? &operation : nullptr;
}

class KernelCreator : public tensorflow::XlaKernelCreator {
 public:
  bool CanCreateKernel(const FunctionLibraryRuntime& library,
                       const std::shared_ptr<const NodeProperties>& node) const override {
    return Find(library, *node) != nullptr || XlaKernelCreator::CanCreateKernel(library, node);
  }

  absl::Status CreateKernel(FunctionLibraryRuntime* library,
                            const std::shared_ptr<const NodeProperties>& node,
                            std::unique_ptr<OpKernel>* kernel) const override {
    const RowOperation* const operation = Find(*library, *node);
    if (operation == nullptr) return XlaKernelCreator::CreateKernel(library, node, kernel);
    tensorflow::Device* const device = library->device();
    const int version = library->graph_def_version();
    OpKernel* made = nullptr;
    absl::Status status = tensorflow::CreateNonCachedKernel(device, library, node, version, &made);
    std::unique_ptr<OpKernel> stock(made);
    if (!status.ok()) return status;
    const tensorflow::MemoryTypeVector inputs = stock->input_memory_types();
    const tensorflow::MemoryTypeVector outputs = stock->output_memory_types();
    tensorflow::OpKernelConstruction construction(
        tensorflow::DeviceType(device->device_type()), device,
        device->GetAllocator(tensorflow::AllocatorAttributes()), library,
        device->resource_manager(), node, inputs, outputs, version, &status);
    *kernel = operation->make(&construction, std::move(stock),
                              TypeOf(*node, kIds) == tensorflow::DT_INT64);
    return status;
  }
};

const bool creator_registered = [] {
  tensorflow::RegisterDefaultCustomKernelCreator(new KernelCreator);
  return true;
}();

}  // namespace

void UseRowKernels(uint64_t incarnation) {
  Served& served = Served::Get();
  std::lock_guard<std::mutex> lock(served.mutex);
  served.incarnations.insert(incarnation);
}

}  // namespace rdmatensor
