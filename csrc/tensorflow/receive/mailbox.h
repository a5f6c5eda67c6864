// SPDX-License-Identifier: Apache-2.0
//
// Mailboxes, one per step, in which pushed tensors meet the receives that want them. Either may come
// first. A receive ends exactly once: with its tensor, with the failure of the peer that should have
// sent it, with the step's abort, or with its own cancellation.
//
// (TensorFlow's own local rendezvous is not used for this: it cannot fail the receives of one peer
// only, and it keeps every aborted instance for ever.)
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_MAILBOX_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_MAILBOX_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/recent_map.h"
#include "channel/rpc_fallback.h"
#include "graph/planned_edge.h"
#include "receive/unclaimed_budget.h"
#include "stats/checksum.h"
#include "stats/edge_waits.h"
#include "stats/path_stats.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace rdmatensor {

struct Arrival {
  tensorflow::Tensor tensor;
  bool is_dead = false;
  bool use_rpc = false;    // no tensor: fetch it by RecvTensor
  Path path = Path::kRpc;  // by which it came
  std::unique_ptr<const ExpectedChecksum>
      expected;                  // to be verified before anybody gets the tensor; may be none
  UnclaimedBudget::Share share;  // held from the moment at which no receive waited for it

  // What it costs this process to keep it. Other tensors lie in the sender's memory, or in slots, or were fetched as
  // this process wanted.
  int64_t Cost() const {
    constexpr int64_t kEach = 256;
    return kEach + (path == Path::kInline ? static_cast<int64_t>(tensor.TotalBytes()) : 0);
  }
};

struct Waiter {
  tensorflow::Rendezvous::DoneCallback done;
  tensorflow::Rendezvous::Args args;
  // In whose memory the tensor shall lie; nullptr: the host's.
  tensorflow::Device* device = nullptr;
  // What it waits for: a planned edge's execution, or a key.
  std::shared_ptr<const EdgeDefinition> edge;
  tensorflow::FrameAndIter at{0, 0};
  std::string key;
  uint64_t source_incarnation = 0;
  // Identifies who should send it; only compared.
  std::shared_ptr<const void> sender;
  // Kept alive by `done`, as TensorFlow's base class arranges.
  RpcFallback* rpc = nullptr;
  EdgeWaits* waits = nullptr;
  uint64_t since = 0;  // WaitMoment at which it began to wait; 0: it did not

  std::string FullKey() const { return edge != nullptr ? SpellKey(edge->key_prefix, at) : key; }
  absl::string_view EdgeName() const;
  KeyId Id() const { return edge != nullptr ? edge->key.At(at) : KeyId::Of(key); }
  void Fail(const absl::Status& status) const;
  // Counts the wait, which ends because the tensor is here.
  void EndWait(uint64_t bytes, Path path) const {
    if (since == 0) return;
    rdmatensor::EndWait(waits, since, [this] { return EdgeName(); }, bytes, path);
  }
};

