// SPDX-License-Identifier: Apache-2.0
#include "channel/opened_channels.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rdmatensor {
namespace {

// The usable transports that are worse than this one, separated by commas.
std::string WorseThan(const rdt_device* device, const std::string& transport) {
  std::vector<std::string> names;
  rdt_transport_info info{};
  bool after = false;
  for (size_t i = 0; rdt_device_get_transport(device, i, &info) == RDT_OK; ++i) {
    if (after && info.usable) names.push_back(info.name);
    after |= transport == info.name;
  }
  return absl::StrJoin(names, ",");
}

}  // namespace

absl::StatusOr<std::shared_ptr<PeerChannel>> OpenedChannels::To(const AddressAnswer& answer) {
  std::shared_ptr<Process> process;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    absl::erase_if(processes_, [](const auto& entry) {
      // Nobody is connecting, and the channel is gone.
      return entry.second.use_count() == 1 && entry.second->channel.expired();
    });
    std::shared_ptr<Process>& known = processes_[answer.device_name];
    if (known == nullptr) {
      known = std::make_shared<Process>(std::chrono::milliseconds(server_->settings.failback_ms));
    }
    known->answer = answer;
    process = known;
  }
  std::lock_guard<std::mutex> lock(process->connecting);
  std::shared_ptr<PeerChannel> channel = Current(answer.device_name);
  const bool opens = channel == nullptr;
  absl::Status opened = opens ? Open(answer, "", &channel) : absl::OkStatus();
  // This happens before the first tensor is pushed, while RPC is still possible.
  const auto open_regions = [&] {
    return role_ == PeerChannel::Role::kReceiver ? channel->OpenAhead(answer.region_keys)
                                                 : absl::OkStatus();
  };
  if (opened.ok()) opened = open_regions();
  // Memory that one transport cannot register, for lack of locked memory for example, another can.
  while (opens && !opened.ok() && channel != nullptr && channel->IsUp()) {
    const std::string others = WorseThan(server_->device, channel->transport());
    channel->Close();
    channel.reset();
    if (!others.empty() && Open(answer, others, &channel).ok()) opened = open_regions();
  }
  if (!opened.ok()) return opened;
  if (opens) {
    std::lock_guard<std::mutex> state(mutex_);
    process->channel = channel;
    // What is better may be lost again as soon as it is found, and each loss costs a step.
    if (process->backoff.IsStable(process->replaced)) process->backoff.Reset();
    LaterLocked(process.get(), channel.get());
  }
  return channel;
}

std::shared_ptr<OpenedChannels::Process> OpenedChannels::ProcessOf(const std::string& device_name) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = processes_.find(device_name);
  return found == processes_.end() ? nullptr : found->second;
}

std::shared_ptr<PeerChannel> OpenedChannels::Current(const std::string& device_name) {
  std::shared_ptr<PeerChannel> channel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = processes_.find(device_name);
    if (found != processes_.end()) channel = found->second->channel.lock();
  }
  return channel != nullptr && !channel->refused && channel->IsUp() ? channel : nullptr;
}

void OpenedChannels::LaterLocked(Process* process, PeerChannel* channel) {
  if (!process->backoff.enabled() || *rdt_channel_better(channel->handle()) == 0) return;
  process->backoff.Failed();
  channel->ImproveAfter(process->backoff.next());
}

void OpenedChannels::ImproveLater(const std::shared_ptr<PeerChannel>& present) {
  const std::shared_ptr<Process> process = ProcessOf(present->peer_name());
  if (process == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  LaterLocked(process.get(), present.get());
}

std::shared_ptr<PeerChannel> OpenedChannels::OpenBetter(
    const std::shared_ptr<PeerChannel>& present) {
  const std::shared_ptr<Process> process = ProcessOf(present->peer_name());
  if (process == nullptr || !present->IsUp()) return nullptr;
  AddressAnswer answer;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    answer = process->answer;
  }
  std::shared_ptr<PeerChannel> better;
  absl::Status opened = Open(answer, rdt_channel_better(present->handle()), &better);
  if (opened.ok() && role_ == PeerChannel::Role::kReceiver) {
    opened = better->OpenAhead(answer.region_keys);
  }
  if (opened.ok()) return better;
  if (better != nullptr) better->Close();
  rdt_log_line(RDT_LOG_DEBUG, absl::StrCat("tensorflow: ", present->peer_name(), " stays on ",
                                           present->transport(), ": ", opened.message())
                                  .c_str());
  ImproveLater(present);
  return nullptr;
}

void OpenedChannels::Replace(const PeerChannel* present, const std::shared_ptr<PeerChannel>& next) {
  const std::shared_ptr<Process> process = ProcessOf(next->peer_name());
  if (process == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (process->channel.lock().get() != present) return;
  process->channel = next;
  process->replaced = Backoff::Clock::now();
  LaterLocked(process.get(), next.get());  // there may be a still better one
}

void OpenedChannels::CloseAll() {
  std::vector<std::shared_ptr<Process>> processes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [name, process] : processes_) processes.push_back(process);
  }
  for (const std::shared_ptr<Process>& process : processes) {
    std::lock_guard<std::mutex> lock(process->connecting);
    std::shared_ptr<PeerChannel> channel;
    {
      std::lock_guard<std::mutex> state(mutex_);
      channel = process->channel.lock();
    }
    if (channel != nullptr) channel->Close();
  }
}

absl::Status OpenedChannels::Open(const AddressAnswer& answer, const std::string& transports,
                                  std::shared_ptr<PeerChannel>* channel) const {
  rdt_channel* handle = nullptr;
  channel->reset();
  if (rdt_device_connect_to(server_->device, answer.address.c_str(), answer.device_name.c_str(),
                            transports.empty() ? nullptr : transports.c_str(),
                            server_->settings.connect_timeout_ms, &handle) != RDT_OK) {
    return absl::UnavailableError(rdt_last_error());
  }
  *channel = PeerChannel::Adopt(handle, *new_ends_, role_, true);
  return absl::OkStatus();
}

}  // namespace rdmatensor
