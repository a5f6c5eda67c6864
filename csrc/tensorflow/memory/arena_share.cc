// SPDX-License-Identifier: Apache-2.0
#include "memory/arena_share.h"

#include "absl/strings/str_cat.h"
#include "base/settings.h"
#include "memory/arena_exports.h"
#include "memory/arena_trim.h"

void* rdt_tf_arena_share(rdt_device* device) {
  const rdmatensor::Settings settings = rdmatensor::Settings::Read();
  rdmatensor::Arena* const arena = rdmatensor::Arena::Get();
  const absl::Status active = arena->Activate(settings.arena_limit, settings.inline_bytes);
  if (!active.ok()) {
    rdt_log_line(RDT_LOG_INFO, absl::StrCat("tensorflow: ", active.message()).c_str());
    return nullptr;
  }
  return new rdmatensor::ArenaExports(arena, device);
}

void rdt_tf_arena_unshare(void* shared) { delete static_cast<rdmatensor::ArenaExports*>(shared); }

uint64_t rdt_tf_arena_trim() { return rdmatensor::TrimArena(); }
