// SPDX-License-Identifier: Apache-2.0
//
// The sender's half of planned tensors: a receiver's offer of places, in use.
#ifndef RDMATENSOR_TENSORFLOW_SEND_ACCEPTED_OFFER_H_
#define RDMATENSOR_TENSORFLOW_SEND_ACCEPTED_OFFER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/fork_guard.h"
#include "base/use_gate.h"
#include "channel/channel.h"
#include "channel/plan_message.h"
#include "channel/server_context.h"
#include "graph/planned_edge.h"
#include "rdmatensor.h"
#include "send/offer_account.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdmatensor {

class AcceptedOffer;

// Numbers the moments of this process: a later call returns a larger number.
inline uint64_t Moment() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

// Decides whether the tensors of a step may go down a channel at present.
class PushGate {
 public:
  // Decides for a step of `session`, whose name is `name`. The answer holds for all keys.
  virtual bool MayPush(tensorflow::WorkerSession* session, const std::string& name, int64_t step_id,
                       const Channel* channel) = 0;

 protected:
  ~PushGate() = default;
};

// A planned edge that leaves this process. Shared by the kernels that send it.
struct OutEdge {
  std::shared_ptr<const EdgeDefinition> definition;
  uint64_t hash = 0;

  std::mutex mutex;
  std::shared_ptr<AcceptedOffer> accepted;  // nullptr: its tensors take the dynamic path
  std::shared_ptr<PushGate> gate;           // of the task that receives; with accepted
  uint32_t index = 0;                       // of the edge in the offer
};

// Thread-safe. Ends when the receiver withdraws the offer or the channel goes down.
class AcceptedOffer : public std::enable_shared_from_this<AcceptedOffer> {
 public:
  // `reservation` is held as long as the offer is.
  AcceptedOffer(const ServerContext* server, std::shared_ptr<Channel> channel, uint32_t number,
                Offer offer, std::shared_ptr<const void> reservation);
  ~AcceptedOffer();
  AcceptedOffer(const AcceptedOffer&) = delete;
  AcceptedOffer& operator=(const AcceptedOffer&) = delete;

  const Offer& offer() const { return offer_; }
  Channel* channel() const { return channel_.get(); }
  // Makes the places reachable and accepts the offer. Memory to write from counts in `account`. Blocks.
  absl::Status Open(OfferAccount* account);
  // Sends the edge by this offer from now on, if the offer has a place for it. A group is used once all its
  // members are bound, because it waits for each of them in every step. If the ends understand the edge
  // differently, it takes the dynamic path; the first such edge is logged as a warning.
  void Bind(const std::shared_ptr<OutEdge>& edge, const std::shared_ptr<PushGate>& gate);
  // Ends the use of the places. The receiver is told when nothing is being written any more. Idempotent.
  void Close();

  // An execution of a step.
  struct Step {
    int64_t id;
    tensorflow::FrameAndIter at;
    uint64_t began;  // the Moment at which it began here
    bool may_push;   // otherwise its tensors take another way, which their groups must know
  };
  struct Sent {
    const OutEdge* edge;
    uint32_t index;  // of the edge in the offer
    const tensorflow::Tensor* tensor;
    bool is_dead = false;
    // What Send concludes. False at the end if the tensor must take another way: no place is free, or it does not
    // fit.
    bool went = false;
  };
  // Sends tensors that are here at the same time. Members of a group should be neighbours.
  void Send(const Step& step, absl::Span<Sent> all);
  // The step is over: gives back what its incomplete groups hold.
  void DropStep(int64_t step_id);

