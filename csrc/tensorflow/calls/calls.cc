// SPDX-License-Identifier: Apache-2.0
#include "calls/calls.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "channel/notices.h"
#include "channel/pieces.h"
#include "channel/remote_error.h"
#include "xla/tsl/platform/env.h"
#include "xla/tsl/platform/status.h"

namespace rdmatensor {
namespace {

absl::Status StatusOf(const AnswerMessage& answer) {
  if (answer.code == 0) return absl::OkStatus();
  absl::Status status(static_cast<absl::StatusCode>(answer.code), answer.text);
  for (const auto& [name, value] : answer.payloads) status.SetPayload(name, absl::Cord(value));
  return status;
}

}  // namespace

bool Calls::Call(Method method, const std::string& task, const CallBody& request,
                 tsl::CallOptions* options, DoneRuns runs, Done* done) {
  DescribedTensors tensors(*server_, channel_.get(), request.tensors);
  CallMessage message;
  message.method = static_cast<uint8_t>(method);
  message.tensors = tensors.messages;
  message.bytes = request.bytes;
  const int64_t timeout_ms = options != nullptr ? options->GetTimeout() : 0;
  std::lock_guard<std::mutex> sending(sending_);
  uint64_t number = 0;
  {
    // The answer may come before sending returns.
    std::lock_guard<std::mutex> lock(mutex_);
    if (!down_) {
      number = ++last_;
      pending_.emplace(number, Pending{method, task, options, runs, std::move(*done)});
    }
  }
  if (number == 0) {
    tensors.TakeBack();
    return false;
  }
  if (options != nullptr) {
    options->SetCancelCallback([self = weak_from_this(), number] {
      if (auto calls = self.lock()) calls->EndSoon(number, absl::CancelledError("CANCELLED"));
    });
  }
  std::optional<Deadlines::Id> deadline;
  if (timeout_ms > 0) {
    deadline = Deadlines::Get()->Add(
        Deadlines::Clock::now() + std::chrono::milliseconds(timeout_ms),
        [self = weak_from_this(), number] {
          if (auto calls = self.lock()) {
            calls->EndSoon(number, absl::DeadlineExceededError("Deadline Exceeded"));
          }
        });
  }
  const absl::Status sent = Send(number, message);
  if (!sent.ok()) tensors.TakeBack();
  std::optional<Pending> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = pending_.find(number);
    if (found == pending_.end()) {
      // It was answered.
      if (deadline.has_value()) Deadlines::Get()->Remove(*deadline);
      return true;
    }
    found->second.deadline = deadline;
    found->second.is_sending = false;
    if (sent.ok() && found->second.early.ok()) return true;
    ended = std::move(found->second);
    pending_.erase(found);
    if (sent.ok()) unawaited_.insert(number);
  }
  if (!sent.ok() && !absl::IsCancelled(ended->early) && !absl::IsDeadlineExceeded(ended->early)) {
    if (deadline.has_value()) Deadlines::Get()->Remove(*deadline);
    if (options != nullptr) options->ClearCancelCallback();
    *done = std::move(ended->done);
    return false;
  }
  if (sent.ok()) SendCancel(number);
  FailSoon(*std::move(ended));
  return true;
}

bool Calls::Tell(Method method, const CallBody& request) {
  CallMessage message;
  message.method = static_cast<uint8_t>(method);
  message.bytes = request.bytes;
  std::lock_guard<std::mutex> sending(sending_);
  uint64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!down_) number = ++last_;
  }
  return number != 0 && Send(number, message).ok();
}

absl::Status Calls::Send(uint64_t number, const CallMessage& message) {
  if (!introduced_) {
    const absl::Status sent = TellOfName(channel_.get(), MessageKind::kCaller, "", server_->task);
    if (!sent.ok()) return sent;
    introduced_ = true;
  }
  return SendInPieces(channel_.get(), MessageKind::kCall, number, message);
}

void Calls::SendCancel(uint64_t number) {
  // If the channel is down, so is the request.
  (void)NotifyOfCall(channel_.get(), MessageKind::kCancel, number, 0, [](char*) {});
}

std::optional<Calls::Pending> Calls::Take(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = pending_.find(number);
  if (found == pending_.end()) {
    unawaited_.erase(number);
    return std::nullopt;
  }
  std::optional<Pending> call(std::move(found->second));
  pending_.erase(found);
  return call;
}

