// SPDX-License-Identifier: Apache-2.0
//
// Lines of the log that one cause would repeat.
#ifndef RDMATENSOR_TENSORFLOW_BASE_SELDOM_H_
#define RDMATENSOR_TENSORFLOW_BASE_SELDOM_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "rdmatensor.h"

namespace rdmatensor {

// Warns of each cause at once, and then every ten minutes at most, with the number of times in between. Texts that
// differ only in numbers have one cause. What is left out is logged as debugging output. Thread-safe. Make it static.
class Seldom {
 public:
  void Warn(const std::string& text) {
    std::string cause;
    std::copy_if(text.begin(), text.end(), std::back_inserter(cause),
                 [](char each) { return !absl::ascii_isdigit(each); });
    const Clock::time_point now = Clock::now();
    bool left_out = false;
    uint64_t before = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (causes_.size() == kMostCauses && causes_.count(cause) == 0) causes_.clear();
      Told& told = causes_[cause];
      left_out = now < told.due;
      before = left_out ? 0 : told.left_out;
      told.left_out = left_out ? told.left_out + 1 : 0;
      if (!left_out) told.due = now + kPeriod;
    }
    const std::string more =
        before == 0 ? text : absl::StrCat(text, " (and ", before, " times more since then)");
    rdt_log_line(left_out ? RDT_LOG_DEBUG : RDT_LOG_WARN, more.c_str());
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Told {
    Clock::time_point due{};
    uint64_t left_out = 0;
  };
  static constexpr std::chrono::minutes kPeriod{10};
  static constexpr size_t kMostCauses = 64;
  std::mutex mutex_;
  // Never destroyed: something may be said while static destructors run.
  std::map<std::string, Told>& causes_ = *new std::map<std::string, Told>;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_SELDOM_H_
