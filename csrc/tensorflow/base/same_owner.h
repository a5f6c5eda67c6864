// SPDX-License-Identifier: Apache-2.0
//
// Compares what two shared pointers own.
#ifndef RDMATENSOR_TENSORFLOW_BASE_SAME_OWNER_H_
#define RDMATENSOR_TENSORFLOW_BASE_SAME_OWNER_H_

#include <memory>

namespace rdmatensor {

// Whether both keep the same object alive; `a` may have expired.
template <typename T>
bool SameOwner(const std::weak_ptr<T>& a, const std::shared_ptr<T>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_SAME_OWNER_H_
