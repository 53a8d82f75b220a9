// Facts about the machine, from the kernel's files.
#ifndef HOIST_DAEMON_BASE_MACHINE_FILES_H_
#define HOIST_DAEMON_BASE_MACHINE_FILES_H_

#include <string>
#include <vector>

namespace hoistd {

// A file's text, without white space at its ends. "": it cannot be read.
std::string ReadKernelFile(const std::string& path);

inline constexpr int kMaxMemoryNodes = 1024;  // The kernel's own limit.
// "0-1,3" gives 0, 1 and 3; empty: not such a list.
std::vector<int> ParseNodeList(const std::string& text);
// NUMA nodes that have memory; empty: unknown. `root`, here and below, is a
// prefix of /sys; "" except in tests.
std::vector<int> MemoryNodes(const std::string& root);

// NVIDIA's display and 3D controllers: their folders, by address.
std::vector<std::string> NvidiaGpus(const std::string& root);

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_MACHINE_FILES_H_
