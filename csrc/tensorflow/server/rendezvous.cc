// SPDX-License-Identifier: Apache-2.0
#include "server/rendezvous.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/spans.h"
#include "graph/ref_variables.h"
#include "memory/arena.h"
#include "memory/placement.h"
#include "stats/checksum.h"
#include "stats/path_stats.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "wire/message.h"

namespace rdmatensor {
namespace {

using tensorflow::Tensor;

constexpr char kReasonArenaFull[] = "arena full";
// The core refused to register the part of the arena that had room.
constexpr char kReasonUnregistered[] = "memory not registered";
constexpr char kReasonNoMemory[] = "no memory";
constexpr char kReasonTooLong[] = "description too long";
// Its server is stock, or no channel came about: the peer's line in the statistics says which.
constexpr char kReasonFetched[] = "fetched by the receiver";

void CountSentByRpc(absl::string_view device, uint64_t bytes) {
  CountSent(Path::kRpc, bytes,
            TrafficOf(Direction::kSend, Endpoint::TaskOf(device), kRpcTransport));
}

void CountFetched(absl::string_view device, uint64_t bytes, const char* reason) {
  CountSentByRpc(device, bytes);
  CountRpcReason(reason != nullptr ? reason : kReasonFetched);
}

// Eager operations copy tensors under numbers, as 6855027017910325044_1; edges of graphs have names.
bool IsEagerCopy(const tensorflow::Rendezvous::ParsedKey& key) {
  return !key.edge_name.empty() &&
         std::all_of(key.edge_name.begin(), key.edge_name.end(),
                     [](char c) { return c == '_' || absl::ascii_isdigit(c); });
}

TensorMessage Describe(int64_t step_id, absl::string_view key, const Tensor& tensor) {
  TensorMessage message;
  message.step_id = step_id;
  message.key = key;
  message.dtype = tensor.dtype();
  for (int i = 0; i < tensor.dims(); ++i) message.dims.push_back(tensor.dim_size(i));
  message.bytes = tensor.TotalBytes();
  return message;
}

}  // namespace

RdmaRendezvous::RdmaRendezvous(const tensorflow::WorkerEnv* env, int64_t step_id,
                               Endpoint* endpoint, RpcRendezvousFactory* rpc_factory)
    : BaseRemoteRendezvous(env, step_id),
      endpoint_(endpoint),
      rpc_factory_(rpc_factory),
      mailbox_(endpoint->mailboxes().Attach(step_id)) {}

RdmaRendezvous::~RdmaRendezvous() { endpoint_->mailboxes().Detach(mailbox_); }

const std::string& RdmaRendezvous::session_name() {
  static const std::string none;
  tensorflow::WorkerSession* const worker_session = session();
  return worker_session != nullptr ? worker_session->session_name() : none;
}

std::shared_ptr<tensorflow::WorkerCacheInterface> RdmaRendezvous::workers() {
  tensorflow::WorkerSession* const worker_session = session();
  return worker_session != nullptr ? worker_session->GetSharedWorkerCache() : nullptr;
}

const char* RdmaRendezvous::WhyNotPushable(const ParsedKey& key, const Tensor& tensor) {
  if (key.src.type != "CPU" || key.dst.type != "CPU") return "device memory";
  switch (tensor.dtype()) {
    case tensorflow::DT_STRING:
      return "string";
    case tensorflow::DT_VARIANT:
      return "variant";
    case tensorflow::DT_RESOURCE:
      return "resource";
    default:
      return tensorflow::DataTypeCanUseMemcpy(tensor.dtype()) ? nullptr : "type";
  }
}

absl::Status RdmaRendezvous::Send(const ParsedKey& key, const Args& args, const Tensor& tensor,
                                  bool is_dead) {
  // An empty source is TensorFlow's way to say "this worker".
  if (aborted_.load(std::memory_order_acquire) ||
      !tensorflow::DeviceNameUtils::HasSomeDetails(key.src) ||
      tensorflow::DeviceNameUtils::IsSameAddressSpace(key.src, key.dst)) {
    return SendLocal(key, args, tensor, is_dead);
  }
  const std::shared_ptr<DestinationLink> link =
      endpoint_->peers().Destination(Endpoint::TaskOf(key.dst_device));
  std::shared_ptr<Channel> channel;
  bool local = false;
  const bool is_copy = IsEagerCopy(key);
  bool must_verify = false;
  const auto route = link->Offer(
      session(), session_name(), step_id_, key.FullKey(), is_copy,
      [&] {
        PendingSend pending;
        pending.is_copy = is_copy;
        pending.key = key;
        pending.rendezvous = tsl::core::GetNewRef(this);
        pending.refer_reason = is_dead ? nullptr : WhyNotPushable(key, tensor);
        pending.bytes = tensor.TotalBytes();
        local = pending.refer_reason != nullptr;
        if (!local) {
          pending.attributes = args.alloc_attrs;
          pending.tensor = tensor;
          pending.is_dead = is_dead;
        }
        return pending;
      },
      &channel, &must_verify);
  if (must_verify) endpoint_->peers().FindOwner(session_name(), link, workers());
  switch (route) {
    case DestinationLink::Route::kPush:
      PushWhenAsked(channel, key, args, tensor, is_dead);
      return absl::OkStatus();
    case DestinationLink::Route::kPulled:
      CountFetched(key.dst_device, tensor.TotalBytes(),
                   is_dead ? nullptr : WhyNotPushable(key, tensor));
      return SendLocal(key, args, tensor, is_dead);
    case DestinationLink::Route::kPending:
      break;
  }
  return local ? SendLocal(key, args, tensor, is_dead) : absl::OkStatus();
}

void RdmaRendezvous::PushWhenAsked(const std::shared_ptr<Channel>& channel, const ParsedKey& key,
                                   const Args& args, const Tensor& tensor, bool is_dead) {
  if (channel->requests().expected()) {
    // Callables are copied, rendezvous references are not.
    const std::shared_ptr<RdmaRendezvous> self(this, [](RdmaRendezvous* kept) { kept->Unref(); });
    Ref();
    // The request comes through the channel, which is there then.
    const std::weak_ptr<Channel> asked = channel;
    const auto answer = [self, asked, key, args, tensor, is_dead] {
      if (auto open = asked.lock()) self->Push(open, key, args, tensor, is_dead);
    };
    if (!channel->requests().Take(step_id_, key.FullKey(), answer)) {
      // An abort meanwhile may have missed it.
      if (aborted_.load()) channel->requests().DropStep(step_id_);
      return;
    }
  }
  Push(channel, key, args, tensor, is_dead);
}

void RdmaRendezvous::Push(const std::shared_ptr<Channel>& channel, const ParsedKey& key,
                          const Args& args, const Tensor& tensor, bool is_dead) {
  if (is_dead) {
    TensorMessage message;
    message.step_id = step_id_;
    message.key = key.FullKey();
    message.dtype = tensorflow::DT_FLOAT;
    message.flags = TensorMessage::kDead | TensorMessage::kInline;
    CountSent(Path::kInline, 0, channel->traffic());
    (void)channel->NotifyMessage(PackImmediate(MessageKind::kTensor), message);
    return;
  }
  SendSpan span(key.edge_name, key.dst_device, tensor.TotalBytes());
  Path path = Path::kRpc;
  const char* reason = WhyNotPushable(key, tensor);
  if (reason == nullptr) reason = PushTensor(channel, key.FullKey(), tensor, &path);
  span.End(PathName(path));
  if (reason == nullptr) return;
  CountSentByRpc(key.dst_device, tensor.TotalBytes());
  // Fails only when the step was aborted, which the receiver is told anyway.
  if (SendLocal(key, args, tensor, is_dead).ok()) {
    Refer(channel, key, reason);
  }
}

void RdmaRendezvous::Refer(const std::shared_ptr<Channel>& channel, const ParsedKey& key,
                           const char* reason) {
  CountRpcReason(reason);
  const std::shared_ptr<DestinationLink> link =
      endpoint_->peers().Destination(Endpoint::TaskOf(key.dst_device));
  link->ExpectPull(step_id_, key.FullKey());
  StepMessage message;
  message.step_id = step_id_;
  message.text = key.FullKey();
  // If the channel is down the receiver's waiters fail with it.
  const absl::Status sent = channel->NotifyMessage(PackImmediate(MessageKind::kReferral), message);
  if (absl::IsInternal(sent)) link->SendAbort(session_name(), step_id_, sent);
}

const char* RdmaRendezvous::PushTensor(const std::shared_ptr<Channel>& channel,
                                       absl::string_view key, const Tensor& tensor, Path* path) {
  TensorMessage message = Describe(step_id_, key, tensor);
  const uint64_t immediate = PackImmediate(MessageKind::kTensor);
  const bool checked = endpoint_->settings().checksum && message.bytes != 0;
  const uint8_t check = checked ? TensorMessage::kChecked : 0;
  Tensor source = tensor;
  if (message.bytes <= endpoint_->settings().inline_bytes) {
    message.flags = TensorMessage::kInline | check;
    if (EncodedSize(message) <= channel->max_notify()) {
      if (checked && MayChangeInPlace(key)) source = FrozenCopy(tensor);
      if (!source.IsInitialized()) return kReasonNoMemory;
      message.payload = static_cast<const char*>(source.data());
      if (checked) message.checksum = ChecksumToSend(source.data(), message.bytes);
      *path = Path::kInline;
      CountSent(*path, message.bytes, channel->traffic());
      // A lost channel fails the receiver's step there; sending never fails, as in stock TensorFlow.
      (void)channel->NotifyMessage(immediate, message);
      return nullptr;
    }
  }
  message.flags = check;
  if (EncodedSize(message) > channel->max_notify()) return kReasonTooLong;
  const ArenaExports& exports = endpoint_->exports();
  const bool may_change = MayChangeInPlace(key);
  const bool in_place =
      reinterpret_cast<uintptr_t>(tensor.data()) % EIGEN_MAX_ALIGN_BYTES == 0 &&
      exports.Locate(channel->handle(), tensor.data(), &message.region_key, &message.offset) &&
      !may_change && endpoint_->settings().ablation == Ablation::kNone;
  PlacementOnSend(tensor, in_place);
  if (!in_place) {
    source = Tensor(Arena::Get()->allocator(), tensor.dtype(), tensor.shape());
    if (!source.IsInitialized()) return kReasonArenaFull;
    if (!exports.Locate(channel->handle(), source.data(), &message.region_key, &message.offset)) {
      return kReasonUnregistered;
    }
    CopyTraced(source.data(), tensor.data(), message.bytes, "bounce");
    message.flags |= TensorMessage::kBounced;
  }
  // Of the original, so that the copy is verified too; unless that may have changed since.
  if (checked) {
    message.checksum = ChecksumToSend((may_change ? source : tensor).data(), message.bytes);
  }
  if (!channel->lender().Lend(source, &message.lend_id)) return kReasonArenaFull;
  *path = in_place ? Path::kDynamic : Path::kBounce;
  CountSent(*path, message.bytes, channel->traffic());
  if (!channel->NotifyMessage(immediate, message).ok()) channel->lender().Release(message.lend_id);
  return nullptr;
}

bool RdmaRendezvous::SendPlanned(const OutEdge& edge, const tensorflow::FrameAndIter& at,
                                 const Tensor& tensor, bool is_dead) {
  std::shared_ptr<Routes> routes;
  std::shared_ptr<DestinationLink> link;
  uint32_t index = 0;
  {
    std::lock_guard<std::mutex> lock(const_cast<OutEdge&>(edge).mutex);
    routes = edge.routes;
    link = edge.link;
    index = edge.index;
  }
  if (routes == nullptr || aborted_.load(std::memory_order_acquire)) return false;
  const bool may_go = link->MayPush(session(), session_name(), step_id_, routes->channel());
  const bool sent = routes->Send(edge, index, {step_id_, at, &tensor, is_dead, began_, may_go});
  // An abort meanwhile may have missed what the step's groups hold since.
  if (aborted_.load()) routes->DropStep(step_id_);
  return sent;
}

void RdmaRendezvous::ReceivePlanned(const InEdge& edge, const tensorflow::FrameAndIter& at,
                                    const Args& args, DoneCallback done) {
  edge.plan->SealSoon();
  Waiter waiter;
  // As the base class does for other receives: what waits keeps the rendezvous. It ends exactly once.
  Ref();
  waiter.done = [done = std::move(done), this](const absl::Status& status, const Args& send_args,
                                               const Args& receive_args, const Tensor& tensor,
                                               bool is_dead) {
    done(status, send_args, receive_args, tensor, is_dead);
    Unref();
  };
  waiter.args = args;
  waiter.edge = edge.definition;
  waiter.at = at;
  waiter.source = endpoint_->peers().Source(
      {session_name(), edge.definition->destination, edge.definition->source});
  waiter.waits = edge.waits;
  waiter.source_incarnation = edge.definition->source_incarnation;
  Receive(edge.definition->key.At(at), std::move(waiter));
}

void RdmaRendezvous::RecvFromRemoteAsync(const ParsedKey& key, const Args& args,
                                         DoneCallback done) {
  Waiter waiter;
  waiter.done = std::move(done);
  waiter.args = args;
  waiter.key = std::string(key.FullKey());
  waiter.source = endpoint_->peers().Source(
      {session_name(), Endpoint::TaskOf(key.dst_device), Endpoint::TaskOf(key.src_device)});
  waiter.waits = waiter.source->waits();
  waiter.source_incarnation = key.src_incarnation;
  Receive(KeyId::Of(key.FullKey()), std::move(waiter));
}

void RdmaRendezvous::Receive(const KeyId& key, Waiter waiter) {
  // `this` may be gone as soon as the waiter is in the mailbox.
  const std::shared_ptr<SourcePeer> source = waiter.source;
  const std::shared_ptr<Mailbox> mailbox = mailbox_;
  const uint64_t incarnation = waiter.source_incarnation;
  const uint64_t epoch = source->epoch();
  const bool asks = endpoint_->settings().ablation == Ablation::kRpc;
  const std::string asked = asks ? waiter.FullKey() : std::string();
  const auto route = source->RouteFor(incarnation, step_id_, waiter);
  if (route == SourcePeer::Route::kAskAndRetry) source->EnsureConnecting(workers(), incarnation);
  if (route == SourcePeer::Route::kAsk || route == SourcePeer::Route::kAskAndRetry) {
    Ask(std::move(waiter));
    return;
  }
  const absl::Status failed = source->StatusOf(step_id_, key);
  if (!failed.ok()) {
    waiter.Fail(failed);
    return;
  }
  std::shared_ptr<tensorflow::WorkerCacheInterface> connections;
  if (route == SourcePeer::Route::kConnect) connections = workers();

  waiter.rendezvous = this;
  Arrival arrival;
  absl::Status status;
  switch (mailbox->Receive(key, &waiter, &arrival, &status)) {
    case Mailbox::Outcome::kArrived:
      Endpoint::Complete(&waiter, arrival);
      return;
    case Mailbox::Outcome::kFailed:
      waiter.Fail(status);
      return;
    case Mailbox::Outcome::kWaiting:
      break;
  }
  if (route == SourcePeer::Route::kConnect) {
    source->EnsureConnecting(std::move(connections), incarnation);
  }
  if (source->epoch() != epoch) {
    source->Settle(mailbox);
  } else if (asks) {
    source->Request(mailbox->step_id(), asked);
  }
}

void RdmaRendezvous::Ask(Waiter waiter) {
  waiter.done = [source = waiter.source, step_id = step_id_, key = waiter.FullKey(),
                 done = std::move(waiter.done)](const absl::Status& status, const Args& send_args,
                                                const Args& receive_args, const Tensor& tensor,
                                                bool is_dead) {
    source->OnAnswered(step_id, key);
    done(status, send_args, receive_args, tensor, is_dead);
  };
  ReceiveByRpc(std::move(waiter));
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
  Traffic* const traffic =
      TrafficOf(Direction::kReceive, Endpoint::TaskOf(parsed.src_device), kRpcTransport);
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

void RdmaRendezvous::StartAbort(const absl::Status& status) {
  const bool first = !aborted_.exchange(true);
  const bool finished = endpoint_->mailboxes().WasRemoved(step_id_);
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
  for (const std::shared_ptr<DestinationLink>& link : endpoint_->peers().Destinations()) {
    link->DropStep(step_id_);
    // A receiver that fetches learns this from its request; one that waits for a push must be told.
    // Not when the step is merely cleaned up.
    if (!finished) link->SendAbort(session_name(), step_id_, derived);
  }
}

RdmaRendezvousMgr::RdmaRendezvousMgr(const tensorflow::WorkerEnv* env, Endpoint* endpoint)
    : BaseRendezvousMgr(env), endpoint_(endpoint), rpc_factory_(env) {
  endpoint->peers().Serve(env);
}

tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> RdmaRendezvousMgr::Create(
    int64_t step_id, const tensorflow::WorkerEnv* env) {
  return tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous>(
      new RdmaRendezvous(env, step_id, endpoint_, &rpc_factory_));
}

void RdmaRendezvousMgr::RecvLocalAsync(int64_t step_id,
                                       const tensorflow::Rendezvous::ParsedKey& key,
                                       tensorflow::Rendezvous::DoneCallback done) {
  PendingSend pending;
  const absl::StatusOr<bool> found = endpoint_->peers()
                                         .Destination(Endpoint::TaskOf(key.dst_device))
                                         ->OnPull(step_id, key.FullKey(), &pending, &done);
  if (!found.ok()) {
    done(found.status(), tensorflow::Rendezvous::Args(), tensorflow::Rendezvous::Args(), Tensor(),
         false);
    return;
  }
  if (*found) {
    CountFetched(key.dst_device, pending.bytes, pending.refer_reason);
    if (pending.refer_reason == nullptr) {
      tensorflow::Rendezvous::Args args;
      args.alloc_attrs = pending.attributes;
      // An aborted rendezvous refuses; then so does the receive below.
      (void)pending.rendezvous->SendLocal(pending.key, args, pending.tensor, pending.is_dead);
    }
  }
  BaseRendezvousMgr::RecvLocalAsync(step_id, key, std::move(done));
}

void RdmaRendezvousMgr::Cleanup(int64_t step_id) {
  const absl::Status status = absl::AbortedError(absl::StrCat("Cleanup ", step_id));
  // First, so that the rendezvous sees that its abort is only the end of the step.
  endpoint_->mailboxes().Remove(step_id, status);
  BaseRendezvousMgr::Cleanup(step_id);
  for (const std::shared_ptr<DestinationLink>& link : endpoint_->peers().Destinations()) {
    link->DropStep(step_id);
  }
}

}  // namespace rdmatensor
