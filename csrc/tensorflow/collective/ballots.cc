// SPDX-License-Identifier: Apache-2.0
#include "collective/ballots.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/byte_stream.h"
#include "tensorflow/core/common_runtime/process_util.h"

namespace rdmatensor {
namespace {

constexpr uint32_t kVersion = 1;
constexpr uint32_t kMostMembers = 1024;
constexpr size_t kLongestQuestion = 256;
constexpr size_t kLongestText = 4096;
// Decided ballots stay for members that vote late.
constexpr size_t kMostBallots = 1024;

std::string Shortened(absl::string_view text) { return std::string(text.substr(0, kLongestText)); }

bool GetText(Reader* reader, size_t longest, std::string* text) {
  uint32_t size = 0;
  absl::string_view view;
  if (!reader->Get(&size) || size > longest || !reader->GetText(size, &view)) return false;
  *text = std::string(view);
  return true;
}

void PutText(Writer* writer, absl::string_view text) {
  writer->Put(static_cast<uint32_t>(text.size()));
  writer->PutBytes(text.data(), text.size());
}

}  // namespace

std::string Encode(const Vote& vote) {
  const std::string text = Shortened(vote.text);
  std::string out(5 * sizeof(uint32_t) + sizeof vote.yes + vote.question.size() + text.size(),
                  '\0');
  Writer writer(&out[0]);
  writer.Put(kVersion);
  writer.Put(vote.member);
  writer.Put(vote.members);
  writer.Put(vote.yes);
  PutText(&writer, vote.question);
  PutText(&writer, text);
  return out;
}

bool Parse(absl::string_view data, Vote* vote) {
  Reader reader(data.data(), data.size());
  uint32_t version = 0;
  return reader.Get(&version) && version == kVersion && reader.Get(&vote->member) &&
         reader.Get(&vote->members) && reader.Get(&vote->yes) &&
         GetText(&reader, kLongestQuestion, &vote->question) &&
         GetText(&reader, kLongestText, &vote->text) && reader.left() == 0 &&
         vote->members <= kMostMembers && vote->member < vote->members;
}

std::string Encode(const Verdict& verdict) {
  const std::string text = Shortened(verdict.text);
  std::string out(2 * sizeof(uint32_t) + sizeof verdict.yes + text.size(), '\0');
  Writer writer(&out[0]);
  writer.Put(kVersion);
  writer.Put(verdict.yes);
  PutText(&writer, text);
  return out;
}

bool Parse(absl::string_view data, Verdict* verdict) {
  Reader reader(data.data(), data.size());
  uint32_t version = 0;
  return reader.Get(&version) && version == kVersion && reader.Get(&verdict->yes) &&
         GetText(&reader, kLongestText, &verdict->text) && reader.left() == 0;
}

void Ballots::Cast(const Vote& vote, Done done) {
  std::vector<Done> answered;
  Verdict verdict;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Ballot* ballot = Open(vote);
    if (ballot == nullptr) {
      verdict.text = "too many groups are being formed";
      answered.push_back(std::move(done));
    } else {
      Count(vote, ballot);
      ballot->waiting.push_back(std::move(done));
      if (ballot->decided) {
        verdict = ballot->verdict;
        answered = std::exchange(ballot->waiting, {});
      }
    }
  }
  for (const Done& each : answered) each(verdict);
}

Ballots::Ballot* Ballots::Open(const Vote& vote) {
  auto found = ballots_.find(vote.question);
  if (found != ballots_.end()) return &found->second;
  if (order_.size() >= kMostBallots) {
    auto oldest = std::find_if(order_.begin(), order_.end(), [this](const std::string& question) {
      return ballots_[question].decided;
    });
    if (oldest == order_.end()) return nullptr;
    ballots_.erase(*oldest);
    order_.erase(oldest);
  }
  Ballot& ballot = ballots_[vote.question];
  ballot.number = ++count_;
  ballot.members = vote.members;
  ballot.voted.resize(vote.members);
  order_.push_back(vote.question);
  tensorflow::SchedNonBlockingClosureAfter(
      int64_t{1000} * timeout_ms_,
      [this, question = vote.question, number = ballot.number] { Expire(question, number); });
  return &ballot;
}

void Ballots::Count(const Vote& vote, Ballot* ballot) {
  if (ballot->decided) return;
  if (vote.members != ballot->members) {
    Decide(ballot, false, "its members disagree about their number");
    return;
  }
  if (!vote.yes) {
    Decide(ballot, false, vote.text);
    return;
  }
  ballot->voted[vote.member] = true;
  if (vote.member == 0) ballot->text = vote.text;
  if (std::all_of(ballot->voted.begin(), ballot->voted.end(), [](bool each) { return each; })) {
    Decide(ballot, true, ballot->text);
  }
}

void Ballots::Decide(Ballot* ballot, bool yes, const std::string& text) {
  ballot->decided = true;
  ballot->verdict.yes = yes;
  ballot->verdict.text = text;
}

void Ballots::Expire(const std::string& question, uint64_t number) {
  std::vector<Done> answered;
  Verdict verdict;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = ballots_.find(question);
    if (found == ballots_.end() || found->second.number != number || found->second.decided) return;
    Ballot& ballot = found->second;
    std::string missing;
    for (uint32_t member = 0; member < ballot.members; ++member) {
      if (!ballot.voted[member]) absl::StrAppend(&missing, missing.empty() ? "" : ", ", member);
    }
    Decide(&ballot, false,
           absl::StrCat("no vote within ", timeout_ms_, " ms from members ", missing));
    verdict = ballot.verdict;
    answered = std::exchange(ballot.waiting, {});
  }
  for (const Done& each : answered) each(verdict);
}

}  // namespace rdmatensor
