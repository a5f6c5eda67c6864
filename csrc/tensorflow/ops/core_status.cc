// SPDX-License-Identifier: Apache-2.0
#include "ops/core_status.h"

#include "absl/strings/str_cat.h"

namespace rdmatensor {
namespace {

absl::StatusCode CodeOf(rdt_status status) {
  switch (status) {
    case RDT_ERR_DEADLINE:
      return absl::StatusCode::kDeadlineExceeded;
    case RDT_ERR_CANCELLED:
    case RDT_ERR_CLOSED:
      return absl::StatusCode::kCancelled;
    case RDT_ERR_CONNECTION_LOST:
    case RDT_ERR_UNREACHABLE:
      return absl::StatusCode::kAborted;  // TensorFlow turns kUnavailable into an internal error
    case RDT_ERR_INVALID:
    case RDT_ERR_PROTOCOL:
    case RDT_ERR_RANGE:
      return absl::StatusCode::kInvalidArgument;
    case RDT_ERR_NO_MEMORY:
    case RDT_ERR_LIMIT:
      return absl::StatusCode::kResourceExhausted;
    case RDT_ERR_CORRUPTED:
      return absl::StatusCode::kDataLoss;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status StatusOf(rdt_status status, const std::string& name) {
  return absl::Status(CodeOf(status), absl::StrCat("rdmatensor: ", name, ": ", rdt_last_error()));
}

}  // namespace rdmatensor
