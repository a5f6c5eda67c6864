// SPDX-License-Identifier: Apache-2.0
//
// The receiver's half of planned tensors: the memory in which they arrive.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_SLOTS_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_SLOTS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fork_guard.h"
#include "channel/budget.h"
#include "channel/channel.h"
#include "channel/plan_message.h"
#include "channel/server_context.h"
#include "graph/planned_edge.h"
#include "rdmatensor.h"
#include "receive/reception.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdmatensor {

// An edge and its place.
struct PlacedEdge {
  std::shared_ptr<const EdgeDefinition> definition;
  uint64_t hash = 0;
  rdt_plan_place place{};
  // The graph tells the full shape; otherwise the tensors bring theirs.
  bool has_static_shape = false;
  tensorflow::TensorShape shape;
};

// The edges of one graph from one task into this one, placed. Immutable.
struct PlacedLink {
  int64_t graph = 0;
  std::string source, destination;
  std::vector<PlacedEdge> edges;   // static and bounded ones, which are offered
  std::vector<PlacedEdge> others;  // dynamic ones and those left to RPC
  std::vector<Offer::Ring> rings;
  std::vector<std::vector<uint32_t>> groups;  // indices of edges; the order of the bits in masks
  uint64_t bytes = 0;
  uint64_t hash = 0;
};

// The places of a link for one channel. Thread-safe. Lives until the offer was withdrawn or the channel is
// down, and the last tensor in a place is gone.
class Slots : public std::enable_shared_from_this<Slots> {
 public:
  // Allocates and registers the memory, which may take long. RESOURCE_EXHAUSTED when the machine's
  // limits forbid it.
  static absl::StatusOr<std::shared_ptr<Slots>> Create(const ServerContext* server,
                                                       std::shared_ptr<Channel> channel,
                                                       Reception* reception,
                                                       std::shared_ptr<const PlacedLink> link,
                                                       uint32_t number);
  ~Slots();
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  const PlacedLink& link() const { return *link_; }
  bool accepted() const { return accepted_.load(std::memory_order_acquire); }
  // Sends the offer over its channel. Call this once.
  void SendOffer(Channel* channel);
  // The sender accepted the offer. Credits are written to this region from now on.
  void OnAccept(uint64_t credits_key);
  // Delivers what a message brought. False: the peer broke the protocol. Progress thread.
  bool Take(const PlannedMessage& message);
  // Asks the sender to write no more. Idempotent.
  void Withdraw();
  // Ends the offer: nothing more will come. Releases the channel and the sender's memory; tensors stay.
  // Progress thread.
  void End();

 private:
  class Hold;
  class Buffer;
  Slots(const ServerContext* server, std::shared_ptr<Channel> channel, Reception* reception,
        std::shared_ptr<const PlacedLink> link, uint32_t number);
  // The memory of a slot, held until all tensors in it are gone; nullptr if it is held already.
  std::shared_ptr<Hold> Occupy(int32_t ring, uint32_t slot);
  void Return(size_t slot);
  void NoteCreditLocked(size_t slot);
  bool TakeUnwrittenLocked(rdt_op* op);
  // A step gives its places back one by one. What is given back during a write goes with the next one.
  void WriteCredits();
  static void OnCreditsWritten(void* context, rdt_status status);
  // No write of credits is under way any more.
  void EndWrite();
  void OpenCredits(const std::shared_ptr<Channel>& channel, uint64_t key);
  bool IsWithdrawn();
  bool TakeGroup(const PlannedMessage& message);
  bool TakeSingle(const PlannedMessage& message);
  // Takes a lent tensor whose memory is not open here yet.
  bool TakeUnmapped(const PlacedEdge& edge, const PlannedMessage& message,
                    const tensorflow::TensorShape& shape);
  // Delivers a tensor with bytes, which came with `checksum`.
  void DeliverBytes(const PlacedEdge& edge, const PlannedMessage& message, Via via,
                    const Checksum& checksum, tensorflow::Tensor tensor);
  // Delivers a tensor without bytes.
  void DeliverArrival(const PlacedEdge& edge, const PlannedMessage& message, Arrival arrival);
  void DeliverDead(const PlacedEdge& edge, const PlannedMessage& message);

  const ServerContext* const server_;
  // Reset by End. The progress thread reads it without `mutex_`.
  std::shared_ptr<Channel> channel_;
  Reception* const reception_;  // lives as long as the channel
  const std::shared_ptr<const PlacedLink> link_;
  const uint32_t number_;
  const ForkGuard fork_guard_;
  PlaceReservation reservation_;
  rdt_region* region_ = nullptr;
  uint64_t region_key_ = 0;
  char* base_ = nullptr;
  std::vector<size_t> first_slot_;  // by ring: the number of its first slot among all

  std::mutex mutex_;
  std::vector<bool> occupied_;
  std::vector<uint64_t> returned_;  // how often, as the credits say it; never moves
  size_t unwritten_begin_ = SIZE_MAX, unwritten_end_ = 0;  // slots whose credits the sender lacks
  bool writing_ = false;                                   // one write of credits is under way
  rdt_remote_region* credits_ = nullptr;
  std::atomic<uint64_t>* mapped_credits_ = nullptr;
  bool withdrawn_ = false;
  bool withdraw_due_ = false;  // the sender is told once the write of credits is done
  std::atomic<bool> accepted_{false};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_SLOTS_H_
