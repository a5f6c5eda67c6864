// SPDX-License-Identifier: Apache-2.0
#include "channel/remote_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace rdmatensor {

absl::Status AsErrorOf(absl::string_view task, absl::string_view method,
                       const absl::Status& status) {
  absl::Status told(
      status.code(),
      absl::StrCat(status.message(), "\nAdditional GRPC error information from remote target ",
                   task, " while calling ", method, ":\n:it came over a channel of rdmatensor"));
  status.ForEachPayload(
      [&told](absl::string_view name, const absl::Cord& value) { told.SetPayload(name, value); });
  return told;
}

}  // namespace rdmatensor
