// SPDX-License-Identifier: Apache-2.0
#include "server/rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/task_name.h"
#include "receive/delivery.h"
#include "stats/path_stats.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rdmatensor {

using tensorflow::Tensor;

RdmaRendezvous::RdmaRendezvous(const tensorflow::WorkerEnv* env, int64_t step_id,
                               TensorService* service, RpcRendezvousFactory* rpc_factory)
    : BaseRemoteRendezvous(env, step_id),
      service_(service),
      rpc_factory_(rpc_factory),
      mailbox_(service->mailboxes().Attach(step_id)) {}

RdmaRendezvous* RdmaRendezvous::Of(tensorflow::OpKernelContext* context, const std::string& task) {
  auto* const rendezvous = dynamic_cast<RdmaRendezvous*>(context->rendezvous());
  return rendezvous != nullptr && rendezvous->service()->task() == task ? rendezvous : nullptr;
}

RdmaRendezvous::~RdmaRendezvous() { service_->mailboxes().Detach(mailbox_); }

const std::string& RdmaRendezvous::session_name() {
  static const std::string none;
  tensorflow::WorkerSession* const worker_session = session();
  return worker_session != nullptr ? worker_session->session_name() : none;
}

std::shared_ptr<tensorflow::WorkerCacheInterface> RdmaRendezvous::workers() {
  tensorflow::WorkerSession* const worker_session = session();
  return worker_session != nullptr ? worker_session->GetSharedWorkerCache() : nullptr;
}

absl::Status RdmaRendezvous::Send(const ParsedKey& key, const Args& args, const Tensor& tensor,
                                  bool is_dead) {
  // An empty source is TensorFlow's way to say "this worker".
  if (aborted_.load(std::memory_order_acquire) ||
      !tensorflow::DeviceNameUtils::HasSomeDetails(key.src) ||
      tensorflow::DeviceNameUtils::IsSameAddressSpace(key.src, key.dst)) {
    return SendLocal(key, args, tensor, is_dead);
  }
  return service_->peers()
      .ReceiverOf(TaskOf(key.dst_device))
      ->Send(session(), this, step_id_, key, args, tensor, is_dead);
}

void RdmaRendezvous::SendPlanned(const tensorflow::FrameAndIter& at,
                                 absl::Span<AcceptedOffer::Sent> all) {
  for (size_t begin = 0; begin < all.size();) {
    std::shared_ptr<AcceptedOffer> accepted;
    std::shared_ptr<PushGate> gate;
    size_t end = begin;
    // Neighbours nearly always have the same offer.
    for (; end < all.size(); ++end) {
      OutEdge& edge = const_cast<OutEdge&>(*all[end].edge);
      std::lock_guard<std::mutex> lock(edge.mutex);
      if (end == begin) {
        accepted = edge.accepted;
        gate = edge.gate;
      } else if (edge.accepted != accepted || edge.gate != gate) {
        break;
      }
      all[end].index = edge.index;
    }
    const absl::Span<AcceptedOffer::Sent> some = all.subspan(begin, end - begin);
    begin = end;
    if (accepted == nullptr || aborted_.load(std::memory_order_acquire)) {
      for (AcceptedOffer::Sent& each : some) each.went = false;
      continue;
    }
    const bool may_push = gate->MayPush(session(), session_name(), step_id_, accepted->channel());
    accepted->Send({step_id_, at, began_, may_push}, some);
    // An abort in the meantime may have missed what the step's groups hold now.
    if (aborted_.load()) accepted->DropStep(step_id_);
  }
}

void RdmaRendezvous::ReceivePlanned(const tensorflow::FrameAndIter& at, const Args& args,
                                    tensorflow::Device* device, absl::Span<PlannedReceive> all) {
  const EdgeDefinition& first = *all.front().edge->definition;
  InPlans::Get()->Use(all.front().edge->plan, step_id_);
  const std::shared_ptr<Sender> sender =
      service_->peers().SenderOf({session_name(), first.destination, first.source});
  std::vector<Waiter> waiters(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    // A waiting receive keeps the rendezvous, as the base class arranges for others. It ends exactly once.
    Ref();
    Waiter& waiter = waiters[i];
    waiter.done = [done = std::move(all[i].done), this](
                      const absl::Status& status, const Args& send_args, const Args& receive_args,
                      const Tensor& tensor, bool is_dead) {
      done(status, send_args, receive_args, tensor, is_dead);
      Unref();
    };
    waiter.args = args;
    waiter.device = device;
    waiter.edge = all[i].edge->definition;
    waiter.at = at;
    waiter.waits = all[i].edge->waits;
    waiter.source_incarnation = first.source_incarnation;
  }
  Ref();  // the last waiter may end before this returns
  const uint64_t epoch = sender->epoch();
  if (waiters.size() > 1 && sender->IsReady(first.source_incarnation)) {
    ReceiveAll(std::move(waiters), sender, epoch);
  } else {
    for (Waiter& waiter : waiters) Receive(std::move(waiter), sender);
  }
  Unref();
}

