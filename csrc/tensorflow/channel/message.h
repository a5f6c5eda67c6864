// SPDX-License-Identifier: Apache-2.0
//
// What two plugins say to each other over a channel. Every message is one notification: the kind and
// a small value travel in the immediate, the rest in the payload. Both ends run on hosts of one byte
// order (transports check that), so integers are copied as they are.
//
// Parsing trusts nothing: lengths are checked before use, and what a field means for this process
// (is there such a region, is the type one that can be copied) is checked by the user of it.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_MESSAGE_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"

namespace rdmatensor {

// Raised with every incompatible change: peers of different versions use TensorFlow's own RPC.
inline constexpr uint32_t kProtocolVersion = 9;

inline constexpr size_t kMaxDims = 254;  // TensorShape's own limit

enum class MessageKind : uint8_t {
  kTensor = 1,   // sender -> receiver: a tensor, or where to find its bytes
  kUseRpc = 2,   // sender -> receiver: this key must be fetched by RecvTensor
  kReady = 3,    // receiver -> sender: push the tensors of this name down this channel from now on
  kRelease = 4,  // receiver -> sender: the lent tensor (value: its id) is not needed any more
  kAbort = 5,    // sender -> receiver: the step failed here, nothing more will come
  // Planned tensors; the value is the number of the offer that they belong to. See plan_message.h.
  kOffer = 6,       // receiver -> sender: a piece of an offer of places
  kAccept = 7,      // sender -> receiver: the offer is in use
  kPlanned = 8,     // sender -> receiver: a tensor, or a group of them
  kWithdraw = 9,    // receiver -> sender: use the places no more
  kWithdrawn = 10,  // sender -> receiver: nothing will be written to them any more
  // Receiver -> sender, if the receiver used RecvTensor before it opened this channel.
  kRpcPending = 11,  // before kReady: a request for this key is under way, do not push it
  kRpcDone = 12,     // it has ended: push what comes under this key from now on
  kLost = 13,        // sender -> receiver: pushed down an earlier channel, and perhaps lost with it
  kContested = 16,   // sender -> receiver: another process announced this name too; use RecvTensor
  // Sender to receiver, first on a channel that the sender opened: take my tensors from here.
  kSource = 17,
  // Calls; see call_message.h. The value is the call's number, except of kCaller.
  kCaller = 18,  // caller -> callee, first on a channel for calls: this task calls
  kCall = 19,    // caller -> callee: the beginning of a request
  kAnswer = 20,  // callee -> caller: the beginning of its answer
  kMore = 21,    // in either direction: the next piece of what was begun last
  kCancel = 22,  // caller -> callee: nobody waits for the answer any more
  // A channel is replaced by one with a better transport. The value is the number of the attempt.
  kPause = 23,   // receiver -> sender: push nothing more down this channel
  kPaused = 24,  // sender -> receiver: nothing more comes down it
  kResume = 25,  // receiver -> sender: it is not replaced, push again
  // Receiver -> sender, first on the new channel: everything is here that came down the old one.
  kDrained = 26,
  // Receiver -> sender, on the new channel: all names were announced on it. Sender -> receiver, last on the old one, or
  // on the new one if there was none: close the old one. Caller -> callee, last on the old one; callee -> caller.
  kSwitched = 27
};

// The immediate: kind in the low byte, a value of at most 56 bits above it.
inline constexpr uint64_t kMaxImmediateValue = (uint64_t{1} << 56) - 1;
inline uint64_t PackImmediate(MessageKind kind, uint64_t value = 0) {
  return static_cast<uint64_t>(kind) | (value << 8);
}
inline MessageKind ImmediateKind(uint64_t immediate) {
  return static_cast<MessageKind>(immediate & 0xff);
}
inline uint64_t ImmediateValue(uint64_t immediate) { return immediate >> 8; }

struct TensorMessage {
  enum Flags : uint8_t {
    kDead = 1,     // TensorFlow's dead bit: no bytes follow
    kInline = 2,   // the bytes follow the key; else they lie in the sender's arena
    kBounced = 4,  // the sender had to copy them there (for the statistics)
    kChecked = 8,  // a checksum of the bytes comes with them
    kAllFlags = 15
  };
  int64_t step_id = 0;
  int32_t dtype = 0;
  uint8_t flags = 0;
  absl::InlinedVector<int64_t, 8> dims;
  absl::string_view key;
  uint32_t checksum = 0;          // kChecked: CRC32C
  uint64_t bytes = 0;             // size of the tensor's content
  const char* payload = nullptr;  // kInline: `bytes` bytes
  uint64_t region_key = 0;        // else: the sender's region that holds them,
  uint64_t offset = 0;            // where they start in it,
  uint64_t lend_id = 0;           // and what kRelease gives back
};

// Size of the encoded message, and the encoding into exactly that many bytes. The key and the
// payload are copied.
size_t EncodedSize(const TensorMessage& message);
void Encode(const TensorMessage& message, char* out);
// False if `data` is not a well-formed message. `out` points into `data`.
bool Parse(const char* data, size_t size, TensorMessage* out);

// Limits the requests that a receiver may have under way when it opens a channel, by the memory needed to
// remember them. No real receiver reaches it.
inline constexpr size_t kMaxRpcPendingBytes = 16u << 20;
inline size_t RpcPendingBytes(absl::string_view key) { return key.size() + 64; }

// kUseRpc, kRpcPending, kRpcDone, kLost: `text` is the key. kAbort: `code` is the absl::StatusCode,
// `text` its message, and `derived` says that the failure is a consequence of another one.
struct StepMessage {
  int64_t step_id = 0;
  int32_t code = 0;
  uint8_t derived = 0;
  absl::string_view text;
};
size_t EncodedSize(const StepMessage& message);
void Encode(const StepMessage& message, char* out);
bool Parse(const char* data, size_t size, StepMessage* out);

// kReady, kContested: a name of the receiver. kCaller: the caller's own name, in no session. Tasks have names in a
// session only: two sessions may give one process two names, or two processes one.
struct ReadyMessage {
  uint32_t version = kProtocolVersion;
  std::string session;  // empty: the sessions that use the servers' own cluster
  std::string task;
};
size_t EncodedSize(const ReadyMessage& message);
void Encode(const ReadyMessage& message, char* out);
// Copies the names: the sender may still write to `data`.
bool Parse(const char* data, size_t size, ReadyMessage* out);

// The answer to the question "where is your device?", which travels through TensorFlow's own
// RecvBuf call because that is the one connection which exists before ours.
struct AddressAnswer {
  uint32_t version = kProtocolVersion;
  std::string address;                 // host:port of the device
  std::string device_name;             // proves that host:port was the right process
  std::vector<uint64_t> incarnations;  // of every TensorFlow device of the task
  std::vector<uint64_t> region_keys;   // of the memory it has now
};
// kSource: the answer that a receiver would have got to its question, and the names of both in the session.
struct SourceMessage {
  std::string session, receiver, sender;
  AddressAnswer self;
};
size_t EncodedSize(const SourceMessage& message);
void Encode(const SourceMessage& message, char* out);
// Copies the names.
bool Parse(const char* data, size_t size, SourceMessage* out);

inline constexpr char kAddressKey[] = "rdmatensor";
// The key of a RecvBuf call that asks for the plan in force as JSON.
inline constexpr char kPlanKey[] = "rdmatensor.plan";
std::string Encode(const AddressAnswer& answer);
bool Parse(absl::string_view data, AddressAnswer* out);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_MESSAGE_H_
