// SPDX-License-Identifier: Apache-2.0
//
// The channels that this server opened. There is one for each process, whatever sessions call it.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_OPENED_CHANNELS_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_OPENED_CHANNELS_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/backoff.h"
#include "channel/message.h"
#include "channel/peer_channel.h"
#include "channel/server_context.h"

namespace rdmatensor {

// Thread-safe.
class OpenedChannels {
 public:
  // `role` is this process's end of all these channels.
  OpenedChannels(const ServerContext* server, const PeerChannel::NewEnds* new_ends,
                 PeerChannel::Role role)
      : server_(server), new_ends_(new_ends), role_(role) {}

  // Returns the channel to the process that gave this answer, and opens one if none is up. Blocks for
  // DEADLINE_MS at most, or for twice as long if another caller is connecting.
  absl::StatusOr<std::shared_ptr<PeerChannel>> To(const AddressAnswer& answer);
  // The channel to the process whose device has this name, or nullptr. Never blocks.
  std::shared_ptr<PeerChannel> Current(const std::string& device_name);
  // Opens another channel to the same process over a transport that is better than that of `present`, or returns
  // nullptr; then `present` says when to try again. Blocks, as To.
  std::shared_ptr<PeerChannel> OpenBetter(const std::shared_ptr<PeerChannel>& present);
  // Returns `next` instead of `present` from now on.
  void Replace(const PeerChannel* present, const std::shared_ptr<PeerChannel>& next);
  // Says when `present` may be improved again: something went wrong.
  void ImproveLater(const std::shared_ptr<PeerChannel>& present);
  // Closes those that are up.
  void CloseAll();

 private:
  struct Process {
    explicit Process(std::chrono::milliseconds failback) : backoff(failback) {}
    std::mutex connecting;
    // The owner's lock guards what follows.
    std::weak_ptr<PeerChannel> channel;
    AddressAnswer answer;  // the last one
    Backoff backoff;       // of better transports
    Backoff::Clock::time_point replaced{};
  };
  std::shared_ptr<Process> ProcessOf(const std::string& device_name);
  // Says when `channel` may be improved, if it may be at all.
  static void LaterLocked(Process* process, PeerChannel* channel);
  // Over one of `transports`, or any if that is empty. nullptr after an error.
  absl::Status Open(const AddressAnswer& answer, const std::string& transports,
                    std::shared_ptr<PeerChannel>* channel) const;

  const ServerContext* const server_;
  const PeerChannel::NewEnds* const new_ends_;
  const PeerChannel::Role role_;
  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Process>> processes_;  // by their devices' names
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_OPENED_CHANNELS_H_
