// SPDX-License-Identifier: Apache-2.0
//
// The channels that this server opened: one to each process, whatever sessions call it.
#ifndef RDMATENSOR_TENSORFLOW_PEER_OPENED_CHANNELS_H_
#define RDMATENSOR_TENSORFLOW_PEER_OPENED_CHANNELS_H_

#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "peer/peer_channel.h"
#include "step/mailbox.h"
#include "wire/host.h"
#include "wire/message.h"

namespace rdmatensor {

// Thread-safe.
class OpenedChannels {
 public:
  // This process will be that end of them.
  OpenedChannels(const Host* host, MailboxTable* mailboxes, PeerChannel::Role role)
      : host_(host), mailboxes_(mailboxes), role_(role) {}

  // The channel to the process that gave this answer, opened if there is none that is up. Blocks, for
  // CONNECT_TIMEOUT_MS at most, or twice that behind another caller's attempt.
  absl::StatusOr<std::shared_ptr<PeerChannel>> To(const AddressAnswer& answer);

 private:
  struct Process {
    std::mutex connecting;
    std::weak_ptr<PeerChannel> channel;
  };
  absl::Status Open(const AddressAnswer& answer, std::shared_ptr<PeerChannel>* channel) const;

  const Host* const host_;
  MailboxTable* const mailboxes_;
  const PeerChannel::Role role_;
  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Process>> processes_;  // by their devices' names
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_PEER_OPENED_CHANNELS_H_
