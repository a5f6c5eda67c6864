// SPDX-License-Identifier: Apache-2.0
//
// What the parts of one server have in common.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_HOST_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_HOST_H_

#include <memory>
#include <string>

#include "base/settings.h"
#include "memory/arena_exports.h"
#include "rdmatensor.h"

namespace rdmatensor {

// What the parts of one server have in common. Lives until the process ends, as TensorFlow's servers do.
struct Host {
  std::string task;  // "/job:worker/replica:0/task:1"
  Settings settings;
  rdt_device* device = nullptr;
  std::string address;                    // the host:port by which peers reach the device
  std::unique_ptr<ArenaExports> exports;  // the arena as the device's peers see it
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_HOST_H_
