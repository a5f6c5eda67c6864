// SPDX-License-Identifier: Apache-2.0
//
// What an endpoint does with the messages of its peers. All of them are checked: none may harm this process.
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "peer/endpoint.h"
#include "plan/plan_book.h"
#include "server/rendezvous.h"
#include "stats/path_stats.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "wire/copied_message.h"
#include "wire/message.h"
#include "xla/tsl/platform/env.h"
#include "xla/tsl/platform/status.h"

namespace rdmatensor {
namespace {

using tensorflow::Tensor;

// Longer ones are not for the progress thread. About what starting another thread costs.
constexpr uint64_t kLongChecksum = 256 * 1024;

// Checks what the sender claims against what TensorFlow can take, so that nothing below asserts.
bool DescribesTensor(const TensorMessage& message, tensorflow::DataType* dtype,
                     tensorflow::TensorShape* shape) {
  if (!tensorflow::DataType_IsValid(message.dtype)) return false;
  *dtype = static_cast<tensorflow::DataType>(message.dtype);
  if (tensorflow::IsRefType(*dtype) || !tensorflow::DataTypeCanUseMemcpy(*dtype)) return false;
  for (int64_t dim : message.dims) {
    if (dim < 0) return false;
  }
  if (!tensorflow::TensorShape::BuildTensorShape(message.dims, shape).ok()) return false;
  const uint64_t elements = static_cast<uint64_t>(shape->num_elements());
  const uint64_t size = static_cast<uint64_t>(tensorflow::DataTypeSize(*dtype));
  return size != 0 && elements <= UINT64_MAX / size && elements * size == message.bytes;
}

Checksum ChecksumOf(const TensorMessage& message) {
  if (message.flags & TensorMessage::kChecked) return message.checksum;
  return std::nullopt;
}

Path PathOf(const TensorMessage& message) {
  if (message.flags & TensorMessage::kInline) return Path::kInline;
  return message.flags & TensorMessage::kBounced ? Path::kBounce : Path::kDynamic;
}

// "/job:worker/replica:0/task:1", as servers name themselves. What is kept for a task stays, so that
// peers must not make up names of any length.
constexpr size_t kLongestName = 1024;
bool NamesTask(absl::string_view name) {
  tensorflow::DeviceNameUtils::ParsedName parsed;
  return name.size() <= kLongestName && tensorflow::DeviceNameUtils::ParseFullName(name, &parsed) &&
         parsed.has_job && parsed.has_replica && parsed.has_task && !parsed.has_type &&
         !parsed.has_id;
}

// A tensor that owns a copy of `data`; not initialized if there is no memory.
Tensor CopyOf(const char* data, uint64_t bytes, tensorflow::DataType dtype,
              const tensorflow::TensorShape& shape) {
  Tensor tensor(dtype, shape);
  if (tensor.IsInitialized() && bytes != 0) std::memcpy(tensor.data(), data, bytes);
  return tensor;
}

}  // namespace

bool Endpoint::Handle(Channel* channel, uint64_t immediate, const char* data, size_t size) {
  const MessageKind kind = ImmediateKind(immediate);
  const uint64_t value = ImmediateValue(immediate);
  switch (kind) {
    case MessageKind::kTensor:
      return HandleTensor(channel, data, size);
    case MessageKind::kReferral:
      return HandleReferral(channel, data, size);
    case MessageKind::kReady:
      return HandleReady(channel, data, size);
    case MessageKind::kRelease:
      return channel->lender().Release(value);
    case MessageKind::kAbort:
      return HandleAbort(channel, data, size);
    case MessageKind::kAsked:
      return HandleAsked(channel, data, size);
    case MessageKind::kAnswered:
      return HandleAnswered(channel, data, size);
    case MessageKind::kLost:
      return HandleLost(channel, data, size);
    case MessageKind::kWillAsk:
      channel->requests().Expect();
      return channel->role() == Channel::Role::kSender && channel->Destinations().empty();
    case MessageKind::kAsk:
      return HandleAsk(channel, data, size);
    case MessageKind::kContested:
      return HandleContested(channel, data, size);
    case MessageKind::kSource:
      return HandleSource(channel, data, size);
    // Receiver to sender.
    case MessageKind::kOffer:
    case MessageKind::kWithdraw:
      return channel->role() == Channel::Role::kSender &&
             channel->plan().Handle(kind, value, data, size);
    // Sender to receiver.
    case MessageKind::kAccept:
    case MessageKind::kPlanned:
    case MessageKind::kWithdrawn:
      return channel->role() == Channel::Role::kReceiver &&
             channel->plan().Handle(kind, value, data, size);
  }
  return false;
}

bool Endpoint::HandleTensor(Channel* channel, const char* data, size_t size) {
  TensorMessage message;
  std::string key;
  if (channel->role() != Channel::Role::kReceiver || !ParseCopied(data, size, &key, &message))
    return false;
  KeyOrder& order = channel->fetcher().order();
  const auto turn = order.Keep(message.step_id, message.key, MessageKind::kTensor, data, size);
  if (turn != KeyOrder::Turn::kNow) return turn == KeyOrder::Turn::kLater;
  return TakeTensor(channel, message, false) != Outcome::kMalformed;
}

bool Endpoint::HandleReferral(Channel* channel, const char* data, size_t size) {
  StepMessage message;
  std::string key;
  if (channel->role() != Channel::Role::kReceiver || !ParseCopied(data, size, &key, &message))
    return false;
  KeyOrder& order = channel->fetcher().order();
  const auto turn = order.Keep(message.step_id, message.text, MessageKind::kReferral, data, size);
  if (turn != KeyOrder::Turn::kNow) return turn == KeyOrder::Turn::kLater;
  TakeReferral(channel, message);
  return true;
}

Outcome Endpoint::HandleKept(Channel* channel, const KeyOrder::Kept& kept) {
  if (kept.kind == MessageKind::kReferral) {
    StepMessage message;
    if (!Parse(kept.data.data(), kept.data.size(), &message)) return Outcome::kMalformed;
    TakeReferral(channel, message);
    return Outcome::kDone;
  }
  TensorMessage message;
  if (!Parse(kept.data.data(), kept.data.size(), &message)) return Outcome::kMalformed;
  return TakeTensor(channel, message, true);
}

Outcome Endpoint::TakeTensor(Channel* channel, const TensorMessage& message, bool follows) {
  if (message.flags & TensorMessage::kDead) {
    CountReceived(PathOf(message), 0, channel->traffic());
    Arrival arrival;
    arrival.is_dead = true;
    arrival.path = PathOf(message);
    Deliver(channel, message.step_id, KeyId::Of(message.key), std::move(arrival));
    return Outcome::kDone;
  }
  tensorflow::DataType dtype;
  tensorflow::TensorShape shape;
  if (!DescribesTensor(message, &dtype, &shape)) return Outcome::kMalformed;
  PlanBook::Get()->Observe(this, message.key, shape, channel->shared_from_this());
  if (message.flags & TensorMessage::kInline) {
    const Tensor copy = CopyOf(message.payload, message.bytes, dtype, shape);
    if (copy.IsInitialized()) {
      DeliverTensor(channel, message.step_id, message.key, Path::kInline, Way::kInline,
                    ChecksumOf(message), copy);
    } else {
      FailForMemory(channel, message.step_id, message.bytes);
    }
    return Outcome::kDone;
  }
  const RemoteBytes from{message.region_key, message.offset, message.bytes, message.lend_id};
  if (tensorflow::TensorBuffer* borrowed = channel->fetcher().Borrow(from)) {
    tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(borrowed);
    CountFetch(FetchKind::kInPlace, message.bytes);
    DeliverTensor(channel, message.step_id, message.key, PathOf(message), Way::kInPlace,
                  ChecksumOf(message), Tensor(dtype, shape, std::move(buffer)));
    return Outcome::kDone;
  }
  auto fetch = std::make_unique<Fetch>();
  fetch->channel = channel->shared_from_this();
  fetch->step_id = message.step_id;
  fetch->key = std::string(message.key);
  fetch->dtype = dtype;
  fetch->shape = std::move(shape);
  fetch->from = from;
  fetch->path = PathOf(message);
  fetch->checksum = ChecksumOf(message);
  return channel->fetcher().Start(std::move(fetch), follows);
}

void Endpoint::TakeReferral(Channel* channel, const StepMessage& message) {
  Arrival arrival;
  arrival.is_referral = true;
  Deliver(channel, message.step_id, KeyId::Of(message.text), std::move(arrival));
}

bool Endpoint::HandleAbort(Channel* channel, const char* data, size_t size) {
  StepMessage message;
  if (channel->role() != Channel::Role::kReceiver || !Parse(data, size, &message)) return false;
  // absl maps numbers outside the table to kUnknown when they are read; 0 would mean success.
  if (message.code == 0) return false;
  absl::Status status(static_cast<absl::StatusCode>(message.code), message.text);
  if (message.derived) status = tsl::StatusGroup::MakeDerived(status);
  for (const auto& source : channel->Sources()) source->OnStepAbort(message.step_id, status);
  return true;
}

bool Endpoint::HandleReady(Channel* channel, const char* data, size_t size) {
  ReadyMessage message;
  if (channel->role() != Channel::Role::kSender || !Parse(data, size, &message) ||
      message.version != kProtocolVersion || !NamesTask(message.task) ||
      message.session.size() > kLongestName) {
    return false;
  }
  const std::shared_ptr<DestinationLink> destination = peers_.Destination(message.task);
  if (!channel->AddDestination(destination)) return false;
  channel->plan().BindAll();
  channel->asked_bytes = 0;
  peers_.OnAnnounced();
  rdt_log_line(RDT_LOG_DEBUG, absl::StrCat("tensorflow: ", channel->peer_name(), " receives as ",
                                           message.task, " in session '", message.session, "'")
                                  .c_str());
  return destination->Attach(channel->shared_from_this(), message.session,
                             std::exchange(channel->asked, {}));
}

bool Endpoint::HandleContested(Channel* channel, const char* data, size_t size) {
  ReadyMessage message;
  if (channel->role() != Channel::Role::kReceiver || !Parse(data, size, &message)) return false;
  for (const auto& source : channel->Sources()) {
    if (source->session() == message.session && source->receiver() == message.task) {
      source->OnContested(channel);
    }
  }
  return true;
}

bool Endpoint::HandleSource(Channel* channel, const char* data, size_t size) {
  SourceMessage message;
  if (!Parse(data, size, &message) || message.self.version != kProtocolVersion ||
      !NamesTask(message.receiver) || !NamesTask(message.sender) ||
      message.session.size() > kLongestName || message.self.incarnations.empty() ||
      !channel->BecomeReceiver()) {
    return false;
  }
  const auto source = peers_.Source({message.session, message.receiver, message.sender});
  tsl::Env::Default()->SchedClosure(
      [source, opened = channel->shared_from_this(), self = std::move(message.self)] {
        source->OnOpened(opened, self);
      });
  return true;
}

bool Endpoint::HandleAsked(Channel* channel, const char* data, size_t size) {
  StepMessage message;
  if (channel->role() != Channel::Role::kSender || !Parse(data, size, &message)) return false;
  channel->asked_bytes += AskedBytes(message.text);
  if (channel->asked_bytes > kMaxAskedBytes) return false;
  channel->asked.emplace_back(message.step_id, message.text);
  return true;
}

bool Endpoint::HandleAsk(Channel* channel, const char* data, size_t size) {
  StepMessage message;
  std::string key;
  Requests::Answer answer;
  if (channel->role() != Channel::Role::kSender || !channel->requests().expected() ||
      !ParseCopied(data, size, &key, &message)) {
    return false;
  }
  if (mailboxes_.WasRemoved(message.step_id)) return true;
  if (!channel->requests().Ask(message.step_id, message.text, &answer)) return false;
  // Answering copies, which the progress thread has no time for.
  if (answer != nullptr) tsl::Env::Default()->SchedClosure(std::move(answer));
  return true;
}

bool Endpoint::HandleLost(Channel* channel, const char* data, size_t size) {
  StepMessage message;
  if (channel->role() != Channel::Role::kReceiver || !Parse(data, size, &message)) return false;
  for (const auto& source : channel->Sources()) {
    source->OnLost(message.step_id, KeyId::Of(message.text));
  }
  return true;
}

bool Endpoint::HandleAnswered(Channel* channel, const char* data, size_t size) {
  StepMessage message;
  const auto destinations = channel->Destinations();
  if (destinations.empty() || !Parse(data, size, &message)) return false;
  for (const auto& destination : destinations) {
    destination->OnAnswered(channel, message.step_id, message.text);
  }
  return true;
}

std::shared_ptr<Mailbox> Endpoint::MailboxFor(Channel* channel, int64_t step_id,
                                              const Mailbox* gone) {
  Channel::LastStep& last = channel->last_step;
  std::lock_guard<std::mutex> lock(last.mutex);
  if (last.step_id == step_id) {
    std::shared_ptr<Mailbox> mailbox = last.mailbox.lock();
    if (mailbox != nullptr && mailbox.get() != gone) return mailbox;
  }
  std::shared_ptr<Mailbox> mailbox = mailboxes_.ForMessage(step_id);
  last.step_id = step_id;
  last.mailbox = mailbox;
  return mailbox;
}

std::unique_ptr<const Claim> Endpoint::ClaimOf(Channel& channel, const Checksum& checksum,
                                               Path path, Way way, uint64_t bytes) const {
  if (!settings_.checksum || bytes == 0) return nullptr;
  if (!checksum.has_value()) {
    CountUnchecked(channel.FirstName());
    return nullptr;
  }
  return std::make_unique<const Claim>(Claim{*checksum, path, way, channel.transport()});
}

void Endpoint::DeliverTensor(Channel* channel, int64_t step_id, absl::string_view key, Path path,
                             Way way, const Checksum& checksum, const Tensor& tensor) {
  CountReceived(path, tensor.TotalBytes(), channel->traffic());
  Arrival arrival;
  arrival.tensor = tensor;
  arrival.path = path;
  arrival.claim = ClaimOf(*channel, checksum, path, way, tensor.TotalBytes());
  Deliver(channel, step_id, KeyId::Of(key), std::move(arrival));
}

void Endpoint::FailForMemory(Channel* channel, int64_t step_id, uint64_t bytes) {
  const absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("rdmatensor: no memory for a tensor of ", bytes, " bytes"));
  for (const auto& source : channel->Sources()) source->OnStepAbort(step_id, status);
}

