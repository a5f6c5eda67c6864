// SPDX-License-Identifier: Apache-2.0
//
// The peers of a server, by the names that sessions give the tasks.
#ifndef RDMATENSOR_TENSORFLOW_SERVICE_PEER_TABLE_H_
#define RDMATENSOR_TENSORFLOW_SERVICE_PEER_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "channel/opened_channels.h"
#include "channel/peers.h"
#include "channel/server_context.h"
#include "channel/sessions.h"
#include "channel/step_failures.h"
#include "receive/mailbox.h"
#include "receive/sender.h"
#include "send/receiver.h"

namespace rdmatensor {

// Thread-safe. Forgets, from time to time, what belongs to sessions that are over.
class PeerTable final : public Peers {
 public:
  PeerTable(const ServerContext* server, MailboxTable* mailboxes, OpenedChannels* to_senders)
      : server_(server), mailboxes_(mailboxes), to_senders_(to_senders) {}

  Sessions& sessions() { return sessions_; }

  std::shared_ptr<ChannelSender> FindSender(const PeerNames& names) override {
    return SenderOf(names);
  }
  // Sessions may be over by now.
  std::shared_ptr<ChannelReceiver> FindReceiver(absl::string_view task) override {
    CountNew();
    return ReceiverOf(task);
  }
  // The receiver's view of these names, made on first use.
  std::shared_ptr<Sender> SenderOf(const PeerNames& names);
  // The sender's view of tasks of this name, made on first use.
  std::shared_ptr<Receiver> ReceiverOf(absl::string_view task);
  std::vector<std::shared_ptr<Receiver>> Receivers();
  // Tells the receivers in `session` that the step failed here, also those that announce themselves later.
  void TellOfFailure(const std::string& session, int64_t step_id, const absl::Status& status);
  // Drops the tensors of a step that is cleaned up here.
  void DropStep(int64_t step_id);
  std::vector<std::shared_ptr<OfferedPlaces>> PlacesFrom(absl::string_view task) override;
  // All channels, in both directions, each once.
  std::vector<std::shared_ptr<PeerChannel>> Channels();

 private:
  struct Hash {
    using is_transparent = void;
    template <typename Named>
    size_t operator()(const Named& named) const {
      const PeerNames names = NamesOf(named);
      return absl::HashOf(names.session, names.receiver, names.sender);
    }
  };
  struct Equal {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      const PeerNames x = NamesOf(a), y = NamesOf(b);
      return x.session == y.session && x.receiver == y.receiver && x.sender == y.sender;
    }
  };
  static PeerNames NamesOf(const PeerNames& names) { return names; }
  static PeerNames NamesOf(const std::shared_ptr<Sender>& peer) {
    return {peer->session(), peer->receiver(), peer->task()};
  }
  std::vector<std::shared_ptr<Sender>> Senders();
  void CountNew();
  void Sweep();

  const ServerContext* const server_;
  MailboxTable* const mailboxes_;
  OpenedChannels* const to_senders_;
  Sessions sessions_;
  FailedHere failed_here_;
  std::shared_mutex mutex_;
  absl::flat_hash_set<std::shared_ptr<Sender>, Hash, Equal> senders_;
  absl::flat_hash_map<std::string, std::shared_ptr<Receiver>> receivers_;
  std::atomic<int> new_{0};  // since the last sweep
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVICE_PEER_TABLE_H_
