#include "daemon/doctor/machine.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace hoistd {
namespace {

// "": the file cannot be read.
std::string Text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

uint32_t Number(const std::string& path) {
  uint32_t number = 0;
  return absl::SimpleAtoi(Text(path), &number) ? number : 0;
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

std::vector<PciLink> Gpus(const std::string& root) {
  constexpr char kNvidia[] = "0x10de";
  constexpr char kDisplay[] = "0x03";  // A class's first byte.
  std::vector<PciLink> gpus;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(
           root + "/sys/bus/pci/devices", error)) {
    const std::string path = entry.path().string();
    if (Text(path + "/vendor") != kNvidia) continue;
    if (!Text(path + "/class").starts_with(kDisplay)) continue;
    gpus.push_back({entry.path().filename().string(),
                    Number(path + "/current_link_width"),
                    Number(path + "/max_link_width")});
  }
  std::ranges::sort(gpus, {}, &PciLink::address);
  return gpus;
}

uint64_t LimitOf(int resource) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0) return Machine::kUnlimited;
  return limit.rlim_cur == RLIM_INFINITY ? Machine::kUnlimited
                                         : uint64_t{limit.rlim_cur};
}

// "0-1,3" gives three.
uint32_t CountOfList(const std::string& text) {
  uint32_t count = 0;
  for (const absl::string_view part :
       absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    uint32_t from = 0, to = 0;
    if (!absl::SimpleAtoi(ends.front(), &from) ||
        !absl::SimpleAtoi(ends.back(), &to) || to < from) {
      return 0;
    }
    count += to - from + 1;
  }
  return count;
}

}  // namespace

Machine ReadMachine(const std::string& root) {
  Machine machine;
  machine.driver = DriverVersion(Text(root + "/proc/driver/nvidia/version"));
  machine.gpus = Gpus(root);
  machine.memlock_bytes = LimitOf(RLIMIT_MEMLOCK);
  machine.descriptors = LimitOf(RLIMIT_NOFILE);
  machine.memory_nodes = std::max<uint32_t>(
      CountOfList(Text(root + "/sys/devices/system/node/has_memory")), 1);
  return machine;
}

}  // namespace hoistd
