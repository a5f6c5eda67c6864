// SPDX-License-Identifier: Apache-2.0
//
// Short messages about steps and names. Where no status is returned, a channel that is down needs no word.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_NOTICES_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_NOTICES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "channel/channel.h"
#include "channel/message.h"

namespace rdmatensor {

// kUseRpc, kRpcPending, kRpcDone, kLost.
absl::Status TellOfKey(Channel* channel, MessageKind kind, int64_t step_id, absl::string_view key);
// kAbort: the step failed here.
void TellFailure(Channel* channel, int64_t step_id, const absl::Status& status);
// kReady, kContested.
absl::Status TellOfName(Channel* channel, MessageKind kind, const std::string& session,
                        const std::string& task);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_NOTICES_H_
