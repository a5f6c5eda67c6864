// SPDX-License-Identifier: Apache-2.0
#include "collective/collective_groups.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/blocking_counter.h"
#include "base/json.h"
#include "base/random.h"
#include "channel/message.h"
#include "channel/task_call.h"
#include "collective/ballots.h"
#include "collective/collective_failure.h"
#include "collective/collective_trees.h"
#include "farmhash.h"
#include "service/tensor_service.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

// The number of operations whose count is kept, in each of two generations.
constexpr size_t kMostCounts = 65536;
// The period of looking for a stop while a group is being formed.
constexpr std::chrono::milliseconds kLookForStop(50);

// Why a member has no usable device, from its answer; empty if it has one.
std::string WhyNoDevice(const std::string& task, const absl::StatusOr<std::string>& answered) {
  if (!answered.ok()) return absl::StrCat(task, ": ", answered.status().message());
  AddressAnswer answer;
  if (!Parse(*answered, &answer)) return absl::StrCat(task, " gave a malformed answer");
  if (answer.version != kProtocolVersion) {
    return absl::StrCat(task, " speaks version ", answer.version, " of the tensor protocol");
  }
  return answer.address.empty() ? absl::StrCat("the server of ", task, " has no device") : "";
}

}  // namespace

CollectiveGroup::CollectiveGroup(TensorService* service, tensorflow::WorkerCacheInterface* workers,
                                 const tensorflow::CollGroupParams& params, uint32_t rank)
    : service_(service), workers_(workers), params_(params), rank_(rank) {
  AddToStats(this);
}

CollectiveGroup::~CollectiveGroup() {
  RemoveFromStats(this);
  rdt_group_close(handle_);
}

bool CollectiveGroup::IsOf(const tensorflow::CollGroupParams& params) const {
  return std::equal(params.members.begin(), params.members.end(), params_.members.begin(),
                    params_.members.end(), [](const auto& a, const auto& b) {
                      return a.device.incarnation() == b.device.incarnation() && a.task == b.task;
                    });
}

std::string CollectiveGroup::Question(const char* phase) const {
  std::string members;
  for (const tensorflow::CollGroupMember& member : params_.members) {
    absl::StrAppend(&members, member.device.name(), "#", member.device.incarnation(), ";");
  }
  const auto hash = util::Fingerprint128(members.data(), members.size());
  return absl::StrFormat("%s:%d:%016x%016x", phase, params_.group_key, util::Uint128High64(hash),
                         util::Uint128Low64(hash));
}

// A server without the plugin never votes, so the first member looks for such servers.
std::string CollectiveGroup::MissingPlugin() const {
  std::mutex mutex;
  std::string why;
  absl::BlockingCounter left(static_cast<int>(params_.members.size()) - 1);
  for (size_t i = 1; i < params_.members.size(); ++i) {
    const std::string& task = params_.members[i].task;
    AskTask(workers_, task, service_->task(), kAddressKey, "",
            service_->settings().connect_timeout_ms,
            [&, task](const absl::StatusOr<std::string>& answer) {
              const std::string problem = WhyNoDevice(task, answer);
              {
                std::lock_guard<std::mutex> lock(mutex);
                if (why.empty()) why = problem;
              }
              left.DecrementCount();
            });
  }
  left.Wait();
  return why;
}

CollectiveGroup::Answer CollectiveGroup::Ask(const char* phase, const std::string& why_not,
                                             const std::string& text) const {
  Vote vote;
  vote.question = Question(phase);
  vote.member = rank_;
  vote.members = static_cast<uint32_t>(params_.members.size());
  vote.yes = why_not.empty();
  vote.text = vote.yes ? text : absl::StrCat(service_->task(), ": ", why_not);
  // Longer than the ballot itself takes. For the first member this is a call within the process.
  const int timeout_ms = 2 * Ballots::TimeoutMs(service_->settings());
  const std::string& first = params_.members[0].task;
  const absl::StatusOr<std::string> answer =
      AskTask(workers_, first, service_->task(), kVoteKey, Encode(vote), timeout_ms);
  if (!answer.ok()) return {false, absl::StrCat(first, ": ", answer.status().message())};
  Verdict verdict;
  if (!Parse(*answer, &verdict)) return {false, absl::StrCat(first, " gave a malformed answer")};
  return {verdict.yes != 0, verdict.text};
}

