// SPDX-License-Identifier: Apache-2.0
//
// Who sends to a server and who receives from it, for those who need to know no more of its peers.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_PEERS_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_PEERS_H_

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"

namespace rdmatensor {

class OfferedPlaces;

// Thread-safe.
class Peers {
 public:
  // The places offered over the channels from a task that any session calls `task`, once for each channel.
  virtual std::vector<std::shared_ptr<OfferedPlaces>> PlacesFrom(absl::string_view task) = 0;

 protected:
  ~Peers() = default;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_PEERS_H_
