// SPDX-License-Identifier: Apache-2.0
//
// What follows a tensor that is under way, under the same step and key, comes after it: in one thread,
// and while others take and finish.
#include <thread>
#include <vector>

#include "receive/key_order.h"
#include "unit.h"

using rdmatensor::KeyOrder;
using rdmatensor::MessageKind;

namespace {

bool Keep(KeyOrder *order, int64_t step_id, const std::string &key, const std::string &message) {
  return order->Keep(step_id, key, MessageKind::kTensor, message.data(), message.size()) ==
         KeyOrder::Turn::kLater;
}

void KeepsOnlyWhatFollows() {
  KeyOrder order;
  KeyOrder::Kept kept;
  EXPECT(!Keep(&order, 1, "a", "nothing is under way"));
  EXPECT(order.Begin(1, "a"));
  EXPECT(!Keep(&order, 2, "a", "another step"));
  EXPECT(!Keep(&order, 1, "b", "another key"));
  EXPECT(Keep(&order, 1, "a", "second"));
  EXPECT(order.Keep(1, "a", MessageKind::kUseRpc, "third", 5) == KeyOrder::Turn::kLater);
  EXPECT(order.Next(1, "a", &kept) && kept.data == "second" && kept.kind == MessageKind::kTensor);
  // The second is under way now.
  EXPECT(Keep(&order, 1, "a", "fourth"));
  EXPECT(order.Next(1, "a", &kept) && kept.data == "third" && kept.kind == MessageKind::kUseRpc);
  EXPECT(order.Next(1, "a", &kept) && kept.data == "fourth");
  EXPECT(!order.Next(1, "a", &kept));
  EXPECT(!Keep(&order, 1, "a", "all are done"));
  EXPECT(!order.Next(1, "a", &kept));
}

// A peer may send messages for ever under a key that is under way, and begin ever new keys.
void KeepsNoMoreThanItMay() {
  KeyOrder order;
  KeyOrder::Kept kept;
  const std::string message(1 << 20, 'm');
  EXPECT(order.Begin(1, "a"));
  size_t count = 0;
  while (Keep(&order, 1, "a", message)) EXPECT(++count <= KeyOrder::kMaxBytes / message.size());
  EXPECT(count > 60);
  EXPECT(order.Keep(1, "a", MessageKind::kTensor, message.data(), message.size()) ==
         KeyOrder::Turn::kNever);
  // What was delivered counts no more; what is begun again counts once.
  EXPECT(order.Next(1, "a", &kept) && Keep(&order, 1, "a", message));
  while (order.Next(1, "a", &kept)) {
  }
  for (size_t i = 0; i < 2 * KeyOrder::kMaxBytes / KeyOrder::kCost; ++i)
    EXPECT(order.Begin(1, "b"));
  EXPECT(!order.Next(1, "b", &kept));
  count = 0;
  while (order.Begin(2, std::to_string(count)))
    EXPECT(++count <= KeyOrder::kMaxBytes / KeyOrder::kCost);
  EXPECT(count > KeyOrder::kMaxBytes / (KeyOrder::kCost + 10));
  EXPECT(order.Keep(3, "c", MessageKind::kTensor, "m", 1) == KeyOrder::Turn::kNow);
}

// One thread takes messages, as the progress thread does, another finishes what is under way.
void KeepsOrderBetweenThreads() {
  constexpr int kMessages = 50000;
  KeyOrder order;
  std::vector<int> delivered;  // by whoever has the turn: the order is also the lock
  std::atomic<int> begun{0}, finished{0};
  std::thread finisher([&] {
    for (int seen = 0; seen < kMessages;) {
      const bool last = finished.load() == kMessages;  // before the look at `begun`
      if (begun.load() == seen) {
        if (last) return;
        std::this_thread::yield();
        continue;
      }
      ++seen;
      delivered.push_back(0);
      KeyOrder::Kept kept;
      while (order.Next(1, "k", &kept)) delivered.push_back(std::stoi(kept.data));
    }
  });
  int started = 0;
  for (int i = 1; i <= kMessages; ++i) {
    if (Keep(&order, 1, "k", std::to_string(i))) continue;
    EXPECT(order.Begin(1, "k"));
    ++started;
    begun.fetch_add(1);
  }
  finished.store(kMessages);
  finisher.join();
  EXPECT(static_cast<int>(delivered.size()) == kMessages);
  // A 0 stands for a message that was delivered without being kept.
  int expected = 0, zeros = 0;
  for (int each : delivered) {
    ++expected;
    zeros += each == 0;
    EXPECT(each == 0 || each == expected);
  }
  EXPECT(zeros == started);
}

}  // namespace

int main() {
  KeepsOnlyWhatFollows();
  KeepsNoMoreThanItMay();
  KeepsOrderBetweenThreads();
  return 0;
}
