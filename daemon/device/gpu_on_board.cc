#include "daemon/device/gpu_on_board.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace hoistd {
namespace {

std::string FirstLine(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

std::string GpuOnBoard(const std::string& root) {
  for (const char* path : {"/dev/nvidiactl", "/proc/driver/nvidia"}) {
    std::error_code error;
    if (std::filesystem::exists(root + path, error)) return path;
  }
  // Without a driver: display and 3D controllers of NVIDIA's.
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator(
           root + "/sys/bus/pci/devices", error)) {
    const std::string vendor = FirstLine(device.path() / "vendor");
    const std::string kind = FirstLine(device.path() / "class");
    if (vendor == "0x10de" && absl::StartsWith(kind, "0x03")) {
      return absl::StrCat("PCI ", device.path().filename().string());
    }
  }
  return "";
}

}  // namespace hoistd
