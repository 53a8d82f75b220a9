#include "daemon/doctor/machine.h"

#include <sys/resource.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "daemon/base/machine_files.h"

namespace hoistd {
namespace {

uint32_t Number(const std::string& path) {
  uint32_t number = 0;
  return absl::SimpleAtoi(ReadKernelFile(path), &number) ? number : 0;
}

// Finds the first word of digits and dots: "NVRM version: NVIDIA UNIX x86_64
// Kernel Module  580.95.05  ...".
std::string DriverVersion(const std::string& text) {
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty())) {
    const bool digits = word.find_first_not_of("0123456789.") == word.npos;
    if (digits && word.find('.') != word.npos) return std::string(word);
  }
  return "";
}

uint64_t LimitOf(int resource) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0) return Machine::kUnlimited;
  return limit.rlim_cur == RLIM_INFINITY ? Machine::kUnlimited
                                         : uint64_t{limit.rlim_cur};
}

}  // namespace

Machine ReadMachine(const std::string& root) {
  Machine machine;
  machine.driver =
      DriverVersion(ReadKernelFile(root + "/proc/driver/nvidia/version"));
  for (const std::string& gpu : NvidiaGpus(root)) {
    machine.gpus.push_back({gpu.substr(gpu.rfind('/') + 1),
                            Number(gpu + "/current_link_width"),
                            Number(gpu + "/max_link_width")});
  }
  machine.memlock_bytes = LimitOf(RLIMIT_MEMLOCK);
  machine.descriptors = LimitOf(RLIMIT_NOFILE);
  machine.memory_nodes =
      std::max<uint32_t>(static_cast<uint32_t>(MemoryNodes(root).size()), 1);
  return machine;
}

}  // namespace hoistd
