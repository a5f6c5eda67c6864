// SPDX-License-Identifier: Apache-2.0
#include "ops/group_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "ops/core_status.h"
#include "xla/tsl/profiler/utils/time_utils.h"

namespace rdmatensor {
namespace {

// Apart from the tags of other users of the group.
constexpr uint64_t kTag = uint64_t{1} << 63 | 3;

// How long a thread of TensorFlow waits for news of a short operation before it goes on with something else. The
// members of a step are seldom further apart. What takes longer leaves the processor to the computation.
constexpr int kSpinUs = 300;

// Advice that ends the message when processes disagree.
constexpr const char* kAgree =
    ". All processes have to do the same operations in the same order: look for what only some of "
    "them have, such as a callback that saves, evaluates or stops (rt.on_rank_0 is for one of rank "
    "0), a callback before those of rt.callbacks(), other data, layers or settings, a variable "
    "without a gradient, or fewer batches (which rt.callbacks(uneven=True) allows)";

absl::Status Failure(rdt_status status, const std::string& name) {
  const absl::Status why = StatusOf(status, name);
  return status == RDT_ERR_PROTOCOL ? absl::Status(why.code(), absl::StrCat(why.message(), kAgree))
                                    : why;
}

absl::Status Closed(const std::string& name) {
  return absl::FailedPreconditionError(absl::StrCat(
      "rdmatensor: ", name,
      ": this process has left the group: call rdmatensor.train.init() again. Models, optimizers "
      "and functions then go on, if there are as many processes as before"));
}

}  // namespace

const char* StartedVariant::kTypeName = "rdmatensor::Started";

void Started::End(rdt_status status) {
  std::vector<std::function<void()>> then;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status < RDT_OK) status_ = Failure(status, name_);
    ended_ = true;
    then.swap(then_);
  }
  for (const std::function<void()>& each : then) each();
}

void Started::Then(std::function<void()> then) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ended_) {
      then_.push_back(std::move(then));
      return;
    }
  }
  then();
}

bool Started::HasEnded() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ended_;
}

void Started::Cancel() { group_->Cancel(tag); }

GroupState::GroupState(rdt_device* device, rdt_group* group, int timeout_ms)
    : group_(group), timeout_ms_(timeout_ms), pool_(std::make_shared<BufferPool>(device)) {
  rdt_group_info info{};
  if (rdt_group_get_info(group, &info) != RDT_OK) info.size = info.hosts = 1;
  rank_ = info.rank;
  size_ = info.size;
  hosts_ = info.hosts;
  latency_ns_ = info.latency_ns[hosts_ > 1];
  byte_ns_ = info.byte_ns[hosts_ > 1];
  stats_ = std::make_unique<OperationStats>(size_);
}

void GroupState::Ended(Started* started, rdt_status status) {
  under_way_.fetch_sub(1, std::memory_order_relaxed);
  started->ended = tsl::profiler::GetCurrentTimeNanos();
  stats_->End(*started, status < RDT_OK);
}

std::string GroupState::Statistics() {
  Json object = Json::Object().Add("rank", rank_).Add("size", size_);
  stats_->AddTo(&object);
  std::lock_guard<std::mutex> lock(mutex_);
  rdt_group_info info{};
  uint64_t sent = 0;
  if (!left_ && rdt_group_get_info(group_, &info) == RDT_OK) {
    for (const uint64_t bytes : info.bytes) sent += bytes;
  }
  return object.Add("sent_bytes", sent).Add("copied_bytes", info.copies).text();
}

absl::Status GroupState::Start(const std::shared_ptr<Started>& started, rdt_collective* collective,
                               const std::string& detail) {
  collective->struct_size = sizeof *collective;
  collective->algorithm = RDT_ALGORITHM_AUTO;
  collective->timeout_ms = timeout_ms_;
  collective->detail = detail.c_str();
  collective->report = &started->report;
  auto kept = std::make_unique<std::shared_ptr<Started>>(started);
  const auto done = [](void* context, rdt_status status) {
    const std::unique_ptr<std::shared_ptr<Started>> ended(
        static_cast<std::shared_ptr<Started>*>(context));
    (*ended)->group().Ended(ended->get(), status);
    (*ended)->End(status);
  };
  // Members number their operations alike, so the number and the start are one step.
  std::lock_guard<std::mutex> lock(mutex_);
  if (left_) return Closed(started->name());
  Number(started->tag);
  collective->tag[0] = started->tag[0];
  collective->tag[1] = started->tag[1];
  // While an earlier operation waits for a member, this one would wait for it too.
  const bool waits = under_way_.fetch_add(1, std::memory_order_relaxed) == 0 &&
                     latency_ns_ + byte_ns_ * static_cast<double>(started->bytes) < kSpinUs * 1e3;
  started->begun = tsl::profiler::GetCurrentTimeNanos();
  stats_->Begin(started->begun);
  const rdt_status status =
      rdt_group_try(group_, collective, waits ? kSpinUs : 0, done, kept.get());
  if (status == RDT_IN_PROGRESS) {
    (void)kept.release();
    return absl::OkStatus();
  }
  Ended(started.get(), status);
  if (status < RDT_OK) {
    absl::Status why = Failure(status, started->name());
    // Does nothing if the core has told the others.
    (void)rdt_group_fail(group_, started->tag, status, std::string(rdt_last_error()).c_str());
    return why;
  }
  started->End(RDT_OK);
  return absl::OkStatus();
}

absl::Status GroupState::Refuse(const std::string& name, const absl::Status& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (left_) return Closed(name);  // no memory is left, either
  uint64_t tag[2];
  Number(tag);
  // StatusOf makes the same code of it at the others.
  const rdt_status status = absl::IsResourceExhausted(why) ? RDT_ERR_NO_MEMORY : RDT_ERR_INVALID;
  (void)rdt_group_fail(group_, tag, status, std::string(why.message()).c_str());
  return absl::Status(why.code(), absl::StrCat("rdmatensor: ", name, ": ", why.message()));
}

bool GroupState::ReducesInPlace(uint64_t bytes) {
  rdt_algorithm algorithm = RDT_ALGORITHM_FLAT;
  std::lock_guard<std::mutex> lock(mutex_);
  return hosts_ == 1 && !left_ &&
         rdt_group_choose(group_, RDT_ALL_REDUCE, bytes, &algorithm) == RDT_OK &&
         algorithm != RDT_ALGORITHM_FLAT;
}

void GroupState::Number(uint64_t tag[2]) {
  tag[0] = ++started_;
  tag[1] = kTag;
}

void GroupState::Cancel(const uint64_t tag[2]) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!left_) (void)rdt_group_cancel(group_, tag);
}

bool GroupState::Left() {
  std::lock_guard<std::mutex> lock(mutex_);
  return left_;
}

void GroupState::Leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!std::exchange(left_, true)) (void)rdt_group_cancel(group_, nullptr);
}

}  // namespace rdmatensor