 private:
  struct Ring {
    std::mutex mutex;
    size_t first = 0;  // number of its first slot among all
    uint32_t next = 0;
  };
  // A group in one step.
  struct GroupStep {
    int64_t step_id = 0;
    int slot = -1;                               // none was free: its members go alone
    uint64_t arrived = 0, dead = 0;              // bits of members
    uint64_t absent = 0;                         // arrived, and gone another way
    absl::InlinedVector<uint32_t, 1> checksums;  // of all members, with CHECKSUM
    int writing = 0;
    bool dropped = false;
  };
  struct Group {
    std::mutex mutex;
    std::vector<uint32_t> members;  // indices of edges
    uint64_t bound = 0;             // bits of members
    uint64_t bound_at = 0;          // Moment; only in steps that began later do all members come
    uint64_t bytes = 0;             // of a slot that hold tensors
    std::list<GroupStep> steps;
  };
  // Writes and their announcements, and what they need until the transport has done them.
  struct Posted {
    std::shared_ptr<AcceptedOffer> accepted;
    std::vector<tensorflow::Tensor> sources;
    std::deque<std::string> messages;  // the operations point into them
    std::vector<rdt_op> ops;
  };

  void WarnMismatch(const std::string& edge);
  bool Enter();
  void Leave();
  void Finish();
  // A slot that the receiver has given back, as its number in the ring; -1 if there is none.
  int Acquire(int32_t ring);
  static uint64_t AllOf(const Group& group);
  // Gives back a slot that was never announced.
  void Release(int32_t ring, int slot);
  uint64_t SlotOffset(int32_t ring, int slot) const;
  // Adds to *posted, which the first write creates, what is to be written.
  bool SendSingle(const Step& step, const Sent& sent, std::unique_ptr<Posted>* posted);
  // Sends members of one group, of which `went` says so far whether they may go.
  void SendGrouped(const Step& step, absl::Span<Sent> members);
  // Copies a member into its group's slot. Returns its checksum; 0 without CHECKSUM.
  uint32_t CopyIntoGroup(const Sent& sent, int slot);
  bool Announce(const PlannedMessage& message);
  // Lends the tensor where it lies; false if the receiver cannot use it there.
  bool Lend(const OutEdge& edge, const tensorflow::Tensor& tensor, PlannedMessage* message);
  void AddChecksum(const void* data, uint64_t bytes, PlannedMessage* message) const;
  // Copies `bytes` of `source` into the places, if these are mapped, and announces them. Otherwise Post does.
  void WriteAndNotify(tensorflow::Tensor source, const void* data, uint64_t bytes, uint64_t offset,
                      const PlannedMessage& message, std::unique_ptr<Posted>* posted);
  // Posts all at once, so that few system calls send them.
  void Post(std::unique_ptr<Posted> posted);
  // Copies *source, if necessary, to memory that nobody writes to and from which the transport can send without
  // registering it first.
  bool MakeSendable(bool may_change, tensorflow::Tensor* source) const;
  // Announces the incomplete groups, whose missing members will go another way.
  void FinishGroups();
  // Announces a group, or drops it.
  void FinishGroup(Group* group, std::list<GroupStep>::iterator step, const Offer::Edge& offered);

  const ServerContext* const server_;
  const std::shared_ptr<Channel> channel_;
  const uint32_t number_;
  const ForkGuard fork_guard_;
  const Offer offer_;
  const std::shared_ptr<const void> reservation_;
  std::shared_ptr<const void> staging_reservation_;
  absl::flat_hash_map<absl::string_view, uint32_t> index_of_;  // by name
  std::vector<Ring> rings_;
  std::vector<Group> groups_;
  std::vector<uint64_t> bits_;  // of each edge in its group
  std::vector<uint64_t> used_;  // by slot: how often; under its ring's mutex
  std::atomic<uint64_t>* returned_ = nullptr;
  rdt_region* credits_ = nullptr;
  rdt_region* staging_ = nullptr;  // for groups, where the places are not mapped
  char* staging_base_ = nullptr;
  rdt_remote_region* places_ = nullptr;
  char* mapped_places_ = nullptr;  // where the transport can map them

  UseGate use_gate_;  // closed once no tensor may use the places any more
  std::atomic<bool> warned_{false}, finished_{false};
  std::atomic<int> open_steps_{0};
  std::mutex bound_mutex_;
  std::vector<std::weak_ptr<OutEdge>> bound_;  // by edge of the offer
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_ACCEPTED_OFFER_H_
