// SPDX-License-Identifier: Apache-2.0
#include "stats/row_stats.h"

#include <atomic>

#include "absl/strings/str_cat.h"

namespace rdmatensor {
namespace {

std::atomic<uint64_t> row_operations, rows_of_operations, rows_left;

}  // namespace

void CountRows(int64_t rows) {
  if (rows < 0) {
    rows_left.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  row_operations.fetch_add(1, std::memory_order_relaxed);
  rows_of_operations.fetch_add(static_cast<uint64_t>(rows), std::memory_order_relaxed);
}

std::string RowsAsJson() {
  return absl::StrCat("{\"operations\":", row_operations.load(),
                      ",\"rows\":", rows_of_operations.load(), ",\"left\":", rows_left.load(), "}");
}

void ResetRows() {
  for (auto* const each : {&row_operations, &rows_of_operations, &rows_left}) each->store(0);
}

}  // namespace rdmatensor
