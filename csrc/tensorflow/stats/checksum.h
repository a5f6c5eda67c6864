// SPDX-License-Identifier: Apache-2.0
//
// CHECKSUM=crc32c: the sender of a tensor sends its CRC32C along, and the receiver compares before
// TensorFlow gets the tensor. Against accidents, not against attackers.
//
// When: the sender before the bytes are copied, lent or posted, on the thread that sends. The receiver when
// tensor and receive have met (Endpoint::Complete): until then the place or the loan is held by the tensor,
// so that no later one can have overwritten it, and nobody here has written to it.
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

// What came with a tensor; none if its sender has CHECKSUM=off, and of tensors without bytes.
using Checksum = std::optional<uint32_t>;

// How the bytes came, for people.
enum class Way { kInline, kPlaced, kFused, kInPlace, kRead };

// What a tensor that has arrived must prove.
struct Claim {
  uint32_t checksum = 0;
  Path path = Path::kDynamic;
  Way way = Way::kInline;
  std::string transport;
};

// All functions may be called from any thread.

// Of a tensor's bytes, to be sent with them.
uint32_t ChecksumToSend(const void* data, uint64_t bytes);
// A copy that nobody else writes to, where the sum and what is sent must be of the same bytes; not
// initialized if there is no memory.
tensorflow::Tensor FrozenCopy(const tensorflow::Tensor& tensor);

// DataLoss if the tensor has not the checksum that was sent with it: names the edge by its rendezvous key,
// both checksums, how the bytes came, and what to do. Counted; the first of each edge is logged.
absl::Status Verify(const Claim& claim, const tensorflow::Tensor& tensor, int64_t step_id,
                    absl::FunctionRef<std::string()> key);
// A tensor came without one from `task`, though this end compares. The first of each task is logged.
void CountUnchecked(absl::string_view task);

std::string ChecksumsAsJson();
void ResetChecksums();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_STATS_CHECKSUM_H_
