#include "daemon/device/gpu_on_board.h"

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace hoistd::gpu_on_board_test {

class GpuOnBoardTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void AddPci(const std::string& address, const std::string& vendor,
              const std::string& kind) {
    Write("/sys/bus/pci/devices/" + address + "/vendor", vendor + "\n");
    Write("/sys/bus/pci/devices/" + address + "/class", kind + "\n");
  }
  std::string root() const { return folder_.path(); }

  testing::TempDir folder_;
};

TEST_F(GpuOnBoardTest, AMachineWithoutShowsNone) {
  EXPECT_EQ(GpuOnBoard(root()), "");
  AddPci("0000:00:02.0", "0x8086", "0x030000");  // Another's display.
  AddPci("0000:00:03.0", "0x10de", "0x040300");  // NVIDIA's sound.
  EXPECT_EQ(GpuOnBoard(root()), "");
}

TEST_F(GpuOnBoardTest, WithoutADriverItsAddressShowsIt) {
  AddPci("0000:19:00.0", "0x10de", "0x030200");
  EXPECT_EQ(GpuOnBoard(root()), "PCI 0000:19:00.0");
}

TEST_F(GpuOnBoardTest, ItsDriversFilesShowIt) {
  AddPci("0000:19:00.0", "0x10de", "0x030200");
  Write("/proc/driver/nvidia/version", "");
  EXPECT_EQ(GpuOnBoard(root()), "/proc/driver/nvidia");
  Write("/dev/nvidiactl", "");
  EXPECT_EQ(GpuOnBoard(root()), "/dev/nvidiactl");
}

}  // namespace hoistd::gpu_on_board_test