void RdmaRendezvous::ReceiveAll(std::vector<Waiter> waiters, const std::shared_ptr<Sender>& sender,
                                uint64_t epoch) {
  std::vector<Waiter> waiting;
  waiting.reserve(waiters.size());
  for (Waiter& waiter : waiters) {
    const absl::Status lost = sender->StatusOf(step_id_, waiter);
    if (!lost.ok()) {
      waiter.Fail(lost);
      continue;
    }
    waiter.sender = sender;
    waiter.rpc = this;
    waiting.push_back(std::move(waiter));
  }
  std::vector<Mailbox::Met> met;
  absl::Status status;
  const bool failed = mailbox_->ReceiveAll(&waiting, &met, &status) == Mailbox::Received::kFailed;
  for (Mailbox::Met& each : met) Delivery::Complete(&each.waiter, each.arrival, step_id_);
  if (failed) {
    for (const Waiter& waiter : waiting) waiter.Fail(status);
  }
  if (sender->epoch() != epoch) sender->Settle(mailbox_);
}

void RdmaRendezvous::RecvFromRemoteAsync(const ParsedKey& key, const Args& args,
                                         DoneCallback done) {
  Waiter waiter;
  waiter.done = std::move(done);
  waiter.args = args;
  if (key.dst.type != "CPU" && !args.alloc_attrs.on_host()) {
    const absl::Status found =
        session()->device_mgr()->LookupDevice(key.dst_device, &waiter.device);
    if (!found.ok()) {
      waiter.Fail(found);
      return;
    }
  }
  waiter.key = std::string(key.FullKey());
  const std::shared_ptr<Sender> sender =
      service_->peers().SenderOf({session_name(), TaskOf(key.dst_device), TaskOf(key.src_device)});
  waiter.waits = sender->waits();
  waiter.source_incarnation = key.src_incarnation;
  Receive(std::move(waiter), sender);
}

void RdmaRendezvous::Receive(Waiter waiter, const std::shared_ptr<Sender>& sender) {
  // `this` may be gone as soon as the waiter is in the mailbox.
  waiter.sender = sender;
  const std::shared_ptr<Mailbox> mailbox = mailbox_;
  const uint64_t incarnation = waiter.source_incarnation;
  const uint64_t epoch = sender->epoch();
  absl::Status status;
  const auto decision = sender->Decide(incarnation, step_id_, waiter, &status);
  if (decision == Sender::Decision::kRpcAndRetry) sender->EnsureConnecting(workers(), incarnation);
  if (decision == Sender::Decision::kRpc || decision == Sender::Decision::kRpcAndRetry) {
    sender->ReceiveByRpc(step_id_, this, std::move(waiter));
    return;
  }
  if (decision == Sender::Decision::kFailed) {
    waiter.Fail(status);
    return;
  }
  std::shared_ptr<tensorflow::WorkerCacheInterface> connections;
  if (decision == Sender::Decision::kConnect) connections = workers();

  waiter.rpc = this;
  Arrival arrival;
  switch (mailbox->Receive(&waiter, &arrival, &status)) {
    case Mailbox::Received::kArrived:
      Delivery::Complete(&waiter, arrival, step_id_);
      return;
    case Mailbox::Received::kFailed:
      waiter.Fail(status);
      return;
    case Mailbox::Received::kWaiting:
      break;
  }
  if (decision == Sender::Decision::kConnect) {
    sender->EnsureConnecting(std::move(connections), incarnation);
  }
  if (sender->epoch() != epoch) sender->Settle(mailbox);
}

