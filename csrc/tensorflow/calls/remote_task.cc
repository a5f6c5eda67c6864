// SPDX-License-Identifier: Apache-2.0
#include "calls/remote_task.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "calls/may_block.h"
#include "channel/message.h"
#include "channel/task_call.h"
#include "stats/control_stats.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {

RemoteTask::RemoteTask(TensorService* service, Schedule schedule, std::string task,
                       std::shared_ptr<tensorflow::WorkerCacheInterface> cluster)
    : service_(service),
      schedule_(std::move(schedule)),
      task_(std::move(task)),
      cluster_(std::move(cluster)),
      backoff_(Backoff::Milliseconds(service->settings().failback_ms)) {}

std::shared_ptr<Calls> RemoteTask::Ready() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (reached_) {
      bool may_improve = false;
      if (std::shared_ptr<Calls> calls = ReachedLocked(&may_improve)) {
        lock.unlock();
        if (may_improve) {
          tsl::Env::Default()->SchedClosure(
              [self = shared_from_this(), calls] { self->Improve(calls); });
        }
        return calls;
      }
      reached_ = false;
      RecordControl(task_, ControlWay::kGrpc, "its channel was lost");
    }
    if (connecting_ || given_up_ || !backoff_.Due()) return nullptr;
    connecting_ = true;
  }
  tsl::Env::Default()->SchedClosure([self = shared_from_this()] { self->Ask(); });
  return nullptr;
}

std::shared_ptr<Calls> RemoteTask::ReachedLocked(bool* may_improve) {
  std::shared_ptr<Calls> calls = calls_.lock();
  if (calls == nullptr || !calls->IsUp() || calls->is_leaving()) {
    // Another cluster of this process may have found a better channel.
    const std::shared_ptr<PeerChannel> current = service_->to_callees().Current(device_name_);
    const auto better =
        current != nullptr ? std::dynamic_pointer_cast<Calls>(current->call_end()) : nullptr;
    if (better != nullptr && better != calls && better->IsUp()) {
      calls_ = calls = better;
      RecordControl(task_, ControlWay::kChannel, calls->transport());
    }
    if (calls == nullptr || !calls->IsUp()) return nullptr;
  }
  *may_improve = calls->channel()->MayImprove();
  return calls;
}

std::shared_ptr<Calls> RemoteTask::CallsOver(const std::shared_ptr<PeerChannel>& channel) {
  const std::shared_ptr<ChannelEnd> end =
      channel->SetCallEnd(std::make_shared<Calls>(&service_->server(), channel, schedule_));
  // It may have gone down before it had an end.
  if (end != nullptr && !channel->IsUp()) end->OnDown("it ended as it began");
  auto calls = std::dynamic_pointer_cast<Calls>(end);
  return calls != nullptr && calls->IsUp() ? calls : nullptr;
}

void RemoteTask::Improve(const std::shared_ptr<Calls>& present) {
  OpenedChannels& opened = service_->to_callees();
  const std::shared_ptr<PeerChannel> better = opened.OpenBetter(present->channel());
  if (better == nullptr) return;
  if (CallsOver(better) == nullptr) {
    opened.ImproveLater(present->channel());
    return;
  }
  opened.Replace(present->channel().get(), better);
  present->Leave();
}

void RemoteTask::Find(Found found) {
  if (const std::shared_ptr<Calls> calls = Ready()) {
    found(calls);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(std::move(found));
    if (std::exchange(connecting_, true)) return;
  }
  RunWhereItMayBlock([self = shared_from_this()] { self->Ask(); });
}

void RemoteTask::AskOverGrpc(const char* key, const std::string& question,
                             std::function<void()> done) {
  AskTask(cluster_.get(), task_, service_->task(), key, question,
          service_->settings().connect_timeout_ms,
          [self = shared_from_this(), done = std::move(done)](const absl::StatusOr<std::string>&) {
            // As in Ask.
            RunWhereItMayBlock([self, done] { done(); });
          });
}

void RemoteTask::Ask() {
  AskTask(cluster_.get(), task_, service_->task(), kAddressKey, "",
          service_->settings().connect_timeout_ms,
          [self = shared_from_this()](const absl::StatusOr<std::string>& encoded) mutable {
            // What follows blocks, this thread belongs to TensorFlow's RPC, and the last reference to the cluster
            // must not be dropped on it.
            tsl::Env::Default()->SchedClosure(
                [self = std::move(self), encoded] { self->OnAddress(encoded); });
          });
}

absl::StatusOr<std::shared_ptr<Calls>> RemoteTask::Connect(
    const absl::StatusOr<std::string>& encoded) {
  if (!encoded.ok()) {
    return absl::IsUnavailable(encoded.status()) || absl::IsDeadlineExceeded(encoded.status())
               ? absl::UnavailableError("it does not answer")
               : absl::UnavailableError("its server has no grpc+rdma");
  }
  AddressAnswer answer;
  if (!Parse(*encoded, &answer)) return absl::UnavailableError("its answer is malformed");
  if (answer.version != kProtocolVersion) {
    return absl::UnavailableError(absl::StrCat("it speaks version ", answer.version,
                                               " of the plugin's protocol, this process version ",
                                               kProtocolVersion));
  }
  if (answer.address.empty()) return absl::UnavailableError("its server has no device");
  absl::StatusOr<std::shared_ptr<PeerChannel>> channel = service_->to_callees().To(answer);
  if (!channel.ok()) return channel.status();
  if (std::shared_ptr<Calls> calls = CallsOver(*channel)) return calls;
  return absl::UnavailableError("it ended as it began");
}

void RemoteTask::OnAddress(const absl::StatusOr<std::string>& encoded) {
  absl::StatusOr<std::shared_ptr<Calls>> calls = Connect(encoded);
  std::vector<Found> waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    connecting_ = false;
    waiting.swap(waiting_);
    if (calls.ok()) {
      calls_ = *calls;
      device_name_ = (*calls)->channel()->peer_name();
      reached_ = true;
      backoff_.Reset();
      RecordControl(task_, ControlWay::kChannel, (*calls)->transport());
    } else {
      backoff_.Failed();
      given_up_ = !backoff_.enabled();
      RecordControl(task_, ControlWay::kGrpc, calls.status().message());
    }
  }
  // To those who wait a task that does not answer fails in the words of TensorFlow's client.
  if (!encoded.ok() && absl::IsUnavailable(encoded.status())) calls = encoded.status();
  for (const Found& found : waiting) found(calls);
}

}  // namespace rdmatensor
