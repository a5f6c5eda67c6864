// SPDX-License-Identifier: Apache-2.0
#include "stats/checksum.h"

#include <atomic>
#include <cstring>
#include <mutex>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "rdmatensor.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace rdmatensor {
namespace {

constexpr const char* kViaTexts[] = {
    "inside its message", "written into its place", "written into its place, in a group",
    "used in the sender's memory", "read from the sender's memory"};
// Eager operations send under ever new names, so the set of logged names is bounded.
constexpr size_t kMostLogged = 1024;

struct Counts {
  std::atomic<uint64_t> sent{0}, verified{0}, corrupted{0}, unchecked{0};
  std::mutex mutex;
  absl::flat_hash_set<std::string> logged;
};

// Never destroyed: the progress thread may count while static destructors run.
Counts& GlobalCounts() {
  static Counts* counts = new Counts;
  return *counts;
}

bool IsFirst(const std::string& name) {
  Counts& counts = GlobalCounts();
  std::lock_guard<std::mutex> lock(counts.mutex);
  return counts.logged.size() < kMostLogged && counts.logged.insert(name).second;
}

// "tensor edge_5_x from /job:a/... to /job:b/..."
std::string EdgeOf(absl::string_view key) {
  tensorflow::Rendezvous::ParsedKey parsed;
  if (!tensorflow::Rendezvous::ParseKey(key, &parsed).ok()) return absl::StrCat("tensor ", key);
  return absl::StrCat("tensor ", parsed.edge_name, " from ", parsed.src_device, " to ",
                      parsed.dst_device);
}

}  // namespace

uint32_t ChecksumToSend(const void* data, uint64_t bytes) {
  GlobalCounts().sent.fetch_add(1, std::memory_order_relaxed);
  return rdt_crc32c(0, data, bytes);
}

tensorflow::Tensor FrozenCopy(const tensorflow::Tensor& tensor) {
  tensorflow::Tensor copy(tensor.dtype(), tensor.shape());
  if (copy.IsInitialized()) std::memcpy(copy.data(), tensor.data(), tensor.TotalBytes());
  return copy;
}

absl::Status Verify(const ExpectedChecksum& expected, const tensorflow::Tensor& tensor,
                    int64_t step_id, absl::FunctionRef<std::string()> key) {
  const uint32_t found = rdt_crc32c(0, tensor.data(), tensor.TotalBytes());
  Counts& counts = GlobalCounts();
  if (found == expected.checksum) {
    counts.verified.fetch_add(1, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  counts.corrupted.fetch_add(1, std::memory_order_relaxed);
  const std::string edge = EdgeOf(key());
  const std::string text = absl::StrCat(
      edge, " arrived corrupted: ", tensor.TotalBytes(), " bytes, path ", PathName(expected.path),
      " (", kViaTexts[static_cast<int>(expected.via)], ") over ", expected.transport, ", step ",
      step_id,
      absl::StrFormat(", CRC32C %08x when sent and %08x when received. ", expected.checksum, found),
      "Run the step again; if it recurs, test the memory and the network card of both hosts, or "
      "set RDMATENSOR_POLICY=grpc there");
  if (IsFirst(edge)) {
    rdt_log_line(RDT_LOG_ERROR,
                 absl::StrCat("tensorflow: ", text, " (further ones of this edge are only counted)")
                     .c_str());
  }
  return absl::DataLossError(absl::StrCat("rdmatensor: ", text));
}

void CountUnchecked(absl::string_view task) {
  GlobalCounts().unchecked.fetch_add(1, std::memory_order_relaxed);
  if (!IsFirst(std::string(task))) return;
  rdt_log_line(RDT_LOG_WARN, absl::StrCat("tensorflow: tensors from ", task,
                                          " have no checksums and are not verified: set "
                                          "RDMATENSOR_CHECKSUM=crc32c there too")
                                 .c_str());
}

std::string ChecksumsAsJson() {
  const Counts& counts = GlobalCounts();
  return Json::Object()
      .Add("sent", counts.sent.load())
      .Add("verified", counts.verified.load())
      .Add("corrupted", counts.corrupted.load())
      .Add("unchecked", counts.unchecked.load())
      .text();
}

void ResetChecksums() {
  Counts& counts = GlobalCounts();
  for (auto* each : {&counts.sent, &counts.verified, &counts.corrupted, &counts.unchecked}) {
    each->store(0, std::memory_order_relaxed);
  }
}

}  // namespace rdmatensor
