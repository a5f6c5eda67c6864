// SPDX-License-Identifier: Apache-2.0
#include "service/messages.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/message.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "xla/tsl/platform/env.h"
#include "xla/tsl/platform/status.h"

namespace rdmatensor {
namespace {

// Checks that `name` has the form "/job:worker/replica:0/task:1". State is kept for each name, so names must not
// be of any length.
constexpr size_t kLongestName = 1024;
bool NamesTask(absl::string_view name) {
  tensorflow::DeviceNameUtils::ParsedName parsed;
  return name.size() <= kLongestName && tensorflow::DeviceNameUtils::ParseFullName(name, &parsed) &&
         parsed.has_job && parsed.has_replica && parsed.has_task && !parsed.has_type &&
         !parsed.has_id;
}

bool HandleAbort(PeerChannel* channel, const char* data, size_t size) {
  StepMessage message;
  if (channel->role() != PeerChannel::Role::kReceiver || !Parse(data, size, &message)) return false;
  // absl maps numbers outside the table to kUnknown when they are read; 0 would mean success.
  if (message.code == 0) return false;
  absl::Status status(static_cast<absl::StatusCode>(message.code), message.text);
  if (message.derived) status = tsl::StatusGroup::MakeDerived(status);
  for (const auto& source : channel->Sources()) source->OnStepAbort(message.step_id, status);
  return true;
}

bool HandleReady(PeerTable* peers, PeerChannel* channel, const char* data, size_t size) {
  ReadyMessage message;
  if (channel->role() != PeerChannel::Role::kSender || !Parse(data, size, &message) ||
      message.version != kProtocolVersion || !NamesTask(message.task) ||
      message.session.size() > kLongestName) {
    return false;
  }
  const std::shared_ptr<Destination> destination = peers->DestinationOf(message.task);
  if (!channel->AddDestination(destination)) return false;
  channel->offers().BindAll();
  channel->asked_bytes = 0;
  peers->OnAnnounced();
  rdt_log_line(RDT_LOG_DEBUG, absl::StrCat("tensorflow: ", channel->peer_name(), " receives as ",
                                           message.task, " in session '", message.session, "'")
                                  .c_str());
  return destination->Attach(channel->Shared(), message.session, std::exchange(channel->asked, {}));
}

bool HandleCaller(const NewCallee* new_callee, PeerChannel* channel, const char* data,
                  size_t size) {
  ReadyMessage message;
  return new_callee != nullptr && Parse(data, size, &message) &&
         message.version == kProtocolVersion && NamesTask(message.task) &&
         channel->BecomeCallee((*new_callee)(channel->Shared(), message.task));
}

bool HandleContested(PeerChannel* channel, const char* data, size_t size) {
  ReadyMessage message;
  if (channel->role() != PeerChannel::Role::kReceiver || !Parse(data, size, &message)) return false;
  for (const auto& source : channel->Sources()) {
    if (source->session() == message.session && source->receiver() == message.task) {
      source->OnContested(channel);
    }
  }
  return true;
}

bool HandleSource(PeerTable* peers, PeerChannel* channel, const char* data, size_t size) {
  SourceMessage message;
  if (!Parse(data, size, &message) || message.self.version != kProtocolVersion ||
      !NamesTask(message.receiver) || !NamesTask(message.sender) ||
      message.session.size() > kLongestName || message.self.incarnations.empty() ||
      !channel->BecomeReceiver() || !channel->AddAnnounced(message.receiver, message.sender)) {
    return false;
  }
  const auto source = peers->SourceOf({message.session, message.receiver, message.sender});
  tsl::Env::Default()->SchedClosure(
      [source, opened = channel->Shared(), self = std::move(message.self)] {
        source->OnOpened(opened, self);
      });
  return true;
}

bool HandleAsked(PeerChannel* channel, const char* data, size_t size) {
  StepMessage message;
  if (channel->role() != PeerChannel::Role::kSender || !Parse(data, size, &message)) return false;
  channel->asked_bytes += AskedBytes(message.text);
  if (channel->asked_bytes > kMaxAskedBytes) return false;
  channel->asked.emplace_back(message.step_id, message.text);
  return true;
}

// The replacement of a channel; see channel_move.h.
bool HandleMove(PeerChannel* channel, MessageKind kind, uint64_t number) {
  const bool receives = channel->role() == PeerChannel::Role::kReceiver;
  const bool sends = channel->role() == PeerChannel::Role::kSender;
  const std::shared_ptr<Replacement> move = receives ? channel->move() : nullptr;
  switch (kind) {
    case MessageKind::kPause:
      if (sends) channel->Pause(number);
      return sends;
    case MessageKind::kResume:
      if (sends) channel->Resume();
      return sends;
    case MessageKind::kTaken:
      channel->Succeed();
      return sends;
    case MessageKind::kPaused:
      // An attempt may be over before its answer comes.
      if (move != nullptr) move->OnPaused(number);
      return receives;
    default:
      if (sends) channel->OnLeft(number);
      if (move != nullptr) move->OnLeft();
      return sends || receives;
  }
}

bool HandleLost(PeerChannel* channel, const char* data, size_t size) {
  StepMessage message;
  if (channel->role() != PeerChannel::Role::kReceiver || !Parse(data, size, &message)) return false;
  for (const auto& source : channel->Sources()) {
    source->OnLost(message.step_id, KeyId::Of(message.text));
  }
  return true;
}

bool HandleAnswered(PeerChannel* channel, const char* data, size_t size) {
  StepMessage message;
  const auto destinations = channel->Destinations();
  if (destinations.empty() || !Parse(data, size, &message)) return false;
  for (const auto& destination : destinations) {
    destination->OnAnswered(channel, message.step_id, message.text);
  }
  return true;
}

}  // namespace

bool HandleMessage(PeerTable* peers, const NewCallee* new_callee, PeerChannel* channel,
                   uint64_t immediate, const char* data, size_t size) {
  const MessageKind kind = ImmediateKind(immediate);
  const uint64_t value = ImmediateValue(immediate);
  switch (kind) {
    case MessageKind::kTensor:
      return channel->role() == PeerChannel::Role::kReceiver &&
             channel->reception().HandleTensor(data, size);
    case MessageKind::kReferral:
      return channel->role() == PeerChannel::Role::kReceiver &&
             channel->reception().HandleReferral(data, size);
    case MessageKind::kReady:
      return HandleReady(peers, channel, data, size);
    case MessageKind::kRelease:
      return channel->lender().Release(value);
    case MessageKind::kAbort:
      return HandleAbort(channel, data, size);
    case MessageKind::kAsked:
      return HandleAsked(channel, data, size);
    case MessageKind::kAnswered:
      return HandleAnswered(channel, data, size);
    case MessageKind::kLost:
      return HandleLost(channel, data, size);
    case MessageKind::kContested:
      return HandleContested(channel, data, size);
    case MessageKind::kSource:
      return HandleSource(peers, channel, data, size);
    case MessageKind::kCaller:
      return HandleCaller(new_callee, channel, data, size);
    case MessageKind::kCall:
    case MessageKind::kAnswer:
    case MessageKind::kMore:
    case MessageKind::kCancel: {
      const std::shared_ptr<CallEnd> end = channel->call_end();
      return end != nullptr && end->Handle(kind, value, data, size);
    }
    // Receiver to sender.
    case MessageKind::kOffer:
      return channel->role() == PeerChannel::Role::kSender &&
             channel->offers().TakePiece(value, data, size);
    case MessageKind::kWithdraw:
      return channel->role() == PeerChannel::Role::kSender && channel->offers().Withdraw(value);
    // Sender to receiver.
    case MessageKind::kWithdrawn:
      if (channel->role() != PeerChannel::Role::kReceiver ||
          !channel->places().Handle(kind, value, data, size)) {
        return false;
      }
      channel->AdvanceMove();
      return true;
    case MessageKind::kAccept:
    case MessageKind::kPlanned:
      return channel->role() == PeerChannel::Role::kReceiver &&
             channel->places().Handle(kind, value, data, size);
    case MessageKind::kPause:
    case MessageKind::kPaused:
    case MessageKind::kResume:
    case MessageKind::kTaken:
      return HandleMove(channel, kind, value);
    case MessageKind::kLeft: {
      const std::shared_ptr<CallEnd> end = channel->call_end();
      return end != nullptr ? end->Handle(kind, value, data, size)
                            : HandleMove(channel, kind, value);
    }
  }
  return false;
}

}  // namespace rdmatensor
