// SPDX-License-Identifier: Apache-2.0
#include "calls/callee.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "channel/pieces.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

// More requests of one process at a time are an attack, or a loop without end.
constexpr size_t kMaxRunning = 1u << 20;
// As gRPC's server, which cuts what would not fit into its headers.
constexpr size_t kLongestText = 3072;

}  // namespace

ArrivedCall::~ArrivedCall() {
  DropTensors(callee_->channel_.get(), described_);
  if (!answered_.load()) {
    Answer(absl::InternalError(absl::StrCat(MethodName(method_), " was not answered")), {});
  }
}

const std::string& ArrivedCall::caller() const { return callee_->caller_; }

absl::Status ArrivedCall::TakeTensors() {
  const std::vector<TensorMessage> described = std::exchange(described_, {});
  return rdmatensor::TakeTensors(callee_->channel_.get(), described, true, &request_.tensors);
}

void ArrivedCall::Answer(const absl::Status& status, const CallBody& answer) {
  if (answered_.exchange(true)) return;
  callee_->Forget(number_);
  if (IsAnswered(method_)) callee_->Send(number_, status, answer);
}

bool Callee::Handle(MessageKind kind, uint64_t number, const char* data, size_t size) {
  switch (kind) {
    case MessageKind::kCall:
      // Numbers grow, so a request that came twice is refused.
      if (number <= last_ || !assembly_.Begin(number, data, size)) return false;
      last_ = number;
      break;
    case MessageKind::kMore:
      if (!assembly_.Add(number, data, size)) return false;
      break;
    case MessageKind::kCancel: {
      if (size != 0 || number > last_) return false;
      std::shared_ptr<ArrivedCall> call;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = running_.find(number);
        if (found != running_.end()) call = found->second.lock();
      }
      if (call != nullptr) {
        call->cancelled_.store(true);
        tsl::Env::Default()->SchedClosure([call] { call->options_.StartCancel(); });
      }
      return true;
    }
    case MessageKind::kSwitched:
      // Everything before it was read, and the caller waits for no answer. This fails only if the channel is down
      // already, as the caller wants it.
      (void)channel_->Notify(PackImmediate(MessageKind::kSwitched));
      return size == 0;
    default:
      return false;
  }
  return !assembly_.IsWhole() || OnRequest();
}

bool Callee::OnRequest() {
  const auto content = std::make_shared<const std::string>(assembly_.Take());
  CallMessage message;
  if (!Parse(content->data(), content->size(), &message)) return false;
  const CallTable::Entry* const entry = table_->Find(message.method);
  if (entry == nullptr) return false;
  auto call =
      std::make_shared<ArrivedCall>(shared_from_this(), last_, static_cast<Method>(message.method),
                                    content, std::move(message.tensors));
  call->request_.bytes = std::string(message.bytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (running_.size() >= kMaxRunning) return false;
    running_.emplace(last_, call);
    if (down_) call->cancelled_.store(true);
  }
  if (entry->order == CallTable::Order::kAtOnce) {
    entry->handler(std::move(call));
  } else {
    schedule_([call = std::move(call), entry] { Run(call, entry->handler); });
  }
  return true;
}

void Callee::Run(const std::shared_ptr<ArrivedCall>& call, const CallTable::Handler& handler) {
  if (call->cancelled_.load()) {
    call->Answer(absl::CancelledError("CANCELLED"), {});
    return;
  }
  if (const absl::Status taken = call->TakeTensors(); !taken.ok()) {
    call->Answer(taken, {});
    return;
  }
  handler(call);
  // It may have been cancelled before the handler said what that means.
  if (call->cancelled_.load()) call->options_.StartCancel();
}

void Callee::Send(uint64_t number, const absl::Status& status, const CallBody& answer) {
  DescribedTensors tensors(*server_, channel_.get(), answer.tensors);
  std::string text(status.message().substr(0, kLongestText));
  if (text.size() < status.message().size()) text += " ... [truncated]";
  std::vector<std::pair<std::string, std::string>> payloads;
  status.ForEachPayload([&payloads](absl::string_view name, const absl::Cord& value) {
    payloads.emplace_back(name, value);
  });
  AnswerMessage message;
  message.code = static_cast<int32_t>(status.code());
  message.text = text;
  message.payloads.assign(payloads.begin(), payloads.end());
  message.tensors = tensors.messages;
  message.bytes = answer.bytes;
  absl::Status sent;
  {
    std::lock_guard<std::mutex> sending(sending_);
    sent = SendInPieces(channel_.get(), MessageKind::kAnswer, number, message);
  }
  if (sent.ok()) return;
  tensors.TakeBack();
  if (absl::IsInvalidArgument(sent) && status.ok()) {
    Send(number, sent, {});  // it is too long
  } else {
    // If the channel is up nevertheless, the caller must not wait.
    channel_->Close();
  }
}

void Callee::Forget(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  running_.erase(number);
}

void Callee::OnDown(absl::string_view /*why*/) {
  std::vector<std::shared_ptr<ArrivedCall>> orphans;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    down_ = true;
    for (const auto& [number, weak] : running_) {
      if (auto call = weak.lock()) orphans.push_back(std::move(call));
    }
  }
  if (orphans.empty()) return;
  for (const auto& call : orphans) call->cancelled_.store(true);
  tsl::Env::Default()->SchedClosure([orphans = std::move(orphans)] {
    for (const auto& call : orphans) call->options_.StartCancel();
  });
}

}  // namespace rdmatensor
