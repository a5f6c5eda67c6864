// SPDX-License-Identifier: Apache-2.0
//
// The names that peers tell: which are well-formed, and how many one process may have.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_NAMES_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_NAMES_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace rdmatensor {

// State is kept for each name, so names must not be of any length.
inline constexpr size_t kLongestName = 1024;
// Limits the names of a process. Sessions that name one process differently are rare.
inline constexpr size_t kMaxNames = 64;

// Returns whether `name` has the form "/job:worker/replica:0/task:1".
bool NamesTask(absl::string_view name);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_NAMES_H_
