// SPDX-License-Identifier: Apache-2.0
//
// The memory limits of both versions of cgroups, at any level, in a host's view and in a container's.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "memory/memory_limit.h"
#include "unit.h"

using rdmatensor::CgroupMemoryLimit;

namespace {

constexpr uint64_t kNone = UINT64_MAX;

// A folder of its own for each case.
struct Tree {
  Tree() {
    root = (std::filesystem::temp_directory_path() / "memory_limit.XXXXXX").string();
    EXPECT(mkdtemp(root.data()) != nullptr);
  }
  ~Tree() {
    const std::string command = "rm -r " + root;
    EXPECT(std::system(command.c_str()) == 0);
  }
  void Write(const std::string &path, const std::string &text) const {
    for (size_t at = path.find('/'); at != std::string::npos; at = path.find('/', at + 1)) {
      mkdir((root + "/" + path.substr(0, at)).c_str(), 0700);
    }
    std::ofstream(root + "/" + path) << text;
    EXPECT(access((root + "/" + path).c_str(), R_OK) == 0);
  }
  uint64_t Limit() const { return CgroupMemoryLimit(root + "/membership", root + "/mount"); }
  std::string root;
};

void NoCgroups() {
  Tree tree;
  EXPECT(tree.Limit() == kNone);
  tree.Write("membership", "garbage\n0\n:\n0::\n");
  EXPECT(tree.Limit() == kNone);
}

void Version2() {
  Tree tree;
  tree.Write("membership", "0::/user.slice/job\n");
  EXPECT(tree.Limit() == kNone);
  tree.Write("mount/user.slice/job/memory.max", "max\n");
  EXPECT(tree.Limit() == kNone);
  tree.Write("mount/user.slice/memory.max", "3000000000\n");
  EXPECT(tree.Limit() == 3000000000);
  tree.Write("mount/user.slice/job/memory.max", "2000000000\n");
  EXPECT(tree.Limit() == 2000000000);
  // In a container the mount's root is the container's own cgroup.
  tree.Write("mount/memory.max", "1000000000\n");
  EXPECT(tree.Limit() == 1000000000);
}

void Version1() {
  Tree tree;
  tree.Write("membership",
             "4:cpu,cpuacct:/docker/1\n3:cpu,memory:/docker/1\n2:memory_not:/docker/2\n0::/\n");
  tree.Write("mount/memory/docker/2/memory.limit_in_bytes", "1\n");
  EXPECT(tree.Limit() == kNone);
  // What the kernel says where there is no limit.
  tree.Write("mount/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT(tree.Limit() == 9223372036854771712u);
  tree.Write("mount/memory/docker/1/memory.limit_in_bytes", "500000000\n");
  EXPECT(tree.Limit() == 500000000);
}

void ThisProcess() {
  const uint64_t usable = rdmatensor::UsableMemory();
  EXPECT(usable > 0);
  EXPECT(usable <= static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                       static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
}

}  // namespace

int main() {
  NoCgroups();
  Version2();
  Version1();
  ThisProcess();
  return 0;
}