void Calls::Finish(const Pending& call, const absl::Status& status, CallBody answer) {
  if (call.deadline.has_value()) Deadlines::Get()->Remove(*call.deadline);
  // Waits for a cancellation that is under way, which only schedules.
  if (call.options != nullptr) call.options->ClearCancelCallback();
  absl::Status told = status;
  if (!status.ok()) told = AsErrorOf(call.task, MethodName(call.method), status);
  if (absl::IsCancelled(told)) told = tsl::StatusGroup::MakeDerived(told);
  call.done(told, std::move(answer));
}

void Calls::FailSoon(Pending call) {
  // The options' lock may be held here, and the caller of `done` must not wait for itself.
  tsl::Env::Default()->SchedClosure([call = std::move(call)] { Finish(call, call.early, {}); });
}

void Calls::EndSoon(uint64_t number, const absl::Status& status) {
  std::optional<Pending> call;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = pending_.find(number);
    if (found == pending_.end()) return;
    found->second.early.Update(status);
    if (found->second.is_sending) return;
    call = std::move(found->second);
    pending_.erase(found);
    unawaited_.insert(number);
  }
  tsl::Env::Default()->SchedClosure([self = shared_from_this(), number, call = *std::move(call)] {
    {
      std::lock_guard<std::mutex> sending(self->sending_);
      self->SendCancel(number);
    }
    Finish(call, call.early, {});
  });
}

void Calls::Leave() {
  leaving_.store(true);
  LeaveIfIdle();
}

void Calls::LeaveIfIdle() {
  {
    std::lock_guard<std::mutex> sending(sending_);
    std::lock_guard<std::mutex> lock(mutex_);
    if (down_ || !pending_.empty() || !unawaited_.empty() || finishing_.load() > 0) return;
    down_ = true;
  }
  // The peer answers once it has read everything that was told before.
  if (!channel_->Notify(PackImmediate(MessageKind::kSwitched)).ok()) channel_->Close();
}

void Calls::OnFinished() {
  finishing_.fetch_sub(1);
  // Not here: a thread that sends may hold the lock for long.
  if (leaving_.load()) {
    tsl::Env::Default()->SchedClosure([self = shared_from_this()] { self->LeaveIfIdle(); });
  }
}

bool Calls::Handle(MessageKind kind, uint64_t number, const char* data, size_t size) {
  if (kind == MessageKind::kSwitched) {
    if (is_leaving()) channel_->Close();
    return is_leaving();
  }
  if (kind == MessageKind::kAnswer) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!pending_.contains(number) && !unawaited_.contains(number)) return false;
    }
    answered_ = number;
    if (!assembly_.Begin(number, data, size)) return false;
  } else if (kind != MessageKind::kMore || !assembly_.Add(number, data, size)) {
    return false;
  }
  return !assembly_.IsWhole() || OnAnswer();
}

bool Calls::OnAnswer() {
  const auto content = std::make_shared<const std::string>(assembly_.Take());
  AnswerMessage answer;
  if (!Parse(content->data(), content->size(), &answer)) return false;
  finishing_.fetch_add(1);
  std::optional<Pending> call = Take(answered_);
  if (!call.has_value()) {
    DropTensors(channel_.get(), answer.tensors);
    OnFinished();
    return true;
  }
  const bool here = call->runs == DoneRuns::kAnywhere && AllInline(answer.tensors);
  auto finish = [self = shared_from_this(), content, call = *std::move(call),
                 answer = std::move(answer)] {
    CallBody body;
    absl::Status status = StatusOf(answer);
    if (status.ok()) {
      body.bytes = std::string(answer.bytes);
      // The program may write to what it gets, so it is not borrowed.
      status = TakeTensors(self->channel_.get(), answer.tensors, false, &body.tensors);
      if (!status.ok()) body = {};
    } else {
      DropTensors(self->channel_.get(), answer.tensors);
    }
    self->OnFinished();
    Finish(call, status, std::move(body));
  };
  if (here) {
    finish();
  } else {
    schedule_(std::move(finish));
  }
  return true;
}

void Calls::OnDown(absl::string_view why) {
  const absl::Status status = absl::UnavailableError(
      absl::StrCat("rdmatensor: the connection was lost during the call: ", why));
  std::vector<Pending> lost;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    down_ = true;
    for (auto& [number, call] : pending_) {
      call.early.Update(status);
      if (!call.is_sending) lost.push_back(std::move(call));
    }
    absl::erase_if(pending_, [](const auto& entry) { return !entry.second.is_sending; });
  }
  if (lost.empty()) return;
  tsl::Env::Default()->SchedClosure([lost = std::move(lost)] {
    for (const Pending& call : lost) Finish(call, call.early, {});
  });
}

}  // namespace rdmatensor