void Endpoint::Complete(Waiter* waiter, const Arrival& arrival) {
  if (arrival.is_referral) {
    waiter->rendezvous->ReceiveByRpc(std::move(*waiter));
    return;
  }
  if (arrival.claim != nullptr) {
    const absl::Status status =
        Verify(*arrival.claim, arrival.tensor, waiter->rendezvous->step_id(),
               [waiter] { return waiter->FullKey(); });
    if (!status.ok()) {
      waiter->Fail(status);
      return;
    }
  }
  waiter->done(absl::OkStatus(), tensorflow::Rendezvous::Args(), waiter->args, arrival.tensor,
               arrival.is_dead);
}

void Endpoint::Deliver(Channel* channel, int64_t step_id, const KeyId& key, Arrival arrival) {
  // A step's number is used again when an eager context is closed and created anew. What remembered the
  // first mailbox of that number has to learn of the second.
  std::shared_ptr<Mailbox> mailbox;
  Waiter waiter;
  Mailbox::Delivery delivery;
  do {
    mailbox = MailboxFor(channel, step_id, mailbox.get());
    if (mailbox == nullptr) return;
    delivery = mailbox->Deliver(key, &arrival, &waiter);
  } while (delivery == Mailbox::Delivery::kGone);
  if (delivery == Mailbox::Delivery::kKept) return;
  if (!arrival.is_referral) waiter.EndWait(arrival.tensor.TotalBytes(), arrival.path);
  if (arrival.claim == nullptr || arrival.tensor.TotalBytes() <= kLongChecksum) {
    Complete(&waiter, arrival);
    return;
  }
  tsl::Env::Default()->SchedClosure(
      [waiter = std::move(waiter), arrival = std::move(arrival)]() mutable {
        Complete(&waiter, arrival);
      });
}

}  // namespace rdmatensor
