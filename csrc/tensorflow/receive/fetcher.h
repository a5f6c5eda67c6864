// SPDX-License-Identifier: Apache-2.0
//
// The receiver's half of tensors that lie in the sender's memory. Where the transport can map that
// memory, a tensor is used in place; otherwise it is read into memory of this process, and the sender
// gets its memory back as soon as that is done. Nothing here blocks the progress thread: regions are opened,
// memory is registered and large copies are made on other threads.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_FETCHER_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_FETCHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/settings.h"
#include "channel/channel.h"
#include "rdmatensor.h"
#include "receive/delivery.h"
#include "receive/receive_events.h"
#include "stats/checksum.h"
#include "stats/path_stats.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace rdmatensor {

class Fetcher;

// Says what became of a message about a tensor.
enum class Taken {
  kDone,      // delivered
  kUnderWay,  // is delivered later, from another thread
  kMalformed
};

// The location of a tensor's bytes in the sender's memory.
struct RemoteBytes {
  uint64_t region_key = 0, offset = 0, size = 0, lend_id = 0;
};

// A tensor that is being fetched. While the transport may write to `target` the transport's completion
// owns it, whatever happens to the step.
struct Fetch {
  std::shared_ptr<Channel> channel;  // keeps the fetcher
  Fetcher* fetcher = nullptr;        // set by it
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

absl::Status NoMemoryFor(uint64_t bytes);

// Thread-safe. One for each channel, which outlives it.
class Fetcher {
 public:
  // Called when a tensor that was under way is delivered, or its step has failed.
  using Fetched = std::function<void(int64_t step_id, const std::string& key)>;

  Fetcher(const Settings* settings, Channel* channel, Delivery* delivery, ReceiveEvents* events,
          Fetched fetched)
      : settings_(settings),
        channel_(channel),
        delivery_(delivery),
        events_(events),
        fetched_(std::move(fetched)) {}
  ~Fetcher();
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  // Opens one of the sender's regions before messages name it. Blocks.
  absl::Status OpenAhead(uint64_t region_key);

  // Makes a buffer of the bytes where they lie. The caller owns the reference; destroying the buffer releases
  // the loan. nullptr if the bytes must be fetched: they are too few, unaligned, not mappable, or in a
  // region that is not open yet.
  tensorflow::TensorBuffer* Borrow(const RemoteBytes& from);

  // Reads the bytes into `target`, which has room for them, and gives the loan back. Blocks until the transport has
  // read them, or the channel is lost. After an error the channel is closed.
  absl::Status ReadNow(const RemoteBytes& from, tensorflow::Tensor* target);

  // Delivers the tensor once its bytes are here. `fetched` is called, from any thread, only if it returns
  // kUnderWay, and not if the channel ends before.
  Taken Start(std::unique_ptr<Fetch> fetch);

 private:
  struct RemoteRegion {
    rdt_remote_region* handle = nullptr;  // nullptr: being opened
    uint64_t size = 0;
    std::vector<std::unique_ptr<Fetch>> waiting;
  };
  // An open region. The handle lives as long as the channel.
  struct OpenRegion {
    rdt_remote_region* handle = nullptr;
    uint64_t size = 0;
  };
  OpenRegion FindOpen(uint64_t region_key);
  // Asks the peer for a region, and stores nothing.
  rdt_status OpenRemote(uint64_t region_key, OpenRegion* region) const;
  void Open(uint64_t region_key);
  Taken Advance(std::unique_ptr<Fetch> fetch, const OpenRegion& region, bool may_block);
  Taken AdvanceElsewhere(std::unique_ptr<Fetch> fetch, const OpenRegion& region);
  // Finishes the fetch on a thread that may block.
  void AdvanceHere(std::unique_ptr<Fetch> fetch, const OpenRegion& region);
  Taken Read(std::unique_ptr<Fetch> fetch, rdt_remote_region* region);
  // A tensor of a call cannot be read.
  void RefuseUnreadable(absl::string_view why);
  void Finish(const Fetch& fetch);
  void Release(uint64_t lend_id);
  void Fail(rdt_status status, const std::string& why);
  static void OnRead(void* context, rdt_status status);

  const Settings* const settings_;
  Channel* const channel_;
  Delivery* const delivery_;
  ReceiveEvents* const events_;
  const Fetched fetched_;
  std::mutex mutex_;
  absl::flat_hash_map<uint64_t, RemoteRegion> regions_;  // by key
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_FETCHER_H_