void RdmaRendezvous::ReceiveByRpc(Waiter waiter) {
  ParsedKey parsed;
  absl::Status status = tensorflow::Rendezvous::ParseKey(waiter.FullKey(), &parsed);
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> rpc;
  if (status.ok()) {
    std::lock_guard<std::mutex> lock(rpc_mutex_);
    status = rpc_aborted_;
    if (status.ok() && rpc_ == nullptr) {
      rpc_ = rpc_factory_->Create(step_id_, env_);
      status = rpc_->Initialize(session());
    }
    if (status.ok()) rpc = tsl::core::GetNewRef(rpc_.get());
  }
  if (!status.ok()) {
    waiter.Fail(status);
    return;
  }
  if (waiter.since == 0) waiter.since = WaitMoment();
  Traffic* const traffic = TrafficOf(Direction::kReceive, TaskOf(parsed.src_device), kRpcTransport);
  const Args args = waiter.args;
  rpc->RecvAsync(parsed, args,
                 [waiter = std::move(waiter), traffic](const absl::Status& s, const Args& send_args,
                                                       const Args& recv_args, const Tensor& tensor,
                                                       bool is_dead) {
                   if (s.ok()) {
                     CountReceived(Path::kRpc, tensor.TotalBytes(), traffic);
                     waiter.EndWait(tensor.TotalBytes(), Path::kRpc);
                   }
                   waiter.done(s, send_args, recv_args, tensor, is_dead);
                 });
}

absl::Status RdmaRendezvous::Initialize(tensorflow::WorkerSession* session) {
  if (absl::Status status = BaseRemoteRendezvous::Initialize(session); !status.ok()) return status;
  const absl::Status ended = service_->ended_early().OfStep(step_id_);
  if (!ended.ok()) StartAbort(ended);  // others may wait for its tensors
  return ended;
}

void RdmaRendezvous::StartAbort(const absl::Status& status) {
  const bool first = !aborted_.exchange(true);
  const bool finished = service_->mailboxes().WasRemoved(step_id_);
  BaseRemoteRendezvous::StartAbort(status);
  absl::Status derived = status;
  if (absl::IsCancelled(status) || absl::IsAborted(status)) {
    derived = tsl::StatusGroup::MakeDerived(status);
  }
  mailbox_->Abort(derived);
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> rpc;
  {
    std::lock_guard<std::mutex> lock(rpc_mutex_);
    if (rpc_aborted_.ok()) rpc_aborted_ = derived;
    rpc = std::move(rpc_);
  }
  if (rpc != nullptr) rpc->StartAbort(status);
  if (!first) return;
  service_->peers().DropStep(step_id_);
  // A receiver that fetches learns this from its request, but one that waits for a push must be told, unless the
  // step is merely cleaned up.
  if (!finished) service_->peers().TellOfFailure(session_name(), step_id_, derived);
}

RdmaRendezvousMgr::RdmaRendezvousMgr(const tensorflow::WorkerEnv* env, TensorService* service)
    : BaseRendezvousMgr(env), service_(service), rpc_factory_(env) {
  service->peers().sessions().Serve(env);
}

tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> RdmaRendezvousMgr::Create(
    int64_t step_id, const tensorflow::WorkerEnv* env) {
  return tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous>(
      new RdmaRendezvous(env, step_id, service_, &rpc_factory_));
}

void RdmaRendezvousMgr::RecvLocalAsync(int64_t step_id,
                                       const tensorflow::Rendezvous::ParsedKey& key,
                                       tensorflow::Rendezvous::DoneCallback done) {
  const absl::Status lost =
      service_->peers().ReceiverOf(TaskOf(key.dst_device))->OnPull(step_id, key.FullKey(), &done);
  if (!lost.ok()) {
    done(lost, tensorflow::Rendezvous::Args(), tensorflow::Rendezvous::Args(), Tensor(), false);
    return;
  }
  BaseRendezvousMgr::RecvLocalAsync(step_id, key, std::move(done));
}

void RdmaRendezvousMgr::Cleanup(int64_t step_id) {
  const absl::Status status = absl::AbortedError(absl::StrCat("Cleanup ", step_id));
  // This comes first, so that the rendezvous sees that its abort is only the end of the step.
  service_->mailboxes().Remove(step_id, status);
  BaseRendezvousMgr::Cleanup(step_id);
  service_->peers().DropStep(step_id);
}

}  // namespace rdmatensor
