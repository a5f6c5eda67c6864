// SPDX-License-Identifier: Apache-2.0
#include "stats/transfer_log.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "stats/edge_waits.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {

TransferLog* TransferLog::Get() {
  static TransferLog* log = new TransferLog;
  return log;
}

void TransferLog::Add(int64_t step_id, absl::string_view key, uint64_t since, uint64_t bytes) {
  // "sending device;incarnation;receiving device;edge;frame:iteration"
  const std::vector<std::string> parts = absl::StrSplit(key, ';');
  if (parts.size() != 5) return;
  const auto end = static_cast<int64_t>(tsl::Env::Default()->NowMicros());
  // Of the clock that the other entries of the step use.
  const int64_t waited = since == 0 ? 0 : static_cast<int64_t>((WaitMoment() - since) / 1000);
  logger_.RecordRecvTensor(step_id, end - std::max<int64_t>(1, waited), end, parts[3], parts[0],
                           parts[2], static_cast<int64_t>(bytes));
}

}  // namespace rdmatensor
