// SPDX-License-Identifier: Apache-2.0
//
// Random numbers that need no descriptor: std::random_device opens a file, and throws when no more can be opened.
#ifndef RDMATENSOR_TENSORFLOW_BASE_RANDOM_H_
#define RDMATENSOR_TENSORFLOW_BASE_RANDOM_H_

#include <sys/random.h>

#include <chrono>
#include <cstdint>

namespace rdmatensor {

// Returns 64 random bits of the system. Never fails.
inline uint64_t RandomBits() {
  uint64_t bits = 0;
  // Only kernels older than 3.17, and filters of system calls, refuse. The moment still differs between processes.
  if (getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) {
    bits = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) *
           0x9e3779b97f4a7c15;
  }
  return bits;
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_RANDOM_H_