CollectiveGroup::Outcome CollectiveGroup::TryForm() {
  // Before any member tries, all must be able to form the group and know where the first member's device is.
  std::string how, trees;
  const auto size = static_cast<uint32_t>(params_.members.size());
  if (rank_ == 0) {
    trees = EncodedTrees(size);
    how = absl::StrFormat("tensorflow-%d-%016x %s %s %d", params_.group_key, RandomBits(),
                          service_->address(), rdt_device_name(service_->device()), trees.size());
  }
  rdt_log_line(RDT_LOG_DEBUG, absl::StrCat("tensorflow: member ", rank_, " of group ",
                                           params_.group_key, " is ready to form it")
                                  .c_str());
  const Answer able = Ask("able", rank_ == 0 ? MissingPlugin() : "", how);
  if (!able.yes) return {nullptr, able.text};
  const std::vector<std::string> parts = absl::StrSplit(able.text, ' ');
  uint64_t tree_bytes = 0;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[3], &tree_bytes) ||
      tree_bytes > kMostTreeBytes) {
    return {nullptr,
            absl::StrCat(params_.members[0].task, " describes the group as '", able.text, "'")};
  }
  rdt_group_options options{};
  options.struct_size = sizeof options;
  options.name = parts[0].c_str();
  options.rank = rank_;
  options.size = size;
  options.root = parts[1].c_str();
  options.root_name = parts[2].c_str();
  options.timeout_ms = service_->settings().connect_timeout_ms;
  Outcome outcome;
  const rdt_status created = rdt_group_create(service_->device(), &options, &outcome.handle);
  if (created != RDT_OK) {
    outcome.handle = nullptr;
    outcome.why_not = absl::StrCat(rdt_status_name(created), ": ", rdt_last_error());
  } else if (tree_bytes != 0) {
    trees.resize(tree_bytes);
    outcome.why_not =
        std::string(ShareTrees(outcome.handle, size, &trees, options.timeout_ms).message());
  }
  // No member may use the group unless all have it.
  const Answer done = Ask("formed", outcome.why_not, "");
  if (!done.yes) {
    rdt_group_close(outcome.handle);
    return {nullptr, done.text};
  }
  return outcome;
}

void CollectiveGroup::Form() { Decide(TryForm()); }

void CollectiveGroup::Decide(Outcome outcome) {
  std::string members;
  for (const tensorflow::CollGroupMember& member : params_.members) {
    absl::StrAppend(&members, members.empty() ? "" : ", ", member.task);
  }
  const std::string what =
      absl::StrCat("collectives of group ", params_.group_key, " (", members, ")");
  const bool forbidden = outcome.handle == nullptr && service_->settings().policy == Policy::kRdma;
  if (outcome.handle != nullptr) {
    rdt_log_line(RDT_LOG_INFO, absl::StrCat("tensorflow: ", what, " go by rdmatensor").c_str());
  } else if (!forbidden) {
    rdt_log_line(RDT_LOG_WARN,
                 absl::StrCat("tensorflow: ", what, " go by grpc: ", outcome.why_not).c_str());
  }
  std::lock_guard<std::mutex> lock(mutex_);
  handle_ = outcome.handle;
  why_not_ = outcome.why_not;
  if (!aborted_.ok()) EndForAll();
  if (forbidden) {
    status_ = absl::FailedPreconditionError(absl::StrCat(
        "rdmatensor: ", what, " cannot run and RDMATENSOR_POLICY is rdma: ", why_not_));
  }
  formed_.store(true, std::memory_order_release);
  changed_.notify_all();
}

absl::Status CollectiveGroup::Await(Deadline deadline, const std::function<absl::Status()>& stop) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!formed()) {
    if (absl::Status status = stop(); !status.ok()) return status;
    if (Deadline::clock::now() >= deadline) {
      return absl::DeadlineExceededError("Collective has timed out waiting for other workers.");
    }
    changed_.wait_for(lock, kLookForStop);
  }
  return status_;
}

