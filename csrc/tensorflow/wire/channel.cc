// SPDX-License-Identifier: Apache-2.0
#include "wire/channel.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "peer/links.h"
#include "peer/peers.h"
#include "wire/message.h"

namespace rdmatensor {
namespace {

// A message buffer that is used again by the thread's next message, unless the core still reads it.
struct MessageBuffer {
  MessageBuffer() = default;
  MessageBuffer(const MessageBuffer&) = delete;
  MessageBuffer& operator=(const MessageBuffer&) = delete;
  ~MessageBuffer() { std::free(data); }
  char* data = nullptr;
  size_t capacity = 0;
};
thread_local MessageBuffer message_buffer;
constexpr size_t kSmallestBuffer = 4096;
// No process has as many names: sessions that name it differently are rare.
constexpr size_t kMaxNames = 64;

void FreeMessage(void* message, rdt_status /*status*/) { std::free(message); }
void Ignore(void* /*context*/, rdt_status /*status*/) {}

absl::Status ToStatus(rdt_status status) {
  const std::string text =
      absl::StrCat("rdmatensor: ", rdt_status_name(status), ": ", rdt_last_error());
  return status == RDT_ERR_INVALID || status == RDT_ERR_RANGE ? absl::InternalError(text)
                                                              : absl::UnavailableError(text);
}

}  // namespace

Channel::Channel(rdt_channel* handle, Endpoint* endpoint, Role role, bool opened_here)
    : handle_(handle),
      role_(role),
      opened_here_(opened_here),
      fetcher_(endpoint, this),
      plan_(endpoint, this) {
  rdt_channel_info info{};
  if (rdt_channel_get_info(handle, &info) == RDT_OK) {
    transport_ = info.transport ? info.transport : "";
    peer_name_ = info.peer_name ? info.peer_name : "";
    max_notify_ = info.max_notify;
    can_map_ = info.capabilities & RDT_CAP_MAP;
  }
}

Channel::~Channel() { rdt_channel_unref(handle_); }

std::shared_ptr<Channel> Channel::Adopt(rdt_channel* handle, Endpoint* endpoint, Role role,
                                        bool opened_here) {
  std::shared_ptr<Channel> channel(new Channel(handle, endpoint, role, opened_here));
  channel->held_by_core_ = channel;
  rdt_channel_set_context(handle, channel.get());
  return channel;
}

Channel* Channel::FromHandle(const rdt_channel* handle) {
  return static_cast<Channel*>(rdt_channel_context(handle));
}

void Channel::ReleaseFromCore() {
  lender_.ReleaseAll();
  {
    std::lock_guard<std::mutex> lock(peers_mutex_);
    sources_.clear();
    destinations_.clear();
  }
  // Last: this may be the last reference.
  std::shared_ptr<Channel> self = std::move(held_by_core_);
}

bool Channel::IsUp() const {
  rdt_channel_info info{};
  return rdt_channel_get_info(handle_, &info) == RDT_OK && info.up;
}

void Channel::NameLocked(Direction direction, const std::string& task) {
  if (!first_name_.empty()) return;
  first_name_ = task;
  traffic_.store(TrafficOf(direction, task, transport_), std::memory_order_release);
}

bool Channel::BecomeReceiver() {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  if (!destinations_.empty()) return false;
  role_.store(Role::kReceiver, std::memory_order_release);
  return true;
}

absl::Status Channel::OpenAhead(const std::vector<uint64_t>& region_keys) {
  for (uint64_t region_key : region_keys) {
    if (absl::Status opened = fetcher_.OpenAhead(region_key); !opened.ok()) return opened;
  }
  return absl::OkStatus();
}

std::string Channel::FirstName() {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  return first_name_;
}

void Channel::AddSource(std::shared_ptr<SourcePeer> source) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  NameLocked(Direction::kReceive, source->task());
  if (std::find(sources_.begin(), sources_.end(), source) == sources_.end()) {
    sources_.push_back(std::move(source));
  }
}

bool Channel::RemoveSource(const SourcePeer* source) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  sources_.erase(std::remove_if(sources_.begin(), sources_.end(),
                                [source](const auto& each) { return each.get() == source; }),
                 sources_.end());
  return sources_.empty();
}

std::vector<std::shared_ptr<SourcePeer>> Channel::Sources() {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  return sources_;
}

bool Channel::AddDestination(std::shared_ptr<DestinationLink> destination) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  NameLocked(Direction::kSend, destination->task());
  if (std::find(destinations_.begin(), destinations_.end(), destination) != destinations_.end()) {
    return true;
  }
  if (destinations_.size() >= kMaxNames) return false;
  destinations_.push_back(std::move(destination));
  return true;
}

std::vector<std::shared_ptr<DestinationLink>> Channel::Destinations() {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  return destinations_;
}

char* Channel::Prepare(size_t size) {
  MessageBuffer& buffer = message_buffer;
  if (buffer.capacity < size) {
    std::free(buffer.data);
    buffer.capacity = size < kSmallestBuffer ? kSmallestBuffer : size;
    buffer.data = static_cast<char*>(std::malloc(buffer.capacity));
    if (buffer.data == nullptr) throw std::bad_alloc();
  }
  return buffer.data;
}

absl::Status Channel::Post(uint64_t immediate, char* message, size_t size) {
  rdt_op op{};
  op.kind = RDT_OP_NOTIFY;
  op.local = message;
  op.size = size;
  op.immediate = immediate;
  if (message == nullptr) {
    const rdt_status status = rdt_channel_post(handle_, &op, 1, Ignore, nullptr);
    return status >= RDT_OK ? absl::OkStatus() : ToStatus(status);
  }
  // The buffer leaves the thread before the call, because `done` may free it before the call returns.
  MessageBuffer& buffer = message_buffer;
  const size_t capacity = std::exchange(buffer.capacity, 0);
  buffer.data = nullptr;
  const rdt_status status = rdt_channel_post(handle_, &op, 1, FreeMessage, message);
  if (status == RDT_IN_PROGRESS) return absl::OkStatus();
  if (buffer.data == nullptr) {
    buffer.data = message;
    buffer.capacity = capacity;
  } else {
    std::free(message);  // a callback on this thread sent something meanwhile
  }
  return status == RDT_OK ? absl::OkStatus() : ToStatus(status);
}

}  // namespace rdmatensor
