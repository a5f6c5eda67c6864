// SPDX-License-Identifier: Apache-2.0
//
// The core's settings that the plugin uses.
#ifndef RDMATENSOR_TENSORFLOW_BASE_SETTINGS_H_
#define RDMATENSOR_TENSORFLOW_BASE_SETTINGS_H_

#include <cstdint>
#include <cstring>
#include <string>

#include "rdmatensor.h"

namespace rdmatensor {

// What to do about a peer that cannot be reached by a channel.
enum class Policy {
  kAuto,  // TensorFlow's RPC, with a warning
  kRdma,  // fail
  kGrpc,  // never try
};

// The core's settings that the plugin uses, read when a server is created.
struct Settings {
  uint64_t inline_bytes = 16384;
  uint64_t alias_bytes = 0;
  uint64_t arena_limit = 0;
  // Until a tensor is dropped whose step never starts here.
  static constexpr uint64_t step_ttl_s = 600;
  bool plan = true, checksum = false, row_kernels = true;
  uint64_t plan_slots = 2, plan_loop_slots = 4, plan_limit = 0, plan_copy_bytes = 16384;
  uint64_t fuse_bytes = 4096, batch_size = 0, promote_after = 3;
  int connect_timeout_ms = 10000;
  uint64_t failback_ms = 1000;
  std::string bind_address;  // empty: as the cluster says
  Policy policy = Policy::kAuto;
  bool calls = true;  // CONTROL: steps start and end over channels
  // ABLATION, for measurements only. `copy_sent`: tensors are copied where they are sent. `by_rpc`: see
  // calls/recv_tensor.h.
  bool copy_sent = false, by_rpc = false;

  static Settings Read() {
    Settings settings;
    uint64_t connect_timeout_ms = 0, ablation = 0;
    char policy[32] = "", bind_address[RDT_CONFIG_TEXT_SIZE] = "", plan[32] = "", checksum[32] = "",
         control[32] = "", row_kernels[32] = "";
    (void)rdt_config_get_u64("INLINE_BYTES", &settings.inline_bytes);
    (void)rdt_config_get_u64("ALIAS_BYTES", &settings.alias_bytes);
    (void)rdt_config_get_u64("ARENA_LIMIT", &settings.arena_limit);
    (void)rdt_config_get_u64("PLAN_SLOTS", &settings.plan_slots);
    settings.plan_loop_slots = 2 * settings.plan_slots;
    (void)rdt_config_get_u64("PLAN_LIMIT", &settings.plan_limit);
    (void)rdt_config_get_u64("PLAN_COPY_BYTES", &settings.plan_copy_bytes);
    (void)rdt_config_get_u64("FUSE_BYTES", &settings.fuse_bytes);
    (void)rdt_config_get_u64("BATCH_SIZE", &settings.batch_size);
    (void)rdt_config_get_u64("PROMOTE_AFTER", &settings.promote_after);
    (void)rdt_config_get_u64("FAILBACK_MS", &settings.failback_ms);
    (void)rdt_config_get("PLAN", plan, sizeof plan);
    settings.plan = std::strcmp(plan, "off") != 0;
    (void)rdt_config_get("ROW_KERNELS", row_kernels, sizeof row_kernels);
    settings.row_kernels = std::strcmp(row_kernels, "off") != 0;
    (void)rdt_config_get("CHECKSUM", checksum, sizeof checksum);
    settings.checksum = std::strcmp(checksum, "crc32c") == 0;
    if (rdt_config_get_u64("DEADLINE_MS", &connect_timeout_ms) == RDT_OK) {
      settings.connect_timeout_ms = static_cast<int>(connect_timeout_ms);
    }
    (void)rdt_config_get("BIND_ADDRESS", bind_address, sizeof bind_address);
    settings.bind_address = bind_address;
    (void)rdt_config_get("POLICY", policy, sizeof policy);
    if (std::strcmp(policy, "rdma") == 0) settings.policy = Policy::kRdma;
    if (std::strcmp(policy, "grpc") == 0) settings.policy = Policy::kGrpc;
    (void)rdt_config_get("CONTROL", control, sizeof control);
    settings.calls = std::strcmp(control, "grpc") != 0;
    (void)rdt_config_get_u64("ABLATION", &ablation);
    settings.copy_sent = ablation == 1;
    settings.by_rpc = ablation == 2;
    settings.plan = settings.plan && !settings.by_rpc;
    return settings;
  }
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_SETTINGS_H_
