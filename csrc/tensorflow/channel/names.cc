// SPDX-License-Identifier: Apache-2.0
#include "channel/names.h"

#include "tensorflow/core/util/device_name_utils.h"

namespace rdmatensor {

bool NamesTask(absl::string_view name) {
  tensorflow::DeviceNameUtils::ParsedName parsed;
  return name.size() <= kLongestName && tensorflow::DeviceNameUtils::ParseFullName(name, &parsed) &&
         parsed.has_job && parsed.has_replica && parsed.has_task && !parsed.has_type &&
         !parsed.has_id;
}

}  // namespace rdmatensor
