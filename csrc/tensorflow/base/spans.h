// SPDX-License-Identifier: Apache-2.0
//
// What the plugin does, as spans of TensorFlow's profiler: docs/metrics.md has their names. While it is off
// each costs the read of one atomic. Their names have two colons, because TensorFlow takes what has one for an
// operation and its type.
#ifndef RDMATENSOR_TENSORFLOW_BASE_SPANS_H_
#define RDMATENSOR_TENSORFLOW_BASE_SPANS_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/task_name.h"
#include "tsl/profiler/lib/traceme.h"
#include "xla/tsl/profiler/backends/cpu/traceme_recorder.h"
#include "xla/tsl/profiler/utils/time_utils.h"

namespace rdmatensor {

// Shown unless the user asks for less.
inline constexpr int kSpanLevel = tsl::profiler::TraceMeLevel::kInfo;

inline bool Tracing() { return tsl::profiler::TraceMe::Active(kSpanLevel); }

// A rendezvous key's part that names the edge.
inline absl::string_view EdgeNameIn(absl::string_view key) {
  const absl::string_view named = key.substr(0, key.rfind(';'));
  const size_t before = named.rfind(';');
  return before == absl::string_view::npos ? named : named.substr(before + 1);
}

inline std::string SpanName(const char* what, absl::string_view edge, absl::string_view peer,
                            uint64_t bytes, absl::string_view path) {
  return tsl::profiler::TraceMeEncode(
      what, {{"edge", edge}, {"peer", peer}, {"bytes", bytes}, {"path", path}});
}

// A span of this thread that took so many nanoseconds and ends now. For what begins and ends on different
// threads.
inline void RecordSpan(std::string name, uint64_t nanoseconds) {
  const int64_t end = tsl::profiler::GetCurrentTimeNanos();
  tsl::profiler::TraceMeRecorder::Record(
      {std::move(name), end - static_cast<int64_t>(nanoseconds), end});
}

// The sending of one tensor to a task or device of it by this thread, until End. Its path is known then.
class SendSpan {
 public:
  SendSpan(absl::string_view edge, absl::string_view to, uint64_t bytes)
      : span_(
            [&] {
              return tsl::profiler::TraceMeEncode(
                  "rdmatensor::send", {{"edge", edge}, {"peer", TaskOf(to)}, {"bytes", bytes}});
            },
            kSpanLevel) {}
  // "none": it went another way after all, and has another span.
  void End(absl::string_view path) {
    span_.AppendMetadata([path] { return tsl::profiler::TraceMeEncode({{"path", path}}); });
    span_.Stop();
  }

 private:
  tsl::profiler::TraceMe span_;
};

// memcpy, with the reason for it: "place", "group", "bounce".
inline void CopyTraced(void* to, const void* from, uint64_t bytes, const char* why) {
  tsl::profiler::TraceMe span(
      [&] {
        return tsl::profiler::TraceMeEncode("rdmatensor::copy", {{"bytes", bytes}, {"why", why}});
      },
      kSpanLevel);
  std::memcpy(to, from, bytes);
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_SPANS_H_
