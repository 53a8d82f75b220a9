// Facts about this machine and process, from the kernel.
#ifndef HOIST_DAEMON_DOCTOR_MACHINE_H_
#define HOIST_DAEMON_DOCTOR_MACHINE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hoistd {

// A GPU's PCI link: its address, and its current and maximum number of lanes.
struct PciLink {
  std::string address;  // "0000:17:00.0".
  uint32_t width = 0;
  uint32_t most_width = 0;
};

struct Machine {
  static constexpr uint64_t kUnlimited = UINT64_MAX;

  std::string driver;          // NVIDIA's version; "": none is loaded.
  std::vector<PciLink> gpus;   // NVIDIA's, by address.
  uint64_t memlock_bytes = 0;  // RLIMIT_MEMLOCK of this process.
  uint64_t descriptors = 0;    // RLIMIT_NOFILE.
  uint32_t memory_nodes = 1;   // NUMA nodes that have memory.
};

// `root` is a prefix of /proc and /sys; "" except in tests.
Machine ReadMachine(const std::string& root);

}  // namespace hoistd

#endif  // HOIST_DAEMON_DOCTOR_MACHINE_H_
