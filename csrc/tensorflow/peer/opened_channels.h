// SPDX-License-Identifier: Apache-2.0
//
// The channels that this server opened. There is one for each process, whatever sessions call it.
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
  // `role` is this process's end of all these channels.
  OpenedChannels(const Host* host, MailboxTable* mailboxes, PeerChannel::Role role)
      : host_(host), mailboxes_(mailboxes), role_(role) {}

  // Returns the channel to the process that gave this answer, and opens one if none is up. Blocks for
  // CONNECT_TIMEOUT_MS at most, or for twice as long if another caller is connecting.
  absl::StatusOr<std::shared_ptr<PeerChannel>> To(const AddressAnswer& answer);
  // Closes those that are up.
  void CloseAll();

 private:
  struct Process {
    std::mutex connecting;
    std::weak_ptr<PeerChannel> channel;
  };
  // Over one of `transports`, or any if that is empty. nullptr after an error.
  absl::Status Open(const AddressAnswer& answer, const std::string& transports,
                    std::shared_ptr<PeerChannel>* channel) const;

  const Host* const host_;
  MailboxTable* const mailboxes_;
  const PeerChannel::Role role_;
  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Process>> processes_;  // by their devices' names
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_PEER_OPENED_CHANNELS_H_
