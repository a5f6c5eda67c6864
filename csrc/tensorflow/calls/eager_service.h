// SPDX-License-Identifier: Apache-2.0
//
// Serves eager contexts to clients that call over channels. The contexts are those of TensorFlow's own service, so a
// client may use channels and gRPC in turn.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_EAGER_SERVICE_H_
#define RDMATENSOR_TENSORFLOW_CALLS_EAGER_SERVICE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "calls/callee.h"
#include "channel/task_call.h"
#include "tensorflow/core/distributed_runtime/eager/eager_service_impl.h"

namespace rdmatensor {

// Stands before a request that must be executed after those that were sent before it in the same stream. After an
// error the stream ends: what was sent in it fails, too, and is not executed. The client then begins the next one.
struct StreamPosition {
  uint64_t client = 0;  // a random number for each client and context
  uint64_t stream = 0;  // grows by one with each stream of the client

  static constexpr size_t kSize = 16;
  void AppendTo(std::string* bytes) const;
  // Removes it from the beginning of `bytes`. False if they are too short.
  bool TakeFrom(absl::string_view* bytes);
};

// The question by which a client ends the stream at a position. The answer is empty.
inline constexpr char kStreamKey[] = "rdmatensor.stream";

// Thread-safe. Lives as long as its server.
class EagerService {
 public:
  // `stock` is that of TensorFlow's server.
  explicit EagerService(tensorflow::eager::EagerServiceImpl* stock) : stock_(stock) {}

  // Executes calls of EagerService's methods.
  void Serve(CallTable* table);
  // Answers kStreamKey: executes nothing more of that stream, even if it is still under way, and answers when
  // nothing of it is being executed any more.
  void EndStream(const std::string& question, TaskAnswered answer);

 private:
  struct InStream {
    uint64_t stream;
    std::shared_ptr<ArrivedCall> call;
    std::function<void()> ended;  // instead of a call: everything before it is over
  };
  struct Client {
    std::deque<InStream> waiting;
    bool busy = false;
    uint64_t first = 0;    // of the streams that have not been ended
    uint64_t context = 0;  // of its last request
    // Used by the one thread that makes it busy.
    uint64_t stream = 0;
    uint64_t id = 0;  // for TensorFlow, which executes in order what has one id
    absl::Status ended;
  };

  template <typename Request, typename Response>
  CallTable::Handler Unary(
      absl::Status (tensorflow::eager::EagerServiceImpl::*method)(const Request*, Response*));
  void Enqueue(const std::shared_ptr<ArrivedCall>& call);
  void RunComponentFunction(const std::shared_ptr<ArrivedCall>& call);
  void CloseContext(const std::shared_ptr<ArrivedCall>& call);
  // Progress thread.
  void EnqueueInStream(const std::shared_ptr<ArrivedCall>& call);
  void Add(const StreamPosition& position, InStream request);
  void Drain(const std::shared_ptr<Client>& client);
  absl::Status Execute(Client* client, const InStream& request,
                       tensorflow::eager::EnqueueResponse* response);
  // Waits until TensorFlow has executed what the client's last stream left to it, and returns the error of that. What
  // takes too long is left alone, and what follows gets an id of its own.
  absl::Status AwaitFormer(Client* client);

  tensorflow::eager::EagerServiceImpl* const stock_;
  std::mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Client>> clients_;
  // Streams that come over gRPC are numbered by addresses, which are smaller.
  std::atomic<uint64_t> next_id_{uint64_t{1} << 63};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_EAGER_SERVICE_H_