// Thread-safe. Callbacks run without its lock.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  enum class Received { kArrived, kWaiting, kFailed };

  explicit Mailbox(int64_t step_id)
      : step_id_(step_id), created_(std::chrono::steady_clock::now()) {}

  // kArrived: `arrival` is what was there. kWaiting: `waiter` was stored; it and everything it keeps
  // alive may already be gone. kFailed: `status` says why, `waiter` was not touched.
  Received Receive(Waiter* waiter, Arrival* arrival, absl::Status* status);
  // The same for several waiters under one lock. `met` gets those whose arrival was there, and kFailed leaves in
  // `waiters` those that failed.
  struct Met {
    Waiter waiter;
    Arrival arrival;
  };
  Received ReceiveAll(std::vector<Waiter>* waiters, std::vector<Met>* met, absl::Status* status);
  enum class Delivered { kTaken, kKept, kGone, kTooMuch };
  // kTaken: a receive waited, `waiter` is the caller's to complete, `arrival` untouched. kKept: the
  // arrival is stored, or dropped when the step was aborted. kGone: the table has let go of this
  // mailbox, and the step may have another one since; `arrival` is untouched. kTooMuch: it was dropped,
  // because no receive has asked for it and `unclaimed` is full.
  Delivered Deliver(const KeyId& key, const std::shared_ptr<UnclaimedBudget>& unclaimed,
                    Arrival* arrival, Waiter* waiter);
  // The same for several arrivals under one lock; never kTaken. `met` gets those taken.
  Delivered DeliverAll(const std::shared_ptr<UnclaimedBudget>& unclaimed,
                       std::vector<std::pair<KeyId, Arrival>>* arrivals, std::vector<Met>* met);
  // Drops the arrivals that `unclaimed` counts.
  void Drop(const UnclaimedBudget* unclaimed);
  // The table, which is locked, drops this mailbox.
  void Retire();
  // Does the same if the mailbox is empty; otherwise returns false.
  bool RetireIfEmpty();

  // Fails all receives and drops all arrivals, now and later.
  void Abort(const absl::Status& status);
  // Takes out the waiters for which `wanted` holds.
  std::vector<Waiter> Extract(const std::function<bool(const Waiter&)>& wanted);

  bool HasArrived(const KeyId& key);
  int64_t step_id() const { return step_id_; }
  std::chrono::steady_clock::time_point created() const { return created_; }
  int attached = 0;  // rendezvous objects that use it; guarded by MailboxTable

 private:
  struct Slot {
    // There is nearly always one of either; TensorFlow allows more under the same key.
    absl::InlinedVector<Arrival, 1> arrivals;
    absl::InlinedVector<Waiter, 1> waiters;
  };
  // One callback serves all waiters of a cancellation manager, and goes before the last of them ends:
  // the manager may not outlive that.
  struct Cancellation {
    tensorflow::CancellationToken token;
    int waiters;
  };
  using Slots = absl::flat_hash_map<KeyId, Slot>;
  bool TakeArrivalLocked(const KeyId& key, Arrival* arrival);
  bool TakeWaiterLocked(const KeyId& key, Waiter* waiter);
  bool RegisterLocked(tensorflow::CancellationManager* manager);
  void DeregisterLocked(tensorflow::CancellationManager* manager);
  void Cancel(tensorflow::CancellationManager* manager);

  const int64_t step_id_;
  const std::chrono::steady_clock::time_point created_;
  std::mutex mutex_;
  absl::Status aborted_;
  bool gone_ = false;
  Slots slots_;
  absl::flat_hash_map<tensorflow::CancellationManager*, Cancellation> cancellations_;
};

// The mailboxes of a server. Messages may come before their step is known here, or long after it was
// cleaned up: the last steps that were cleaned up are remembered so that their late messages are
// dropped. Mailboxes that no local step ever used are dropped after `ttl`.
class MailboxTable {
 public:
  explicit MailboxTable(std::chrono::seconds ttl) : ttl_(ttl) {}

  // For a local rendezvous; pair it with Detach.
  std::shared_ptr<Mailbox> Attach(int64_t step_id);
  void Detach(const std::shared_ptr<Mailbox>& mailbox);
  // For a message; nullptr if the step was cleaned up.
  std::shared_ptr<Mailbox> ForMessage(int64_t step_id);
  // nullptr if the step has none.
  std::shared_ptr<Mailbox> Find(int64_t step_id);
  // The step is over; drops its mailbox.
  void Remove(int64_t step_id, const absl::Status& status);
  bool WasRemoved(int64_t step_id);
  std::vector<std::shared_ptr<Mailbox>> All();

 private:
  void SweepLocked(std::vector<std::shared_ptr<Mailbox>>* dropped);

  const std::chrono::seconds ttl_;
  std::mutex mutex_;
  absl::flat_hash_map<int64_t, std::shared_ptr<Mailbox>> mailboxes_;
  static constexpr size_t kRemembered = 4096;
  RecentMap<int64_t> removed_{kRemembered};
  std::chrono::steady_clock::time_point last_sweep_ = std::chrono::steady_clock::now();
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_MAILBOX_H_
