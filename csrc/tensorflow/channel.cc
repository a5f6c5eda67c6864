// SPDX-License-Identifier: Apache-2.0
#include "channel.h"

#include <cstdlib>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "message.h"
#include "tensorflow/core/framework/allocation_description.pb.h"

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

void FreeMessage(void* message, rdt_status /*status*/) { std::free(message); }
void Ignore(void* /*context*/, rdt_status /*status*/) {}

absl::Status ToStatus(rdt_status status) {
  const std::string text =
      absl::StrCat("rdmatensor: ", rdt_status_name(status), ": ", rdt_last_error());
  return status == RDT_ERR_INVALID || status == RDT_ERR_RANGE ? absl::InternalError(text)
                                                              : absl::UnavailableError(text);
}

// Bytes in the sender's arena. TensorFlow never writes into memory that a buffer does not own, which
// matters because the pages are read-only here and the tensor is still the sender's.
class BorrowedBuffer : public tensorflow::TensorBuffer {
 public:
  BorrowedBuffer(void* data, uint64_t bytes, uint64_t lend_id, std::shared_ptr<Channel> channel)
      : tensorflow::TensorBuffer(data),
        bytes_(bytes),
        lend_id_(lend_id),
        channel_(std::move(channel)) {}
  ~BorrowedBuffer() override {
    // A lost channel needs no release: the sender takes its loans back when we let go of its memory.
    (void)channel_->Notify(PackImmediate(MessageKind::kRelease, lend_id_));
  }
  size_t size() const override { return bytes_; }
  tensorflow::TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocator_name("rdmatensor_remote");
  }

 private:
  const uint64_t bytes_, lend_id_;
  const std::shared_ptr<Channel> channel_;
};

}  // namespace

Channel::Channel(rdt_channel* handle) : handle_(handle) {
  rdt_channel_info info{};
  if (rdt_channel_get_info(handle, &info) != RDT_OK) return;
  transport_ = info.transport ? info.transport : "";
  peer_name_ = info.peer_name ? info.peer_name : "";
  max_notify_ = info.max_notify;
}

Channel::~Channel() {
  rdt_remote_region_unref(arena_);
  rdt_channel_unref(handle_);
}

std::shared_ptr<Channel> Channel::Adopt(rdt_channel* handle) {
  std::shared_ptr<Channel> channel(new Channel(handle));
  channel->held_by_core_ = channel;
  rdt_channel_set_context(handle, channel.get());
  return channel;
}

Channel* Channel::FromHandle(const rdt_channel* handle) {
  return static_cast<Channel*>(rdt_channel_context(handle));
}

void Channel::ReleaseFromCore() {
  lender_.ReleaseAll();
  // Last: this may be the last reference.
  std::shared_ptr<Channel> self = std::move(held_by_core_);
}

bool Channel::IsUp() const {
  rdt_channel_info info{};
  return rdt_channel_get_info(handle_, &info) == RDT_OK && info.up;
}

absl::Status Channel::OpenArena(int timeout_ms) {
  const rdt_status status = rdt_remote_region_find(handle_, "arena", timeout_ms, &arena_);
  if (status == RDT_ERR_NO_REGION) return absl::OkStatus();
  if (status != RDT_OK) return ToStatus(status);
  rdt_region_info info{};
  if (rdt_remote_region_get_info(arena_, &info) == RDT_OK) arena_size_ = info.size;
  return absl::OkStatus();
}

tensorflow::TensorBuffer* Channel::Borrow(uint64_t offset, uint64_t bytes, uint64_t lend_id) {
  void* address = nullptr;
  if (arena_ == nullptr || lend_id > kMaxImmediateValue || offset > arena_size_ ||
      bytes > arena_size_ - offset ||
      rdt_remote_region_map(arena_, offset, bytes, &address) != RDT_OK) {
    return nullptr;
  }
  return new BorrowedBuffer(address, bytes, lend_id, shared_from_this());
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
