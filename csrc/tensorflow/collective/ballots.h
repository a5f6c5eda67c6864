// SPDX-License-Identifier: Apache-2.0
//
// How tasks agree: every member of a collective group says yes or no at the server of the group's first
// member, and all get the same verdict. A group that some of its members cannot form must be left to
// TensorFlow by all of them, or they would wait for each other for ever.
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
  std::string question;  // the same for all members, and of nothing else
  uint32_t member = 0;   // 0 <= member < members
  uint32_t members = 0;
  uint8_t yes = 0;
  std::string text;  // why not; member 0's, if yes, is told to all
};

struct Verdict {
  uint8_t yes = 0;
  std::string text;  // why not; or member 0's text
};

// Asks for a verdict through RecvBuf: see task_call.h.
inline constexpr char kVoteKey[] = "rdmatensor.vote";
std::string Encode(const Vote& vote);
std::string Encode(const Verdict& verdict);
// False if `data` is malformed, of another version, or beyond what a group can be.
bool Parse(absl::string_view data, Vote* vote);
bool Parse(absl::string_view data, Verdict* verdict);

// Thread-safe. Belongs to a server's worker, which lives until the process ends once it runs.
class Ballots {
 public:
  using Done = std::function<void(const Verdict&)>;

  // How long members may be late. They begin together, at their first operation, but may be as slow as
  // training programs are; one that has no device at all is found out at once, by other means.
  static int TimeoutMs(const Settings& settings) { return 10 * settings.connect_timeout_ms; }

  // A ballot ends with no when a member has not voted `timeout_ms` after the first one.
  explicit Ballots(int timeout_ms) : timeout_ms_(timeout_ms) {}

  // `done` is called once: when all have voted yes, when one has voted no, or in the end. Here, or on
  // a thread of TensorFlow's.
  void Cast(const Vote& vote, Done done);

 private:
  struct Ballot {
    uint64_t number = 0;
    uint32_t members = 0;
    std::vector<bool> voted;
    std::string text;  // of member 0
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
  std::deque<std::string> order_;  // of opening: the oldest that are decided are forgotten
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_BALLOTS_H_
