// SPDX-License-Identifier: Apache-2.0
//
// A store of the core as the resource of TensorFlow's operations.
#ifndef RDMATENSOR_TENSORFLOW_OPS_STORE_STATE_H_
#define RDMATENSOR_TENSORFLOW_OPS_STORE_STATE_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "rdmatensor.h"

namespace rdmatensor {

// Thread-safe. Made by std::make_shared.
class StoreState : public std::enable_shared_from_this<StoreState> {
 public:
  // `store` lives until Leave has returned. It holds `bytes` in a version, and `slot_bytes` in a slot.
  StoreState(rdt_store* store, std::string name, uint64_t bytes, uint64_t slot_bytes)
      : bytes(bytes), slot_bytes(slot_bytes), name(std::move(name)), store_(store) {}

  // While it lives, the store is not given up.
  class Use {
   public:
    explicit Use(std::shared_ptr<StoreState> state) : state_(std::move(state)) {}
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    StoreState* operator->() const { return state_.get(); }
    rdt_store* store() const { return state_->store_; }

   private:
    const std::shared_ptr<StoreState> state_;
  };
  // FailedPrecondition after Leave.
  absl::StatusOr<std::shared_ptr<Use>> Enter();
  // No use begins any more, and it waits until all have ended. Call it after rdt_store_stop, which ends their waits.
  void Leave();

  std::string Description() const { return "rdmatensor store " + name; }

  const uint64_t bytes, slot_bytes;
  const std::string name;
  std::mutex publishing;  // one version at a time

 private:
  rdt_store* const store_;
  std::mutex mutex_;
  std::condition_variable unused_;
  int uses_ = 0;
  bool left_ = false;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_OPS_STORE_STATE_H_
