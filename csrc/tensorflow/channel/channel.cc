// SPDX-License-Identifier: Apache-2.0
#include "channel/channel.h"

#include <cstdlib>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rdmatensor {
namespace {

// A message buffer that is used again by the thread's next message, unless the core still reads it.
struct MessageBuffer {
  char* data = nullptr;
  size_t capacity = 0;
};
thread_local MessageBuffer message_buffer;

// Frees the buffer as the thread ends. What ends later there may send messages still.
struct BufferEnd {
  ~BufferEnd() { std::free(std::exchange(message_buffer, {}).data); }
};
constexpr size_t kSmallestBuffer = 4096;

void FreeMessage(void* message, rdt_status /*status*/) { std::free(message); }
void Ignore(void* /*context*/, rdt_status /*status*/) {}

absl::Status ToStatus(rdt_status status) {
  const std::string text =
      absl::StrCat("rdmatensor: ", rdt_status_name(status), ": ", rdt_last_error());
  return status == RDT_ERR_INVALID || status == RDT_ERR_RANGE ? absl::InternalError(text)
                                                              : absl::UnavailableError(text);
}

}  // namespace

Channel::Channel(rdt_channel* handle) : handle_(handle) {
  rdt_channel_info info{};
  if (rdt_channel_get_info(handle, &info) == RDT_OK) {
    transport_ = info.transport ? info.transport : "";
    peer_name_ = info.peer_name ? info.peer_name : "";
    max_notify_ = info.max_notify;
    can_map_ = info.capabilities & RDT_CAP_MAP;
  }
}

Channel::~Channel() { rdt_channel_unref(handle_); }

bool Channel::IsUp() const {
  rdt_channel_info info{};
  return rdt_channel_get_info(handle_, &info) == RDT_OK && info.up;
}

void Channel::RefuseBroken(absl::string_view how) {
  if (refused.exchange(true)) return;
  rdt_log_line(RDT_LOG_WARN,
               absl::StrCat("tensorflow: ", peer_name_, " ", how, ": closing its channel").c_str());
  Close();
}

void Channel::SetName(Direction direction, const std::string& task) {
  std::lock_guard<std::mutex> lock(name_mutex_);
  if (!first_name_.empty()) return;
  first_name_ = task;
  traffic_.store(TrafficOf(direction, task, transport_), std::memory_order_release);
}

std::string Channel::FirstName() {
  std::lock_guard<std::mutex> lock(name_mutex_);
  return first_name_;
}

char* Channel::Prepare(size_t size) {
  MessageBuffer& buffer = message_buffer;
  if (buffer.capacity < size) {
    static thread_local BufferEnd end;
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
