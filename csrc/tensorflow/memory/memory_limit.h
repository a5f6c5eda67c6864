// SPDX-License-Identifier: Apache-2.0
//
// The memory that this process may use.
#ifndef RDMATENSOR_TENSORFLOW_MEMORY_MEMORY_LIMIT_H_
#define RDMATENSOR_TENSORFLOW_MEMORY_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace rdmatensor {

// The bytes that this process may use: the machine's memory, or less if a cgroup (a container, a batch job)
// limits it.
uint64_t UsableMemory();

// The least memory limit of a process's cgroups and their ancestors; UINT64_MAX if there is none.
// `membership` is the process's file /proc/PID/cgroup, `mount` the folder where cgroups are mounted. Understands
// versions 1 and 2, and containers that see only their own part of the tree.
uint64_t CgroupMemoryLimit(const std::string& membership, const std::string& mount);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_MEMORY_MEMORY_LIMIT_H_
