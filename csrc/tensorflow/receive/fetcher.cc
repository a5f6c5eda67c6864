// SPDX-License-Identifier: Apache-2.0
#include "receive/fetcher.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/spans.h"
#include "channel/message.h"
#include "memory/arena.h"
#include "receive/borrowed_buffer.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

using tensorflow::Tensor;

// Where TensorFlow expects the data of tensors to begin.
constexpr uint64_t kTensorAlignment = EIGEN_MAX_ALIGN_BYTES;
// Reading from mapped memory is a copy by the calling thread: longer ones are not for the progress
// thread. About what starting another thread costs.
constexpr uint64_t kLongCopy = 128 * 1024;
// No arena has nearly as many: a peer that names more is not one of ours.
constexpr size_t kMaxRemoteRegions = 1024;

bool Lies(const RemoteBytes& from, uint64_t region_size) {
  return from.offset <= region_size && from.size <= region_size - from.offset &&
         from.lend_id <= kMaxImmediateValue;
}

// Gives the fetch memory to be read into: of the arena, where the transport can write without
// registering it first, or, if the arena is full, any. Without blocking it finds only the first, and
// not in regions that are still being registered.
bool Allocate(Fetch* fetch, bool may_block) {
  Arena* const arena = Arena::Get();
  Tensor target(may_block ? arena->allocator() : arena->hasty_allocator(), fetch->dtype,
                fetch->shape);
  if (may_block && !target.IsInitialized()) target = Tensor(fetch->dtype, fetch->shape);
  if (!target.IsInitialized() || (!may_block && !arena->IsAnnounced(target.data()))) return false;
  fetch->target = std::move(target);
  return true;
}

// The connection is gone, or goes: nothing was wrong with the region.
bool MeansLost(rdt_status status) {
  return status == RDT_ERR_CONNECTION_LOST || status == RDT_ERR_CANCELLED ||
         status == RDT_ERR_CLOSED || status == RDT_ERR_DEADLINE || status == RDT_ERR_FORKED;
}

}  // namespace

absl::Status NoMemoryFor(uint64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("rdmatensor: no memory for a tensor of ", bytes, " bytes"));
}

Fetcher::~Fetcher() {
  for (auto& entry : regions_) rdt_remote_region_unref(entry.second.handle);
}

Fetcher::OpenRegion Fetcher::FindOpen(uint64_t region_key) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = regions_.find(region_key);
  if (found == regions_.end()) return {};
  return {found->second.handle, found->second.size};
}

tensorflow::TensorBuffer* Fetcher::Borrow(const RemoteBytes& from) {
  if (!channel_->can_map() || from.size < settings_->alias_bytes ||
      from.offset % kTensorAlignment != 0) {
    return nullptr;
  }
  const OpenRegion region = FindOpen(from.region_key);
  void* address = nullptr;
  if (region.handle == nullptr || !Lies(from, region.size) ||
      rdt_remote_region_map(region.handle, from.offset, from.size, &address) != RDT_OK) {
    return nullptr;
  }
  return NewBorrowedBuffer(address, from.size, from.lend_id, channel_->shared_from_this());
}

Taken Fetcher::Start(std::unique_ptr<Fetch> fetch) {
  OpenRegion region;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t region_key = fetch->from.region_key;
    auto [entry, added] = regions_.try_emplace(region_key);
    if (added && regions_.size() > kMaxRemoteRegions) return Taken::kMalformed;
    if (entry->second.handle == nullptr) {
      std::shared_ptr<Channel> channel = fetch->channel;
      entry->second.waiting.push_back(std::move(fetch));
      if (added) {
        tsl::Env::Default()->SchedClosure(
            [this, region_key, channel = std::move(channel)] { Open(region_key); });
      }
      return Taken::kUnderWay;
    }
    region = {entry->second.handle, entry->second.size};
  }
  return Advance(std::move(fetch), region, false);
}

rdt_status Fetcher::OpenRemote(uint64_t region_key, OpenRegion* region) const {
  rdt_region_info info{};
  rdt_status status = rdt_remote_region_open(channel_->handle(), region_key,
                                             settings_->connect_timeout_ms, &region->handle);
  if (status == RDT_OK) status = rdt_remote_region_get_info(region->handle, &info);
  region->size = info.size;
  return status;
}

