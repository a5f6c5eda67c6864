// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's own RPC, as one step uses it for tensors that no channel carries. The step's rendezvous
// implements this interface, which is all that the rooms below the server know of it.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_RPC_FALLBACK_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_RPC_FALLBACK_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace rdmatensor {

struct Waiter;

// Thread-safe. It counts references, and every waiting tensor or receive holds one.
class RpcFallback {
 public:
  virtual void Hold() = 0;
  virtual void LetGo() = 0;

  // The session in which tasks have the names of keys; empty before TensorFlow says which.
  virtual const std::string& session_name() = 0;
  // The session's connections; they outlive the step.
  virtual std::shared_ptr<tensorflow::WorkerCacheInterface> workers() = 0;

  // Receiver: fetches the tensor by RecvTensor.
  virtual void ReceiveByRpc(Waiter waiter) = 0;
  // Sender: puts the tensor into the local rendezvous, from where RecvTensor takes it. Fails only when the step
  // was aborted.
  virtual absl::Status SendLocal(const tensorflow::Rendezvous::ParsedKey& key,
                                 const tensorflow::Rendezvous::Args& args,
                                 const tensorflow::Tensor& tensor, bool is_dead) = 0;

 protected:
  ~RpcFallback() = default;
};

// A counted reference.
struct LetRpcGo {
  void operator()(RpcFallback* rpc) const { rpc->LetGo(); }
};
using RpcReference = std::unique_ptr<RpcFallback, LetRpcGo>;
inline RpcReference HoldRpc(RpcFallback* rpc) {
  rpc->Hold();
  return RpcReference(rpc);
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_RPC_FALLBACK_H_
