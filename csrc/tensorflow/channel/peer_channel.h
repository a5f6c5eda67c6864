// SPDX-License-Identifier: Apache-2.0
//
// A channel, what the plugin carries over it, and the names that sessions give its two ends.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_PEER_CHANNEL_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_PEER_CHANNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/backoff.h"
#include "base/users.h"
#include "channel/call_end.h"
#include "channel/channel.h"
#include "channel/host.h"
#include "graph/planned_edge.h"
#include "rdmatensor.h"
#include "receive/offered_places.h"
#include "receive/reception.h"
#include "receive/source_events.h"
#include "send/accepted_offers.h"

namespace rdmatensor {

class PeerChannel;

// Receiver: the replacement of a channel by another one, as far as the channels know it. See channel_move.h.
class Replacement {
 public:
  virtual ~Replacement() = default;
  // The sender has paused. Progress thread.
  virtual void OnPaused(uint64_t number) = 0;
  // Something that came over the old channel may have been the last.
  virtual void Advance() = 0;
  // The sender has left the old channel. Progress thread.
  virtual void OnLeft() = 0;
  // One of the channels ended. Progress thread.
  virtual void OnDown(const PeerChannel* channel) = 0;
};

// The names under which one task receives from another in one session. Points into longer-lived names.
struct PeerNames {
  absl::string_view session;           // empty: the sessions that use the servers' own cluster
  absl::string_view receiver, sender;  // tasks: "/job:worker/replica:0/task:1"
};

// The receiver's view of such names, as far as their channel uses it. Called on the progress thread unless
// stated otherwise.
class ChannelSource {
 public:
  explicit ChannelSource(const PeerNames& names)
      : session_(names.session), receiver_(names.receiver), task_(names.sender) {}
  virtual ~ChannelSource() = default;

  const std::string& session() const { return session_; }
  // The session's name for this process.
  const std::string& receiver() const { return receiver_; }
  // The session's name for the sender.
  const std::string& task() const { return task_; }

  // Nothing more will come for this step. From any thread.
  virtual void OnStepAbort(int64_t step_id, const absl::Status& status) = 0;
  // The peer pushed the tensor of this key down a channel that was lost. It may have arrived.
  virtual void OnLost(int64_t step_id, const KeyId& key) = 0;
  virtual void OnDown(Channel* channel, absl::string_view why) = 0;
  // Another process has this one's name at the peer, so nothing will be pushed.
  virtual void OnContested(Channel* channel) = 0;
  // The memory behind `channel` is out of reach for this process: once the caller has closed it, the
  // peer is left to RPC for a while, unless the policy forbids that. From any thread.
  virtual void GiveUp(Channel* channel, const std::string& why) = 0;
  // Everything that came over `from` is here, and nothing more will come: takes tensors from `to`. False if it did not
  // use `from`. Not on the progress thread.
  virtual bool OnMoved(const std::shared_ptr<PeerChannel>& from,
                       const std::shared_ptr<PeerChannel>& to) = 0;

 private:
  const std::string session_, receiver_, task_;
};

// The sender's view of a name, as far as its channel uses it.
class ChannelDestination : public PushGate {
 public:
  explicit ChannelDestination(std::string task) : task_(std::move(task)) {}
  virtual ~ChannelDestination() = default;

  const std::string& task() const { return task_; }

  virtual void OnDown(Channel* channel) = 0;
  // A request by RPC that the receiver announced on `channel` has ended.
  virtual void OnAnswered(PeerChannel* channel, int64_t step_id, absl::string_view key) = 0;
  // Tensors may go down `channel` again.
  virtual void OnResumed(const std::shared_ptr<PeerChannel>& channel) = 0;

 private:
  const std::string task_;
};

// Thread-safe. The receiver opens it; or the sender, if it is a client that its tasks need not reach.
class PeerChannel final : public Channel, private SourceEvents {
 public:
  // The end that this process is. A channel that a peer opened is for sending, unless the peer announces first
  // that it will send or call. Channels for calls carry no tensors of steps.
  enum class Role { kReceiver, kSender, kCaller, kCallee };
  // Takes over one reference to `handle` and becomes its context. The core's handlers keep the
  // channel alive until they call ReleaseFromCore (on_released).
  static std::shared_ptr<PeerChannel> Adopt(rdt_channel* handle, const Host* host,
                                            MailboxTable* mailboxes, Role role, bool opened_here);
  // The channel that `handle` is the context of, or nullptr.
  static PeerChannel* FromHandle(const rdt_channel* handle);
  std::shared_ptr<PeerChannel> Shared() {
    return std::static_pointer_cast<PeerChannel>(shared_from_this());
  }
  void ReleaseFromCore();

  Role role() const { return role_.load(std::memory_order_acquire); }
  bool opened_here() const { return opened_here_; }
  // Channels that begin later in this process have higher numbers.
  uint64_t number() const { return number_; }
  // Makes this process the receiver, because the peer opened the channel to send. False if tensors travel in the
  // other direction already.
  bool BecomeReceiver();
  // Makes this process answer calls, by `end`, because the peer opened the channel to call. False if the channel is
  // used otherwise already.
  bool BecomeCallee(std::shared_ptr<CallEnd> end);
  // Caller: sets what takes the answers, unless something does already; returns what takes them.
  std::shared_ptr<CallEnd> SetCallEnd(std::shared_ptr<CallEnd> end);
  // Either end of calls; nullptr on other channels, and once nothing can arrive any more.
  std::shared_ptr<CallEnd> call_end();

