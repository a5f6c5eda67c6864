// SPDX-License-Identifier: Apache-2.0
//
// The arena for devices that are not those of servers, such as that of rdmatensor.train.
#ifndef RDMATENSOR_TENSORFLOW_MEMORY_ARENA_SHARE_H_
#define RDMATENSOR_TENSORFLOW_MEMORY_ARENA_SHARE_H_

#include <cstdint>

#include "rdmatensor.h"

extern "C" {
// Uses the arena from now on, and registers it with the device, whose peers may read it. Returns what
// rdt_tf_arena_unshare takes before the device is closed; nullptr, with a line in the log, if there is no arena:
// tensors are copied then. From any thread.
__attribute__((visibility("default"))) void* rdt_tf_arena_share(rdt_device* device);
__attribute__((visibility("default"))) void rdt_tf_arena_unshare(void* shared);
// Calls rdmatensor::TrimArena. From any thread.
__attribute__((visibility("default"))) uint64_t rdt_tf_arena_trim();
}

#endif  // RDMATENSOR_TENSORFLOW_MEMORY_ARENA_SHARE_H_
