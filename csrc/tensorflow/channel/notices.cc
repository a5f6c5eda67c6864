// SPDX-License-Identifier: Apache-2.0
#include "channel/notices.h"

#include <algorithm>
#include <cstddef>

#include "xla/tsl/platform/status.h"

namespace rdmatensor {

absl::Status TellOfKey(Channel* channel, MessageKind kind, int64_t step_id, absl::string_view key) {
  StepMessage message;
  message.step_id = step_id;
  message.text = key;
  return channel->NotifyMessage(PackImmediate(kind), message);
}

void TellFailure(Channel* channel, int64_t step_id, const absl::Status& status) {
  StepMessage message;
  message.step_id = step_id;
  message.code = static_cast<int32_t>(status.code());
  message.derived = tsl::StatusGroup::IsDerived(status);
  // A status may quote whole graphs; the beginning says what happened.
  constexpr size_t kLongestText = 2048;
  const size_t room = channel->max_notify() > EncodedSize(message)
                          ? static_cast<size_t>(channel->max_notify()) - EncodedSize(message)
                          : 0;
  message.text = status.message().substr(0, std::min(kLongestText, room));
  (void)channel->NotifyMessage(PackImmediate(MessageKind::kAbort), message);
}

absl::Status TellOfName(Channel* channel, MessageKind kind, const std::string& session,
                        const std::string& task) {
  ReadyMessage message;
  message.session = session;
  message.task = task;
  return channel->NotifyMessage(PackImmediate(kind), message);
}

}  // namespace rdmatensor
