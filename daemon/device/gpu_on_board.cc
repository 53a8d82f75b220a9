#include "daemon/device/gpu_on_board.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/machine_files.h"

namespace hoistd {

std::string GpuOnBoard(const std::string& root) {
  for (const char* path : {"/dev/nvidiactl", "/proc/driver/nvidia"}) {
    std::error_code error;
    if (std::filesystem::exists(root + path, error)) return path;
  }
  const std::vector<std::string> gpus = NvidiaGpus(root);
  if (gpus.empty()) return "";
  const std::string& first = gpus.front();  // There is no driver for it.
  return absl::StrCat("PCI ", first.substr(first.rfind('/') + 1));
}

}  // namespace hoistd
