// SPDX-License-Identifier: Apache-2.0
//
// Spanning trees for the collective groups of this process's servers.
#ifndef RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_TREES_H_
#define RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_TREES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "rdmatensor.h"

extern "C" {
// Sets the trees for groups of `size` members that are formed from now on and whose first member is in this process.
// The arguments are those of rdt_group_use_trees; 0 trees take them away. Copies all. From any thread.
__attribute__((visibility("default"))) void rdt_tf_set_trees(const rdt_group_tree* trees,
                                                             size_t count, const double* pair_ns,
                                                             uint32_t size);
}

namespace rdmatensor {

// The longest encoding of trees that a member accepts.
inline constexpr uint64_t kMostTreeBytes = uint64_t{64} << 20;

// Returns the trees of this process for a group of `members`, as bytes for the other members; empty if there are none.
// Thread-safe.
std::string EncodedTrees(uint32_t members);

// Gives a new group the trees of its first member. Every member calls it; *encoded has as many bytes at each, but only
// the first member's count. An error says that the group must not be used. Blocks, at most twice `timeout_ms`.
absl::Status ShareTrees(rdt_group* group, uint32_t members, std::string* encoded, int timeout_ms);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_TREES_H_