absl::Status Fetcher::OpenAhead(uint64_t region_key) {
  OpenRegion region;
  const rdt_status status = OpenRemote(region_key, &region);
  // The sender knows which of its regions this channel does not reach, and sends them otherwise.
  if (status == RDT_ERR_UNSUPPORTED) return absl::OkStatus();
  if (status != RDT_OK) {
    return absl::UnavailableError(absl::StrCat("its memory cannot be reached: ", rdt_last_error()));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  auto [entry, added] = regions_.try_emplace(region_key);
  if (added) {
    entry->second.handle = region.handle;
    entry->second.size = region.size;
  } else {
    rdt_remote_region_unref(region.handle);  // the peer named it twice
  }
  return absl::OkStatus();
}

void Fetcher::Open(uint64_t region_key) {
  OpenRegion region;
  const rdt_status status = OpenRemote(region_key, &region);
  const std::string why = status == RDT_OK ? "" : rdt_last_error();
  std::vector<std::unique_ptr<Fetch>> waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    RemoteRegion& entry = regions_[region_key];
    entry.handle = region.handle;
    entry.size = region.size;
    waiting.swap(entry.waiting);
    // Nothing may wait for what nobody opens: a fetch keeps the channel, which keeps the fetcher.
    if (status != RDT_OK) regions_.erase(region_key);
  }
  if (status != RDT_OK) {
    Fail(status, absl::StrCat("its memory cannot be reached: ", why));
    return;  // with the channel, what waits ends too
  }
  for (std::unique_ptr<Fetch>& fetch : waiting) AdvanceHere(std::move(fetch), region);
}

Taken Fetcher::Advance(std::unique_ptr<Fetch> fetch, const OpenRegion& region, bool may_block) {
  const RemoteBytes from = fetch->from;
  if (!Lies(from, region.size)) return Taken::kMalformed;
  if (tensorflow::TensorBuffer* borrowed = Borrow(from)) {
    tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(borrowed);
    delivery_->DeliverTensor(fetch->step_id, KeyId::Of(fetch->key), fetch->path, Via::kInPlace,
                             fetch->checksum,
                             Tensor(fetch->dtype, fetch->shape, std::move(buffer)));
    CountFetch(Via::kInPlace, from.size);
    return Taken::kDone;
  }
  const bool copies_long = channel_->can_map() && from.size > kLongCopy;
  if (!may_block && copies_long) return AdvanceElsewhere(std::move(fetch), region);
  if (!Allocate(fetch.get(), may_block)) {
    if (!may_block) return AdvanceElsewhere(std::move(fetch), region);
    Release(from.lend_id);
    events_->OnStepFailed(fetch->step_id, NoMemoryFor(from.size));
    return Taken::kDone;
  }
  return Read(std::move(fetch), region.handle);
}

Taken Fetcher::AdvanceElsewhere(std::unique_ptr<Fetch> fetch, const OpenRegion& region) {
  tsl::Env::Default()->SchedClosure([this, fetch = std::move(fetch), region]() mutable {
    AdvanceHere(std::move(fetch), region);
  });
  return Taken::kUnderWay;
}

void Fetcher::AdvanceHere(std::unique_ptr<Fetch> fetch, const OpenRegion& region) {
  const std::shared_ptr<Channel> channel = fetch->channel;  // and with it, this
  const int64_t step_id = fetch->step_id;
  const std::string key = fetch->key;
  const Taken taken = Advance(std::move(fetch), region, true);
  if (taken == Taken::kDone) fetched_(step_id, key);
  if (taken == Taken::kMalformed) channel_->RefuseMalformed();
}

