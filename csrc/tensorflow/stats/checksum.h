// SPDX-License-Identifier: Apache-2.0
//
// CHECKSUM=crc32c: the sender of a tensor sends its CRC32C, and the receiver compares it before TensorFlow gets
// the tensor. This protects against accidents, not against attackers.
//
// The sender computes the checksum on its own thread, before the bytes are copied, lent or posted. The receiver
// computes it when the tensor and its receive have met (Delivery::Complete). Until then the tensor holds its place
// or loan, so that no later tensor overwrites it, and nothing in this process writes to it.
#ifndef RDMATENSOR_TENSORFLOW_STATS_CHECKSUM_H_
#define RDMATENSOR_TENSORFLOW_STATS_CHECKSUM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "stats/path_stats.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdmatensor {

// The checksum that came with a tensor. Tensors without bytes, or from a sender with CHECKSUM=off, have none.
using Checksum = std::optional<uint32_t>;

// What a tensor that has arrived must match.
struct ExpectedChecksum {
  uint32_t checksum = 0;
  Path path = Path::kDynamic;
  Via via = Via::kMessage;
  std::string transport;
};

// All functions may be called from any thread.

// Returns the checksum of a tensor's bytes, to be sent with them.
uint32_t ChecksumToSend(const void* data, uint64_t bytes);
// Returns a copy that nothing else writes to, for when the checksum and what is sent must be of the same bytes.
// It is not initialized if memory ran out.
tensorflow::Tensor FrozenCopy(const tensorflow::Tensor& tensor);

// Returns DataLoss if the tensor does not match the checksum that was sent with it. The message names the edge by
// its rendezvous key, both checksums, how the bytes arrived, and the remedy. Counts all failures, and logs the
// first of each edge.
absl::Status Verify(const ExpectedChecksum& expected, const tensorflow::Tensor& tensor,
                    int64_t step_id, absl::FunctionRef<std::string()> key);
// Counts a tensor that came from `task` without a checksum, though this end compares. Logs the first of each task.
void CountUnchecked(absl::string_view task);

std::string ChecksumsAsJson();
void ResetChecksums();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_STATS_CHECKSUM_H_
