#include "daemon/doctor/machine.h"

#include "gtest/gtest.h"
#include "tests/support/made_up_root.h"

namespace hoistd::machine_test {

// A made-up /proc and /sys.
class MachineTree : public testing::MadeUpRoot {
 protected:
  void Pci(const std::string& address, const std::string& vendor,
           const std::string& kind, const std::string& width) {
    const std::string path = "/sys/bus/pci/devices/" + address;
    Write(path + "/vendor", vendor + "\n");
    Write(path + "/class", kind + "\n");
    Write(path + "/current_link_width", width + "\n");
    Write(path + "/max_link_width", "16\n");
  }
};

TEST_F(MachineTree, NothingThereIsNothingSaid) {
  const Machine machine = ReadMachine(root_);
  EXPECT_EQ(machine.driver, "");
  EXPECT_TRUE(machine.gpus.empty());
  EXPECT_EQ(machine.memory_nodes, 1u);
  EXPECT_GT(machine.descriptors, 0u);
}

TEST_F(MachineTree, WhatTheKernelTellsIsRead) {
  Write("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  "
        "Release Build\nGCC version: gcc version 12.3.0\n");
  Pci("0000:65:00.0", "0x10de", "0x030200", "8");
  Pci("0000:17:00.0", "0x10de", "0x030000", "16");
  Pci("0000:18:00.0", "0x10de", "0x040300", "16");  // Its sound.
  Pci("0000:19:00.0", "0x8086", "0x030000", "16");  // Another's.
  Write("/sys/devices/system/node/has_memory", "0-1,3\n");
  const Machine machine = ReadMachine(root_);
  EXPECT_EQ(machine.driver, "580.95.05");
  ASSERT_EQ(machine.gpus.size(), 2u);
  EXPECT_EQ(machine.gpus[0].address, "0000:17:00.0");
  EXPECT_EQ(machine.gpus[0].width, 16u);
  EXPECT_EQ(machine.gpus[1].width, 8u);
  EXPECT_EQ(machine.gpus[1].most_width, 16u);
  EXPECT_EQ(machine.memory_nodes, 3u);
}

TEST_F(MachineTree, WhatIsBrokenIsAsIfItWereNotThere) {
  Write("/sys/devices/system/node/has_memory", "3-x\n");
  Pci("0000:17:00.0", "0x10de", "0x030000", "Unknown");
  const Machine machine = ReadMachine(root_);
  EXPECT_EQ(machine.memory_nodes, 1u);
  EXPECT_EQ(machine.gpus.at(0).width, 0u);
}

}  // namespace hoistd::machine_test
