// SPDX-License-Identifier: Apache-2.0
//
// Lets tasks agree: every member of a collective group votes yes or no at the server of the group's first member,
// and all get the same verdict. If some members cannot form a group, all of them must leave it to TensorFlow, or
// they would wait for each other for ever.
#ifndef RDMATENSOR_TENSORFLOW_COLLECTIVE_BALLOTS_H_
#define RDMATENSOR_TENSORFLOW_COLLECTIVE_BALLOTS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/settings.h"

namespace rdmatensor {

struct Vote {
  std::string question;  // the same for all members of a ballot, and unique to it
  uint32_t member = 0;   // 0 <= member < members
  uint32_t members = 0;
  uint8_t yes = 0;
  std::string text;  // the reason for a no; the yes of member 0 has a text for all
};

struct Verdict {
  uint8_t yes = 0;
  std::string text;  // the reason for a no, or the text of member 0
};

// The RecvBuf key of requests for a verdict: see task_call.h.
inline constexpr char kVoteKey[] = "rdmatensor.vote";
std::string Encode(const Vote& vote);
std::string Encode(const Verdict& verdict);
// False if `data` is malformed, of another version, or names more members than a group can have.
bool Parse(absl::string_view data, Vote* vote);
bool Parse(absl::string_view data, Verdict* verdict);

// Thread-safe. Belongs to a server's worker, which lives until the process ends once it runs.
class Ballots {
 public:
  using Done = std::function<void(const Verdict&)>;

  // How late members may vote. They begin together, at their first operation, but training programs may be slow. A
  // member without a device is detected at once by other means.
  static int TimeoutMs(const Settings& settings) { return 10 * settings.connect_timeout_ms; }

  // A ballot ends with no if a member has not voted `timeout_ms` after the first vote.
  explicit Ballots(int timeout_ms) : timeout_ms_(timeout_ms) {}

  // Calls `done` once: when all have voted yes, when one has voted no, or at the time-out. The call happens in
  // Cast or on a thread of TensorFlow.
  void Cast(const Vote& vote, Done done);

 private:
  struct Ballot {
    uint64_t number = 0;
    uint32_t members = 0;
    std::vector<bool> voted;
    std::string text;  // from member 0
    bool decided = false;
    Verdict verdict;
    std::vector<Done> waiting;
  };
  // Under mutex_.
  Ballot* Open(const Vote& vote);
  void Count(const Vote& vote, Ballot* ballot);
  static void Decide(Ballot* ballot, bool yes, const std::string& text);
  void Expire(const std::string& question, uint64_t number);

  const int timeout_ms_;
  std::mutex mutex_;
  uint64_t count_ = 0;
  std::map<std::string, Ballot> ballots_;
  std::deque<std::string> order_;  // questions by age: the oldest decided ballots are dropped
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_BALLOTS_H_
