// SPDX-License-Identifier: Apache-2.0
//
// The sender's half of tensors outside the plan: a message holds the bytes, or says where they lie.
#ifndef RDMATENSOR_TENSORFLOW_SEND_PUSH_H_
#define RDMATENSOR_TENSORFLOW_SEND_PUSH_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "channel/channel.h"
#include "channel/message.h"
#include "channel/server_context.h"
#include "stats/path_stats.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdmatensor {

// Says why tensors of this key and type cannot be pushed; nullptr if they can. `attributes`: of the memory in which
// they lie.
const char* WhyNotPushable(const tensorflow::Rendezvous::ParsedKey& key,
                           const tensorflow::AllocatorAttributes& attributes,
                           const tensorflow::Tensor& tensor);

// What a message says about a tensor: its bytes, or where they lie and under which number they are lent.
struct Described {
  TensorMessage message;      // points to the key and into `source`
  tensorflow::Tensor source;  // the tensor, or a copy of it
  Path path = Path::kInline;
};
enum class Use { kWhereItLies, kCopied };
// Describes a pushable tensor for a message of at most `room` bytes. `use`: whether its own memory may be lent,
// which later changes by its owner must then not touch. nullptr, or why it cannot be described; then nothing is
// lent.
const char* DescribeTensor(const ServerContext& server, Channel* channel, int64_t step_id,
                           absl::string_view key, const tensorflow::Tensor& tensor, uint64_t room,
                           Use use, Described* described);

// Sends a pushable tensor down `channel`. nullptr if it was sent, by *path, else why it must go by RPC. A lost
// channel is no reason: it fails the receiver's step, and sending never fails, as in stock TensorFlow.
const char* PushTensor(const ServerContext& server, Channel* channel, int64_t step_id,
                       absl::string_view key, const tensorflow::Tensor& tensor, Path* path);
// Sends a dead tensor.
void PushDead(Channel* channel, int64_t step_id, absl::string_view key);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_PUSH_H_
