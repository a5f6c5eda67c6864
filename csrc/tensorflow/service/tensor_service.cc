// SPDX-License-Identifier: Apache-2.0
#include "service/tensor_service.h"

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "channel/listen_address.h"
#include "memory/arena.h"
#include "receive/receiver_end.h"
#include "send/sender_end.h"

namespace rdmatensor {
namespace {

// The name differs in every process and server, because a host:port may belong to another process by now.
std::string UniqueName(const std::string& task) {
  return absl::StrFormat("%s#%016x", task, RandomBits());
}

}  // namespace

TensorService::TensorService(std::string task, const Settings& settings)
    : mailboxes_(std::chrono::seconds(settings.step_ttl_s)),
      new_ends_([this](PeerChannel* channel) -> PeerChannel::Ends {
        return {std::make_unique<ReceiverEnd>(&server_, &mailboxes_, channel),
                std::make_unique<SenderEnd>(&server_, channel)};
      }) {
  server_.task = std::move(task);
  server_.settings = settings;
  server_.peers = &peers_;
}

TensorService::~TensorService() { Close(); }

void TensorService::Close() {
  ServerContexts::Get()->Remove(&server_);
  server_.exports.reset();
  rdt_device_close(std::exchange(server_.device, nullptr));
}

void TensorService::Retire() {
  WatchReceivers(nullptr);
  for (const std::shared_ptr<PeerChannel>& channel : peers_.Channels()) channel->Close();
  to_callees_.CloseAll();
}

void TensorService::WatchReceivers(std::function<void()> lost) {
  std::lock_guard<std::mutex> lock(lost_mutex_);
  receiver_lost_ = std::move(lost);
}

absl::StatusOr<TensorService*> TensorService::Open(const std::string& task, const std::string& host,
                                                   const Settings& settings) {
  auto* service = new TensorService(task, settings);
  const absl::Status arena = Arena::Get()->Activate(settings.arena_limit, settings.inline_bytes);
  if (!arena.ok()) {
    // Small tensors still travel in messages; large ones are referred to RPC.
    rdt_log_line(RDT_LOG_WARN, absl::StrCat("tensorflow: ", arena.message()).c_str());
  }
  const absl::StatusOr<std::string> address =
      OpenReachable(settings.bind_address, host,
                    [service](const std::string& bind) { return service->OpenDevice(bind); });
  if (!address.ok()) {
    delete service;
    return address.status();
  }
  ServerContext& opened = service->server_;
  opened.address = *address;
  opened.exports = std::make_unique<ArenaExports>(Arena::Get(), opened.device);
  ServerContexts::Get()->Add(&opened);
  rdt_log_line(RDT_LOG_DEBUG, absl::StrCat("tensorflow: ", task, " is reached at ", *address,
                                           " and listens on ", rdt_device_address(opened.device))
                                  .c_str());
  return service;
}

absl::StatusOr<std::string> TensorService::OpenDevice(const std::string& bind_address) {
  const std::string name = UniqueName(server_.task);
  rdt_device_options options{};
  options.struct_size = sizeof options;
  options.name = name.c_str();
  options.bind_address = bind_address.c_str();
  options.context = this;
  options.on_connect = OnConnect;
  options.on_notify = OnNotify;
  options.on_down = OnDown;
  options.on_released = OnReleased;
  const rdt_status status = rdt_device_open(&options, &server_.device);
  if (status != RDT_OK) {
    const std::string why = absl::StrCat("rdmatensor: ", rdt_last_error());
    return status == RDT_ERR_LIMIT ? absl::ResourceExhaustedError(why)
                                   : absl::FailedPreconditionError(why);
  }
  return std::string(rdt_device_address(server_.device));
}

void TensorService::OnConnect(void* context, rdt_channel* handle) {
  rdt_channel_ref(handle);
  PeerChannel::Adopt(handle, static_cast<TensorService*>(context)->new_ends_,
                     PeerChannel::Role::kSender, false);
}

void TensorService::OnNotify(void* context, rdt_channel* handle, uint64_t immediate,
                             const void* data, size_t size) {
  PeerChannel* channel = PeerChannel::FromHandle(handle);
  // Closing takes effect later. Messages that arrive until then are ignored.
  if (channel == nullptr || channel->refused) return;
  const NewCallee* const new_callee =
      static_cast<TensorService*>(context)->new_callee_.load(std::memory_order_acquire);
  if (!channel->Handle(new_callee, immediate, static_cast<const char*>(data), size)) {
    channel->RefuseMalformed();
  }
}

void TensorService::OnDown(void* context, rdt_channel* handle, rdt_status /*why*/) {
  const std::string why = rdt_last_error();
  PeerChannel* channel = PeerChannel::FromHandle(handle);
  if (channel == nullptr) return;
  channel->OnDown(why);
  if (!channel->opened_here() || channel->role() != PeerChannel::Role::kSender) return;
  TensorService* const service = static_cast<TensorService*>(context);
  for (const auto& receiver : service->peers_.Receivers()) receiver->OnOpenedLost();
  std::lock_guard<std::mutex> lock(service->lost_mutex_);
  if (service->receiver_lost_) service->receiver_lost_();
}

void TensorService::OnReleased(void* /*context*/, rdt_channel* handle) {
  if (PeerChannel* channel = PeerChannel::FromHandle(handle)) channel->ReleaseFromCore();
}

}  // namespace rdmatensor
