// SPDX-License-Identifier: Apache-2.0
//
// The receiver's half of tensors that lie in the sender's memory. Where the transport can map that
// memory, a tensor is used in place; otherwise it is read into memory of this process, and the sender
// gets its own back as soon as it was. Nothing here blocks the progress thread: regions are opened,
// memory is registered and large copies are made on other threads.
#ifndef RDMATENSOR_TENSORFLOW_STEP_FETCHER_H_
#define RDMATENSOR_TENSORFLOW_STEP_FETCHER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "rdmatensor.h"
#include "stats/checksum.h"
#include "stats/path_stats.h"
#include "step/key_order.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace rdmatensor {

class Channel;
class Endpoint;

// What became of a message about a tensor.
enum class Outcome {
  kDone,      // delivered
  kUnderWay,  // is delivered later, from another thread
  kMalformed
};

// Where a tensor's bytes lie.
struct RemoteBytes {
  uint64_t region_key = 0, offset = 0, size = 0, lend_id = 0;
};

// A tensor that is being fetched. While the transport may write to `target` the transport's completion
// owns it, whatever happens to the step.
struct Fetch {
  std::shared_ptr<Channel> channel;
  int64_t step_id = 0;
  std::string key;
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  tensorflow::TensorShape shape;
  RemoteBytes from;
  Path path = Path::kDynamic;
  Checksum checksum;
  tensorflow::Tensor target;
  uint64_t read_since = 0;  // WaitMoment, while TensorFlow's profiler is on
};

// Thread-safe. Belongs to a channel.
class Fetcher {
 public:
  Fetcher(Endpoint* endpoint, Channel* channel) : endpoint_(endpoint), channel_(channel) {}
  ~Fetcher();
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  // Opens one of the sender's regions before messages name it. Blocks.
  absl::Status OpenAhead(uint64_t region_key);

  // The bytes in place, for a caller that owns the reference; its destruction releases the loan.
  // nullptr if they must be fetched: too small, unaligned, not mappable, or in a region that is not
  // open yet.
  tensorflow::TensorBuffer* Borrow(const RemoteBytes& from);

  // Delivers the tensor once its bytes are here. `follows`: it is the order's Next, and the caller
  // goes on with the one after it if the outcome is kDone.
  Outcome Start(std::unique_ptr<Fetch> fetch, bool follows);

  KeyOrder& order() { return order_; }

 private:
  struct RemoteRegion {
    rdt_remote_region* handle = nullptr;  // nullptr: being opened
    uint64_t size = 0;
    std::vector<std::unique_ptr<Fetch>> waiting;
  };
  // What a region needs to be used; the handle lives as long as the channel.
  struct OpenRegion {
    rdt_remote_region* handle = nullptr;
    uint64_t size = 0;
  };
  OpenRegion FindOpen(uint64_t region_key);
  // Asks the peer; nothing is stored.
  rdt_status Ask(uint64_t region_key, OpenRegion* region) const;
  void Open(uint64_t region_key);
  Outcome Advance(std::unique_ptr<Fetch> fetch, const OpenRegion& region, bool may_block);
  Outcome AdvanceElsewhere(std::unique_ptr<Fetch> fetch, const OpenRegion& region);
  // On a thread that may block: to the end.
  void AdvanceHere(std::unique_ptr<Fetch> fetch, const OpenRegion& region);
  Outcome Read(std::unique_ptr<Fetch> fetch, rdt_remote_region* region);
  void Finish(const Fetch& fetch);
  void Release(uint64_t lend_id);
  void Continue(int64_t step_id, const std::string& key);
  void Fail(rdt_status status, const std::string& why);
  static void OnRead(void* context, rdt_status status);

  Endpoint* const endpoint_;
  Channel* const channel_;
  KeyOrder order_;
  std::mutex mutex_;
  absl::flat_hash_map<uint64_t, RemoteRegion> regions_;  // by key
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_STEP_FETCHER_H_
