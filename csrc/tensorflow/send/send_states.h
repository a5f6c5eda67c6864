// SPDX-License-Identifier: Apache-2.0
//
// What a sender keeps for one receiver: by session, where its tensors go; by step, what waits; and what was lost.
#ifndef RDMATENSOR_TENSORFLOW_SEND_SEND_STATES_H_
#define RDMATENSOR_TENSORFLOW_SEND_SEND_STATES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "base/recent_map.h"
#include "channel/channel.h"
#include "channel/peer_channel.h"
#include "send/send_state.h"
#include "send/send_step.h"

namespace rdmatensor {

// Not thread-safe: its Receiver's lock guards it.
class SendStates {
 public:
  explicit SendStates(std::chrono::seconds ttl) : ttl_(ttl) {}

  // The receiver in one session; nullptr if more sessions name it than any real process takes part in.
  SendState* Of(const std::string& session);
  // nullptr if nothing is known of the session.
  SendState* Find(const std::string& session);
  absl::flat_hash_map<std::string, SendState>& all() { return states_; }
  // Returns what is forgotten, which is freed without the lock.
  absl::flat_hash_map<std::string, SendState>::node_type Forget(const std::string& session) {
    return states_.extract(session);
  }
  // Forgets what says no more than something new would. True if nothing is left.
  bool ForgetIdle();

  SendStep& Step(int64_t step_id);
  // nullptr if nothing waits in it.
  SendStep* FindStep(int64_t step_id);
  SendStep TakeStep(int64_t step_id);

  // Gives the session's state to `channel`. False if another process has the name; then nobody gets the state, unless
  // it is known whose name it is.
  struct Admitted {
    std::vector<std::shared_ptr<PeerChannel>> refused;  // their processes must fetch
    std::shared_ptr<PeerChannel> replaced;  // the same process used it before, and it is lost
    std::shared_ptr<PeerChannel> left;      // the same process has paused it
    SendStep::Pulls failed;
  };
  bool Admit(const std::string& session, const std::shared_ptr<PeerChannel>& channel,
             Admitted* admitted);

  // Takes out what waits for the state's channel and is not held, unless that is paused. If it takes out anything, a
  // push has begun.
  std::vector<PendingSend> TakePending(const std::string& session, SendState* state);
  // Takes one hold from `key`; after the last, takes out what waits, unless `pending` is nullptr, or the step's
  // tensors go down another channel by now.
  void Unhold(const Channel* channel, int64_t step_id, absl::string_view key,
              std::vector<PendingSend>* pending);

  // Marks the steps of the state's channel as lost, with what the channel carried, and takes out the requests that
  // wait in them.
  void LoseSteps(const std::string& session, SendState* state, SendStep::Pulls* failed);
  // The step, or this key of it, was pushed down a channel that was lost.
  bool WasLost(int64_t step_id, absl::string_view key) const;

 private:
  // Nothing is under way on the state's channel any more: forgets what went down it.
  void ForgetSent(const std::string& session, SendState* state);
  // Takes out what waits under `key` to be pushed; the key is held until it was.
  static void TakeKey(int64_t step_id, SendStep* step, const std::string& key, SendState* state,
                      std::vector<PendingSend>* pending);

  const std::chrono::seconds ttl_;
  absl::flat_hash_map<std::string, SendState> states_;  // by session
  absl::flat_hash_map<int64_t, SendStep> steps_;
  std::chrono::steady_clock::time_point last_sweep_ = std::chrono::steady_clock::now();
  // The steps and copies that were pushed down channels that were lost.
  RecentMap<int64_t> lost_{SendState::kRemembered};
  RecentMap<SendState::Copy> lost_copies_{SendState::kRemembered};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_SEND_STATES_H_
