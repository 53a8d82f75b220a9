#include "daemon/base/machine_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace hoistd {

std::string ReadKernelFile(const std::string& path) {
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return std::string(absl::StripAsciiWhitespace(text));
}

std::vector<int> ParseNodeList(const std::string& text) {
  std::vector<int> nodes;
  for (const absl::string_view part :
       absl::StrSplit(absl::StripAsciiWhitespace(text), ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0;
    int last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first ||
        last >= kMaxMemoryNodes) {
      return {};
    }
    for (int node = first; node <= last; ++node) nodes.push_back(node);
  }
  return nodes;
}

std::vector<int> MemoryNodes(const std::string& root) {
  return ParseNodeList(
      ReadKernelFile(root + "/sys/devices/system/node/has_memory"));
}

std::vector<std::string> NvidiaGpus(const std::string& root) {
  constexpr char kNvidia[] = "0x10de";
  constexpr char kDisplay[] = "0x03";  // A class's first byte.
  std::vector<std::string> gpus;
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator(
           root + "/sys/bus/pci/devices", error)) {
    const std::string path = device.path().string();
    if (ReadKernelFile(path + "/vendor") == kNvidia &&
        ReadKernelFile(path + "/class").starts_with(kDisplay)) {
      gpus.push_back(path);
    }
  }
  std::ranges::sort(gpus);
  return gpus;
}

}  // namespace hoistd
