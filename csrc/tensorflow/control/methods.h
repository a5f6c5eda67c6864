// SPDX-License-Identifier: Apache-2.0
//
// What one task can call at another one. The names are TensorFlow's, because its users find them in error texts.
#ifndef RDMATENSOR_TENSORFLOW_CONTROL_METHODS_H_
#define RDMATENSOR_TENSORFLOW_CONTROL_METHODS_H_

#include <cstdint>

namespace rdmatensor {

// The numbers travel.
enum class Method : uint8_t { kRunGraph = 1, kCleanupGraph = 2 };
inline constexpr int kMethodCount = 3;  // one more than the greatest

// Never nullptr.
inline const char* MethodName(Method method) {
  switch (method) {
    case Method::kRunGraph:
      return "/tensorflow.WorkerService/RunGraph";
    case Method::kCleanupGraph:
      return "/tensorflow.WorkerService/CleanupGraph";
  }
  return "";
}

// Whether anybody waits for its end. If not, nothing is answered.
inline bool IsAnswered(Method method) { return method != Method::kCleanupGraph; }

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CONTROL_METHODS_H_
