// SPDX-License-Identifier: Apache-2.0
//
// Threads for what may wait for other calls.
#ifndef RDMATENSOR_TENSORFLOW_CONTROL_MAY_BLOCK_H_
#define RDMATENSOR_TENSORFLOW_CONTROL_MAY_BLOCK_H_

#include <functional>
#include <utility>

#include "tensorflow/core/platform/unbounded_work_queue.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {

// Runs a closure on a thread of its own, which others use afterwards. A pool of limited size could be full of closures
// that wait for one that finds no thread.
inline void RunWhereItMayBlock(std::function<void()> run) {
  static auto* const threads =
      new tensorflow::UnboundedWorkQueue(tsl::Env::Default(), "rdmatensor_calls");
  threads->Schedule(std::move(run));
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CONTROL_MAY_BLOCK_H_
