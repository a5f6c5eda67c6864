// SPDX-License-Identifier: Apache-2.0
//
// What a call carries in either direction: a message of TensorFlow, and tensors beside it, which travel as those
// of steps do. Small ones are inside the call; of others the call says where they lie.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_CALL_BODY_H_
#define RDMATENSOR_TENSORFLOW_CALLS_CALL_BODY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "channel/call_message.h"
#include "channel/message.h"
#include "channel/peer_channel.h"
#include "channel/server_context.h"
#include "send/push.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/protobuf.h"

namespace rdmatensor {

// A tensor beside the message.
struct CallTensor {
  tensorflow::Tensor tensor;
  std::string key;              // a rendezvous key, or any name; error texts have it
  Use use = Use::kWhereItLies;  // kCopied: others may write to its memory later
};

struct CallBody {
  std::string bytes;  // the message, serialized, unless it is long
  std::vector<CallTensor> tensors;
};

// Whether the tensor can go beside a message; otherwise it must be inside.
bool MayGoBeside(const tensorflow::Tensor& tensor);

// Appends a message, after all tensors. A long one, such as a request with large constants, goes beside as if it were
// a tensor. False if it is too long for protobuf.
bool Pack(const tensorflow::protobuf::MessageLite& message, CallBody* body);
// Reads the message. `before`: the number of bytes that come before it.
absl::Status Unpack(const CallBody& body, tensorflow::protobuf::MessageLite* message,
                    size_t before = 0);

// The tensors of a body as messages describe them. Holds what the descriptions point to.
class DescribedTensors {
 public:
  // Lends what is large. `tensors` must outlive this.
  DescribedTensors(const ServerContext& server, PeerChannel* channel,
                   const std::vector<CallTensor>& tensors);
  // The descriptions. They may be moved out.
  std::vector<TensorMessage> messages;
  // Ends the loans, because the message was not sent.
  void TakeBack();

 private:
  PeerChannel* const channel_;
  std::vector<tensorflow::Tensor> sources_;
};

// Takes what a message describes into memory of this process. `may_borrow`: or uses it in the sender's memory, which is
// read-only; but never a message, which is checked while it is read. Blocks if anything is not inside of the message.
// Always ends the peer's loans that are not borrowed.
absl::Status TakeTensors(PeerChannel* channel, const std::vector<TensorMessage>& messages,
                         bool may_borrow, std::vector<CallTensor>* tensors);
// True if TakeTensors does not block.
bool AllInline(const std::vector<TensorMessage>& messages);
// Ends the peer's loans without taking the tensors.
void DropTensors(PeerChannel* channel, const std::vector<TensorMessage>& messages);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_CALL_BODY_H_