  // Receiver: tensors outside the plan.
  Reception& reception() { return reception_; }
  // Opens regions of the peer before its messages name them. Blocks.
  absl::Status OpenAhead(const std::vector<uint64_t>& region_keys);
  // Receiver: planned tensors. The shared pointer keeps the channel alive.
  OfferedPlaces& places() { return places_; }
  std::shared_ptr<OfferedPlaces> SharedPlaces() { return {shared_from_this(), &places_}; }
  // Sender: planned tensors.
  AcceptedOffers& offers() { return offers_; }

  // Receiver: the names under which the peer's tensors come over the channel. If another channel has replaced this
  // one, nothing is added, and that is returned.
  std::shared_ptr<PeerChannel> AddSource(std::shared_ptr<ChannelSource> source);
  // True if that was the last one.
  bool RemoveSource(const ChannelSource* source);
  std::vector<std::shared_ptr<ChannelSource>> Sources();
  // Counts a pair of names that the peer, which opened the channel to send, announces. False if it has more than any
  // real sender. Progress thread.
  bool AddAnnounced(const std::string& receiver, const std::string& sender);
  // Held while one name is announced, so that its messages do not mix with those of another one.
  std::mutex announcing;

  // Sender: the names under which the receiver takes tensors. False if it has more than any real receiver.
  bool AddDestination(std::shared_ptr<ChannelDestination> destination);
  std::vector<std::shared_ptr<ChannelDestination>> Destinations();

  // What opened the channel looks for a better transport not before `when`.
  void ImproveAfter(Backoff::Clock::time_point when) {
    improve_at_.store(when.time_since_epoch().count(), std::memory_order_relaxed);
  }
  // True, for one caller, when it is time for that.
  bool MayImprove() {
    int64_t at = improve_at_.load(std::memory_order_relaxed);
    return at != 0 && Backoff::Clock::now().time_since_epoch().count() >= at &&
           improve_at_.compare_exchange_strong(at, 0);
  }

  // Receiver: the replacement of a channel, which both channels know until it is over.
  std::shared_ptr<Replacement> move();
  void SetMove(std::shared_ptr<Replacement> move);
  // Something that came over the channel may have been the last for which the replacement waits.
  void AdvanceMove();
  // Sets what replaces this channel for all names, and returns those that use it.
  std::vector<std::shared_ptr<ChannelSource>> LeaveFor(std::shared_ptr<PeerChannel> next);
  std::shared_ptr<PeerChannel> successor();

  // Sender: begins to push something down the channel, which EndPush ends. False while the receiver wants nothing,
  // because it is about to use another channel.
  bool BeginPush();
  void EndPush();
  bool paused() const { return pushes_.is_closed(); }
  // Nothing comes down it any more, and the receiver was told.
  bool has_paused();
  // The receiver's messages about that. Progress thread.
  void Pause(uint64_t number);
  void Resume();
  void Succeed() { succeeds_.store(true); }
  void OnLeft(uint64_t number);
  // The receiver has all that came down the channel that this one replaces.
  bool succeeds() const { return succeeds_.load(); }
  // This channel replaced `former` for a name.
  void AddFormer(std::shared_ptr<PeerChannel> former);

  // Sender: the requests by RPC that the receiver announced, until it announces the name that they belong to.
  // Progress thread.
  std::vector<std::pair<int64_t, std::string>> asked;
  size_t asked_bytes = 0;

 private:
  absl::flat_hash_set<std::pair<std::string, std::string>> announced_names_;  // progress thread
  PeerChannel(rdt_channel* handle, const Host* host, MailboxTable* mailboxes, Role role,
              bool opened_here);
  void OnDynamicTensor(absl::string_view key, const tensorflow::TensorShape& shape) override;
  void OnStepFailed(int64_t step_id, const absl::Status& status) override;
  void OnFetched() override { AdvanceMove(); }
  void OnUnreachable(const std::string& why) override;
  void TellPaused();
  void Bind(const std::shared_ptr<AcceptedOffer>& accepted);

  const Host* const host_;
  std::atomic<Role> role_;
  const bool opened_here_;
  const uint64_t number_;
  std::mutex peers_mutex_;
  std::vector<std::shared_ptr<ChannelSource>> sources_;
  std::vector<std::shared_ptr<ChannelDestination>> destinations_;
  std::shared_ptr<CallEnd> call_end_;
  std::shared_ptr<Replacement> move_;
  std::shared_ptr<PeerChannel> successor_;
  std::vector<std::shared_ptr<PeerChannel>> former_;
  bool released_ = false;
  std::atomic<bool> moves_{false};      // move_ is set
  std::atomic<int64_t> improve_at_{0};  // never
  Users pushes_;                        // closed while the channel is paused
  std::atomic<bool> succeeds_{false};
  std::mutex pause_mutex_;
  bool told_paused_ = false;
  uint64_t pause_number_ = 0;
  Reception reception_;
  OfferedPlaces places_;
  AcceptedOffers offers_;
  std::shared_ptr<PeerChannel> held_by_core_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_PEER_CHANNEL_H_
