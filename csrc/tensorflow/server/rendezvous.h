// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's rendezvous between workers, with tensors pushed at Send instead of fetched at Recv.
#ifndef RDMATENSOR_TENSORFLOW_SERVER_RENDEZVOUS_H_
#define RDMATENSOR_TENSORFLOW_SERVER_RENDEZVOUS_H_

#include <atomic>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "peer/endpoint.h"
#include "plan/plan_book.h"
#include "step/mailbox.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/rpc/rpc_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "wire/channel.h"

namespace rdmatensor {

// Makes the stock rendezvous that fetches by RecvTensor.
class RpcRendezvousFactory : public tensorflow::RpcRendezvousMgr {
 public:
  explicit RpcRendezvousFactory(const tensorflow::WorkerEnv* env) : RpcRendezvousMgr(env) {}
  using tensorflow::RpcRendezvousMgr::Create;
};

// One step's rendezvous on this worker. Thread-safe, as TensorFlow requires.
class RdmaRendezvous : public tensorflow::BaseRemoteRendezvous {
 public:
  RdmaRendezvous(const tensorflow::WorkerEnv* env, int64_t step_id, Endpoint* endpoint,
                 RpcRendezvousFactory* rpc_factory);

  int64_t step_id() const { return step_id_; }
  // In which tasks have the names of keys; empty before TensorFlow says which.
  const std::string& session_name();
  // The session's connections; they outlive the step.
  std::shared_ptr<tensorflow::WorkerCacheInterface> workers();

  // Pushes to another task, or keeps the tensor until that task shows how it wants it. Never blocks.
  absl::Status Send(const ParsedKey& key, const Args& args, const tensorflow::Tensor& tensor,
                    bool is_dead) override;
  // Sends one tensor down `channel`, or puts it into the local rendezvous and refers the receiver.
  void Push(const std::shared_ptr<Channel>& channel, const ParsedKey& key, const Args& args,
            const tensorflow::Tensor& tensor, bool is_dead);
  // The same, or keeps it until the receiver asks for it, if it does.
  void PushWhenAsked(const std::shared_ptr<Channel>& channel, const ParsedKey& key,
                     const Args& args, const tensorflow::Tensor& tensor, bool is_dead);
  // Tells the receiver to fetch the tensor by RecvTensor, and counts why.
  void Refer(const std::shared_ptr<Channel>& channel, const ParsedKey& key, const char* reason);
  // Into the local rendezvous, from where RecvTensor takes it.
  absl::Status SendLocal(const ParsedKey& key, const Args& args, const tensorflow::Tensor& tensor,
                         bool is_dead) {
    return BaseRemoteRendezvous::Send(key, args, tensor, is_dead);
  }

  Endpoint* endpoint() const { return endpoint_; }
  // Sends a planned tensor to its place. False: use Send.
  bool SendPlanned(const OutEdge& edge, const tensorflow::FrameAndIter& at,
                   const tensorflow::Tensor& tensor, bool is_dead);
  // Receives one, whichever way it comes; not before CanReceivePlanned.
  void ReceivePlanned(const InEdge& edge, const tensorflow::FrameAndIter& at, const Args& args,
                      DoneCallback done);
  bool CanReceivePlanned() { return is_initialized(); }

  // Fetches by TensorFlow's RecvTensor what its source referred there.
  void ReceiveByRpc(Waiter waiter);

  // Fetches by RecvTensor what SourcePeer::RouteFor decided so.
  void Ask(Waiter waiter);

  void StartAbort(const absl::Status& status) override;

 protected:
  void RecvFromRemoteAsync(const ParsedKey& key, const Args& args, DoneCallback done) override;

 private:
  ~RdmaRendezvous() override;
  // Why `tensor` cannot be pushed, or nullptr.
  static const char* WhyNotPushable(const ParsedKey& key, const tensorflow::Tensor& tensor);
  void Receive(const KeyId& key, Waiter waiter);
  // nullptr if it was sent, by `path`, else why it must go by RPC.
  const char* PushTensor(const std::shared_ptr<Channel>& channel, absl::string_view key,
                         const tensorflow::Tensor& tensor, Path* path);

  Endpoint* const endpoint_;
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
  RdmaRendezvousMgr(const tensorflow::WorkerEnv* env, Endpoint* endpoint);

  // A receiver's RecvTensor request: also finds tensors that wait for their receiver's choice.
  void RecvLocalAsync(int64_t step_id, const tensorflow::Rendezvous::ParsedKey& key,
                      tensorflow::Rendezvous::DoneCallback done) override;
  void Cleanup(int64_t step_id) override;

 protected:
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> Create(
      int64_t step_id, const tensorflow::WorkerEnv* env) override;

 private:
  Endpoint* const endpoint_;
  RpcRendezvousFactory rpc_factory_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVER_RENDEZVOUS_H_
