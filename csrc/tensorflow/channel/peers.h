// SPDX-License-Identifier: Apache-2.0
//
// Who sends to a server and who receives from it, for those who need to know no more of its peers.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_PEERS_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_PEERS_H_

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"

namespace rdmatensor {

class ChannelReceiver;
class ChannelSender;
class OfferedPlaces;

// The names under which one task receives from another in one session. Points into longer-lived names.
struct PeerNames {
  absl::string_view session;           // empty: the sessions that use the servers' own cluster
  absl::string_view receiver, sender;  // tasks: "/job:worker/replica:0/task:1"
};

// Thread-safe.
class Peers {
 public:
  // The sender that a peer announces by these names.
  virtual std::shared_ptr<ChannelSender> FindSender(const PeerNames& names) = 0;
  // The receiver that a peer announces by this name.
  virtual std::shared_ptr<ChannelReceiver> FindReceiver(absl::string_view task) = 0;
  // The places offered over the channels from a task that any session calls `task`, once for each channel.
  virtual std::vector<std::shared_ptr<OfferedPlaces>> PlacesFrom(absl::string_view task) = 0;

 protected:
  ~Peers() = default;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_PEERS_H_
