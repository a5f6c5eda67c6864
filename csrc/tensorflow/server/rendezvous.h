// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's rendezvous between workers, with tensors pushed at Send instead of fetched at Recv.
#ifndef RDMATENSOR_TENSORFLOW_SERVER_RENDEZVOUS_H_
#define RDMATENSOR_TENSORFLOW_SERVER_RENDEZVOUS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "channel/rpc_fallback.h"
#include "receive/in_plans.h"
#include "receive/mailbox.h"
#include "send/accepted_offer.h"
#include "service/tensor_service.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/rpc/rpc_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rdmatensor {

// Makes the stock rendezvous that fetches by RecvTensor.
class RpcRendezvousFactory : public tensorflow::RpcRendezvousMgr {
 public:
  explicit RpcRendezvousFactory(const tensorflow::WorkerEnv* env) : RpcRendezvousMgr(env) {}
  using tensorflow::RpcRendezvousMgr::Create;
};

// One step's rendezvous on this worker. Thread-safe, as TensorFlow requires.
class RdmaRendezvous final : public tensorflow::BaseRemoteRendezvous, public RpcFallback {
 public:
  RdmaRendezvous(const tensorflow::WorkerEnv* env, int64_t step_id, TensorService* service,
                 RpcRendezvousFactory* rpc_factory);

  // The rendezvous of the step that `context` runs in, if it belongs to the server of `task`; else nullptr.
  static RdmaRendezvous* Of(tensorflow::OpKernelContext* context, const std::string& task);

  void Hold() override { Ref(); }
  void LetGo() override { Unref(); }
  const std::string& session_name() override;
  std::shared_ptr<tensorflow::WorkerCacheInterface> workers() override;
  void ReceiveByRpc(Waiter waiter) override;
  absl::Status SendLocal(const ParsedKey& key, const Args& args, const tensorflow::Tensor& tensor,
                         bool is_dead) override {
    return BaseRemoteRendezvous::Send(key, args, tensor, is_dead);
  }

  // Pushes to another task, or keeps the tensor until that task shows how it wants it. Never blocks.
  absl::Status Send(const ParsedKey& key, const Args& args, const tensorflow::Tensor& tensor,
                    bool is_dead) override;
  TensorService* service() const { return service_; }
  // Sends planned tensors, of which `edge`, `tensor` and `is_dead` are set, to their places. The caller uses Send for
  // those of which `went` is false afterwards.
  void SendPlanned(const tensorflow::FrameAndIter& at, absl::Span<AcceptedOffer::Sent> all);
  // Receives planned tensors of one graph from one task, by whichever path they come, into the memory of `device`, or
  // the host's if that is nullptr. Each callback runs once. Call this only if CanReceivePlanned.
  struct PlannedReceive {
    const InEdge* edge;
    DoneCallback done;
  };
  void ReceivePlanned(const tensorflow::FrameAndIter& at, const Args& args,
                      tensorflow::Device* device, absl::Span<PlannedReceive> all);
  bool CanReceivePlanned() { return is_initialized(); }

  // Called as the step begins here. Fails if the step is over already.
  absl::Status Initialize(tensorflow::WorkerSession* session) override;
  void StartAbort(const absl::Status& status) override;

 protected:
  void RecvFromRemoteAsync(const ParsedKey& key, const Args& args, DoneCallback done) override;

 private:
  ~RdmaRendezvous() override;
  void Receive(Waiter waiter, const std::shared_ptr<Sender>& sender);
  // Receives tensors of one sender that were all to be pushed at `epoch`.
  void ReceiveAll(std::vector<Waiter> waiters, const std::shared_ptr<Sender>& sender,
                  uint64_t epoch);

  TensorService* const service_;
  RpcRendezvousFactory* const rpc_factory_;
  const std::shared_ptr<Mailbox> mailbox_;
  const uint64_t began_ = Moment();
  std::atomic<bool> aborted_{false};

  std::mutex rpc_mutex_;
  absl::Status rpc_aborted_;
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> rpc_;  // made on first use
};

class RdmaRendezvousMgr : public tensorflow::BaseRendezvousMgr {
 public:
  RdmaRendezvousMgr(const tensorflow::WorkerEnv* env, TensorService* service);

  // Serves a receiver's RecvTensor request. Also finds tensors that wait for their receiver's choice.
  void RecvLocalAsync(int64_t step_id, const tensorflow::Rendezvous::ParsedKey& key,
                      tensorflow::Rendezvous::DoneCallback done) override;
  void Cleanup(int64_t step_id) override;

 protected:
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> Create(
      int64_t step_id, const tensorflow::WorkerEnv* env) override;

 private:
  TensorService* const service_;
  RpcRendezvousFactory rpc_factory_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVER_RENDEZVOUS_H_
