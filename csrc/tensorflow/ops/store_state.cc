// SPDX-License-Identifier: Apache-2.0
#include "ops/store_state.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace rdmatensor {

StoreState::Use::~Use() {
  std::lock_guard<std::mutex> lock(state_->mutex_);
  if (--state_->uses_ == 0) state_->unused_.notify_all();
}

absl::StatusOr<std::shared_ptr<StoreState::Use>> StoreState::Enter() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (left_) {
    return absl::FailedPreconditionError(
        absl::StrCat("rdmatensor: store ", name,
                     " is closed: open a store, and trace the functions that use it anew"));
  }
  ++uses_;
  return std::make_shared<Use>(shared_from_this());
}

void StoreState::Leave() {
  std::unique_lock<std::mutex> lock(mutex_);
  left_ = true;
  unused_.wait(lock, [this] { return uses_ == 0; });
}

}  // namespace rdmatensor
