// SPDX-License-Identifier: Apache-2.0
#include "memory/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace rdmatensor {
namespace {

// The limit in a file; none if the file says "max" or does not exist.
uint64_t ReadLimit(const std::string& path) {
  std::ifstream file(path);
  uint64_t limit = 0;
  return file >> limit ? limit : UINT64_MAX;
}

// The least limit of the cgroup at `path` and its ancestors up to the mount's root.
uint64_t LeastLimit(const std::string& root, std::string path, const char* file) {
  uint64_t least = UINT64_MAX;
  while (!path.empty() && path != "/") {
    least = std::min(least, ReadLimit(root + path + "/" + file));
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  return std::min(least, ReadLimit(root + "/" + file));
}

bool HasMemory(const std::string& controllers) {
  return ("," + controllers + ",").find(",memory,") != std::string::npos;
}

}  // namespace

uint64_t CgroupMemoryLimit(const std::string& membership, const std::string& mount) {
  uint64_t least = UINT64_MAX;
  std::ifstream file(membership);
  // "hierarchy:controllers:path"; version 2 is hierarchy 0 and names no controllers.
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (line.compare(0, first, "0") == 0) {
      least = std::min(least, LeastLimit(mount, path, "memory.max"));
    } else if (HasMemory(controllers)) {
      least = std::min(least, LeastLimit(mount + "/memory", path, "memory.limit_in_bytes"));
    }
  }
  return least;
}

uint64_t UsableMemory() {
  constexpr uint64_t kUnknown = uint64_t{4} << 30;
  const long pages = sysconf(_SC_PHYS_PAGES), page_size = sysconf(_SC_PAGESIZE);
  const uint64_t physical = pages <= 0 || page_size <= 0
                                ? kUnknown
                                : static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_size);
  return std::min(physical, CgroupMemoryLimit("/proc/self/cgroup", "/sys/fs/cgroup"));
}

}  // namespace rdmatensor
