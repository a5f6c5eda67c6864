// SPDX-License-Identifier: Apache-2.0
#include "server/driver.h"

#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "channel/task_call.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

constexpr int64_t kBetweenAttemptsUs = 50000;

absl::Status OpenChannel(TensorService* service, const std::string& session,
                         const std::shared_ptr<tensorflow::WorkerCacheInterface>& workers,
                         const std::string& task, const AddressAnswer& self,
                         std::chrono::milliseconds patience) {
  const int timeout_ms = service->settings().connect_timeout_ms;
  const auto end = std::chrono::steady_clock::now() + patience;
  absl::StatusOr<std::string> encoded;
  for (;;) {
    encoded = AskTask(workers.get(), task, service->task(), kAddressKey, "", timeout_ms);
    if (!absl::IsUnavailable(encoded.status()) || std::chrono::steady_clock::now() >= end) break;
    tsl::Env::Default()->SleepForMicroseconds(kBetweenAttemptsUs);
  }
  if (!encoded.ok()) return encoded.status();
  AddressAnswer answer;
  if (!Parse(*encoded, &answer) || answer.version != kProtocolVersion || answer.address.empty()) {
    return absl::FailedPreconditionError(
        "its server has no device, or another version of the plugin");
  }
  absl::StatusOr<std::shared_ptr<PeerChannel>> channel = service->to_receivers().To(answer);
  if (!channel.ok()) return channel.status();
  const std::shared_ptr<Receiver> receiver = service->peers().ReceiverOf(task);
  receiver->SetOwner(session, nullptr, answer.device_name);
  SourceMessage message;
  message.session = session;
  message.receiver = task;
  message.sender = service->task();
  message.self = self;
  const absl::Status sent = (*channel)->NotifyMessage(PackImmediate(MessageKind::kSource), message);
  if (!sent.ok()) return sent;
  if (receiver->AwaitChannel(session, **channel, timeout_ms)) return absl::OkStatus();
  if (!(*channel)->IsUp()) return absl::UnavailableError("the channel to it was lost as it began");
  return absl::DeadlineExceededError(
      absl::StrCat("it did not say within ", timeout_ms,
                   " ms that it takes tensors from the channel; its log says why"));
}

}  // namespace

std::vector<std::string> OtherTasks(const tensorflow::ServerDef& server_def,
                                    const std::string& self) {
  std::vector<std::string> tasks;
  for (const tensorflow::JobDef& job : server_def.cluster().job()) {
    for (const auto& entry : job.tasks()) {
      std::string task = absl::StrCat("/job:", job.name(), "/replica:", server_def.replica(),
                                      "/task:", entry.first);
      if (task != self) tasks.push_back(std::move(task));
    }
  }
  return tasks;
}

absl::Status OpenChannels(TensorService* service, const std::string& session,
                          const std::shared_ptr<tensorflow::WorkerCacheInterface>& workers,
                          const std::vector<std::string>& tasks, const AddressAnswer& self,
                          std::chrono::milliseconds patience) {
  absl::BlockingCounter left(static_cast<int>(tasks.size()));
  std::mutex mutex;
  absl::Status failed;
  for (const std::string& task : tasks) {
    tsl::Env::Default()->SchedClosure([&, task] {
      const absl::Status opened = OpenChannel(service, session, workers, task, self, patience);
      if (!opened.ok()) {
        std::lock_guard<std::mutex> lock(mutex);
        failed.Update(absl::Status(opened.code(), absl::StrCat(task, ": ", opened.message())));
      }
      left.DecrementCount();
    });
  }
  left.Wait();
  return failed;
}

}  // namespace rdmatensor