Taken Fetcher::Read(std::unique_ptr<Fetch> fetch, rdt_remote_region* region) {
  rdt_op op{};
  op.kind = RDT_OP_READ;
  op.local = fetch->target.data();
  op.size = fetch->from.size;
  op.remote = region;
  op.remote_offset = fetch->from.offset;
  if (Tracing()) fetch->read_since = WaitMoment();
  fetch->fetcher = this;
  // The completion may run before the call returns.
  Fetch* raw = fetch.release();
  const rdt_status status = rdt_channel_post(channel_->handle(), &op, 1, OnRead, raw);
  if (status == RDT_IN_PROGRESS) return Taken::kUnderWay;
  fetch.reset(raw);
  if (status == RDT_OK) {
    Finish(*fetch);
    return Taken::kDone;
  }
  Fail(status, absl::StrCat("its memory cannot be read: ", rdt_last_error()));
  return Taken::kUnderWay;  // with the channel, what follows ends too
}

void Fetcher::OnRead(void* context, rdt_status status) {
  std::unique_ptr<Fetch> fetch(static_cast<Fetch*>(context));
  Fetcher& self = *fetch->fetcher;
  if (status != RDT_OK) {
    self.Fail(status, absl::StrCat("its memory cannot be read: ", rdt_status_name(status), ": ",
                                   rdt_status_text(status)));
    return;
  }
  self.Finish(*fetch);
  self.fetched_(fetch->step_id, fetch->key);
}

void Fetcher::RefuseUnreadable(absl::string_view why) {
  if (channel_->refused.exchange(true)) return;
  if (channel_->IsUp()) {
    rdt_log_line(RDT_LOG_WARN, absl::StrCat("tensorflow: ", channel_->peer_name(), ": ", why,
                                            ": closing its channel for calls")
                                   .c_str());
  }
  channel_->Close();
}

absl::Status Fetcher::ReadNow(const RemoteBytes& from, Tensor* target) {
  OpenRegion region = FindOpen(from.region_key);
  if (region.handle == nullptr) {
    if (absl::Status opened = OpenAhead(from.region_key); !opened.ok()) {
      RefuseUnreadable(opened.message());
      return opened;
    }
    region = FindOpen(from.region_key);
  }
  if (region.handle == nullptr || !Lies(from, region.size)) {
    channel_->RefuseMalformed();
    return absl::UnavailableError("rdmatensor: the peer described memory that it does not have");
  }
  struct Reading {
    absl::Notification done;
    rdt_status status = RDT_OK;
  } reading;
  rdt_op op{};
  op.kind = RDT_OP_READ;
  op.local = target->data();
  op.size = from.size;
  op.remote = region.handle;
  op.remote_offset = from.offset;
  const auto on_read = [](void* context, rdt_status status) {
    auto* const read = static_cast<Reading*>(context);
    read->status = status;
    read->done.Notify();
  };
  rdt_status status = rdt_channel_post(channel_->handle(), &op, 1, on_read, &reading);
  if (status == RDT_IN_PROGRESS) {
    // Ends with the channel at the latest.
    reading.done.WaitForNotification();
    status = reading.status;
  }
  if (status != RDT_OK) {
    const std::string why = absl::StrCat("its memory cannot be read: ", rdt_status_name(status),
                                         ": ", rdt_status_text(status));
    RefuseUnreadable(why);
    return absl::UnavailableError(absl::StrCat("rdmatensor: ", why));
  }
  Release(from.lend_id);
  return absl::OkStatus();
}

void Fetcher::Finish(const Fetch& fetch) {
  Release(fetch.from.lend_id);
  CountFetch(Via::kRead, fetch.from.size);
  if (fetch.read_since != 0) {
    RecordSpan(SpanName("rdmatensor::read", EdgeNameIn(fetch.key), channel_->FirstName(),
                        fetch.from.size, PathName(fetch.path)),
               WaitMoment() - fetch.read_since);
  }
  delivery_->DeliverTensor(fetch.step_id, KeyId::Of(fetch.key), fetch.path, Via::kRead,
                           fetch.checksum, fetch.target);
}

void Fetcher::Release(uint64_t lend_id) {
  (void)channel_->Notify(PackImmediate(MessageKind::kRelease, lend_id));
}

void Fetcher::Fail(rdt_status status, const std::string& why) {
  if (!MeansLost(status)) events_->OnUnreachable(why);
  channel_->Refuse();
}

}  // namespace rdmatensor
