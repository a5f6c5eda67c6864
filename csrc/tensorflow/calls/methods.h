// SPDX-License-Identifier: Apache-2.0
//
// What one task can call at another one. The names are TensorFlow's, because its users find them in error texts.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_METHODS_H_
#define RDMATENSOR_TENSORFLOW_CALLS_METHODS_H_

#include <cstdint>

namespace rdmatensor {

// The numbers travel.
enum class Method : uint8_t {
  kRunGraph = 1,
  kCleanupGraph = 2,
  kCreateContext = 3,
  kUpdateContext = 4,
  kEnqueue = 5,
  kStreamingEnqueue = 6,
  kRunComponentFunction = 7,
  kWaitQueueDone = 8,
  kKeepAlive = 9,
  kCloseContext = 10,
  kRecvTensor = 11  // see recv_tensor.h
};
inline constexpr int kMethodCount = 12;  // one more than the greatest

// Never nullptr.
inline const char* MethodName(Method method) {
  switch (method) {
    case Method::kRunGraph:
      return "/tensorflow.WorkerService/RunGraph";
    case Method::kCleanupGraph:
      return "/tensorflow.WorkerService/CleanupGraph";
    case Method::kCreateContext:
      return "/tensorflow.eager.EagerService/CreateContext";
    case Method::kUpdateContext:
      return "/tensorflow.eager.EagerService/UpdateContext";
    case Method::kEnqueue:
      return "/tensorflow.eager.EagerService/Enqueue";
    case Method::kStreamingEnqueue:
      return "/tensorflow.eager.EagerService/StreamingEnqueue";
    case Method::kRunComponentFunction:
      return "/tensorflow.eager.EagerService/RunComponentFunction";
    case Method::kWaitQueueDone:
      return "/tensorflow.eager.EagerService/WaitQueueDone";
    case Method::kKeepAlive:
      return "/tensorflow.eager.EagerService/KeepAlive";
    case Method::kCloseContext:
      return "/tensorflow.eager.EagerService/CloseContext";
    case Method::kRecvTensor:
      return "/tensorflow.WorkerService/RecvTensor";
  }
  return "";
}

// Whether anybody waits for its end. If not, nothing is answered.
inline bool IsAnswered(Method method) { return method != Method::kCleanupGraph; }

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_METHODS_H_