void CollectiveGroup::EndForAll() {
  if (handle_ == nullptr) return;
  (void)rdt_group_abort(handle_, RDT_ERR_CANCELLED, WordsOf(aborted_).c_str());
}

void CollectiveGroup::Abort(const absl::Status& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!aborted_.ok()) return;
  aborted_ = why;
  EndForAll();
}

absl::Status CollectiveGroup::WhyAborted() const {
  rdt_algorithm unused;
  const rdt_status usable = rdt_group_choose(handle_, RDT_BARRIER, 0, &unused);
  return usable == RDT_OK ? absl::OkStatus() : GroupStatus(usable, rdt_last_error());
}

Json CollectiveGroup::AsJson() const {
  Json members = Json::List(), algorithms = Json::Object();
  for (const tensorflow::CollGroupMember& member : params_.members) members.Add(member.task);
  std::lock_guard<std::mutex> lock(mutex_);
  rdt_group_info info{};
  if (handle_ != nullptr) (void)rdt_group_get_info(handle_, &info);
  for (int i = 0; i < RDT_ALGORITHM_COUNT; ++i) {
    const uint64_t operations = info.operations[i] - counted_.operations[i];
    if (operations == 0) continue;
    const char* name = i == 0 ? "only" : rdt_algorithm_name(static_cast<rdt_algorithm>(i));
    algorithms.Add(name, Json::Object()
                             .Add("operations", operations)
                             .Add("sent_bytes", info.bytes[i] - counted_.bytes[i]));
  }
  const char* const formed_as = handle_ != nullptr ? "rdmatensor" : "grpc";
  return Json::Object()
      .Add("group_key", params_.group_key)
      .Add("rank", rank_)
      .Add("members", members)
      .Add("transport", formed() ? formed_as : "")
      .Add("why", why_not_)
      .Add("hosts", info.hosts)
      .Add("latency_ns", Json::List().Add(info.latency_ns[0]).Add(info.latency_ns[1]))
      .Add("byte_ns", Json::List().Add(info.byte_ns[0]).Add(info.byte_ns[1]))
      .Add("reduce_byte_ns", info.reduce_byte_ns)
      .Add("algorithms", algorithms)
      .Add("copied_bytes", info.copies - counted_.copies);
}

void CollectiveGroup::ResetCounts() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (handle_ != nullptr) (void)rdt_group_get_info(handle_, &counted_);
}

uint64_t CollectiveGroup::CountOf(uint64_t key) {
  std::lock_guard<std::mutex> lock(count_mutex_);
  if (auto found = counts_.find(key); found != counts_.end()) return ++found->second;
  uint64_t count = 0;
  if (auto found = older_counts_.find(key); found != older_counts_.end()) count = found->second + 1;
  // Strategies never use a key again, so old keys must be dropped. Graphs with constant keys use them again soon.
  if (counts_.size() >= kMostCounts) {
    older_counts_ = std::move(counts_);
    counts_.clear();
  }
  counts_[key] = count;
  return count;
}

std::shared_ptr<CollectiveGroup> CollectiveGroups::Find(const tensorflow::CollGroupParams& params,
                                                        int rank) {
  std::shared_ptr<CollectiveGroup> group, replaced;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<CollectiveGroup>& known = groups_[params.group_key];
    if (known != nullptr && known->IsOf(params)) return known;
    replaced = std::move(known);
    known =
        std::make_shared<CollectiveGroup>(service_, workers_, params, static_cast<uint32_t>(rank));
    group = known;
    if (!aborted_.ok()) group->Abort(aborted_);
  }
  // Destroying the old group may take a while, like forming the new one.
  tsl::Env::Default()->SchedClosure([group, replaced = std::move(replaced)]() { group->Form(); });
  return group;
}

void CollectiveGroups::Abort(const absl::Status& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!aborted_.ok()) return;
  aborted_ = why;
  for (const auto& [key, group] : groups_) group->Abort(why);
}

std::shared_ptr<CollectiveGroup> CollectiveGroups::FindFormed(int32_t group_key) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = groups_.find(group_key);
  if (found == groups_.end() || !found->second->formed() || found->second->handle() == nullptr) {
    return nullptr;
  }
  return found->second;
}

}  // namespace rdmatensor
