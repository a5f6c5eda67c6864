// SPDX-License-Identifier: Apache-2.0
#include "peer/opened_channels.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace rdmatensor {

absl::StatusOr<std::shared_ptr<PeerChannel>> OpenedChannels::To(const AddressAnswer& answer) {
  std::shared_ptr<Process> process;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    absl::erase_if(processes_, [](const auto& entry) {
      // Nobody is connecting, and the channel is gone.
      return entry.second.use_count() == 1 && entry.second->channel.expired();
    });
    std::shared_ptr<Process>& known = processes_[answer.device_name];
    if (known == nullptr) known = std::make_shared<Process>();
    process = known;
  }
  std::lock_guard<std::mutex> lock(process->connecting);
  std::shared_ptr<PeerChannel> channel = process->channel.lock();
  const bool opens = channel == nullptr || channel->refused || !channel->IsUp();
  if (opens) {
    channel.reset();
    if (absl::Status opened = Open(answer, &channel); !opened.ok()) return opened;
    process->channel = channel;
  }
  if (role_ != PeerChannel::Role::kReceiver) return channel;
  // This happens before the first tensor is pushed, while RPC is still possible.
  if (absl::Status opened = channel->OpenAhead(answer.region_keys); !opened.ok()) {
    if (opens) channel->Close();
    return opened;
  }
  return channel;
}

void OpenedChannels::CloseAll() {
  std::vector<std::shared_ptr<Process>> processes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [name, process] : processes_) processes.push_back(process);
  }
  for (const std::shared_ptr<Process>& process : processes) {
    std::lock_guard<std::mutex> lock(process->connecting);
    if (const auto channel = process->channel.lock()) channel->Close();
  }
}

absl::Status OpenedChannels::Open(const AddressAnswer& answer,
                                  std::shared_ptr<PeerChannel>* channel) const {
  rdt_channel* handle = nullptr;
  if (rdt_device_connect(host_->device, answer.address.c_str(), host_->settings.connect_timeout_ms,
                         &handle) != RDT_OK) {
    return absl::UnavailableError(rdt_last_error());
  }
  *channel = PeerChannel::Adopt(handle, host_, mailboxes_, role_, true);
  if ((*channel)->peer_name() == answer.device_name) return absl::OkStatus();
  (*channel)->Close();
  return absl::UnavailableError(
      absl::StrCat(answer.address, " is ", (*channel)->peer_name(), " as seen from here, not ",
                   answer.device_name,
                   ": it told an address that leads elsewhere from here; set "
                   "RDMATENSOR_BIND_ADDRESS there to one that this host reaches"));
}

}  // namespace rdmatensor
