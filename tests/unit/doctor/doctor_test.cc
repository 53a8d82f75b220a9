#include "daemon/doctor/doctor.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::doctor_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A node that lacks nothing.
struct Node {
  Machine machine;
  SelfKnowledge self;

  Node() {
    machine.driver = "580.95.05";
    machine.gpus = {{"0000:17:00.0", 16, 16}};
    machine.memlock_bytes = Machine::kUnlimited;
    machine.descriptors = 262144;
    DeviceInfo gpu;
    gpu.name = "NVIDIA H200";
    gpu.kind = DeviceKind::kCuda;
    gpu.backing = Backing::kVmm;
    gpu.stream_words = true;
    self.devices = {gpu};
    self.io.engine = "io_uring";
    self.keeps = true;
    self.host_pool_bytes = uint64_t{64} << 30;
    self.host_pool_pages = PageKind::kTransparent;
    self.huge_pages.shared_memory = "advise";
  }

  // "what: found -> cure" of what is not good.
  std::map<std::string, std::string> Degraded() const {
    std::map<std::string, std::string> degraded;
    for (const Finding& finding : Examine(machine, self)) {
      EXPECT_FALSE(finding.found.empty()) << finding.what;
      const bool good = finding.state == Finding::State::kGood;
      EXPECT_EQ(good, finding.cure.empty()) << finding.what;
      if (!good) degraded[finding.what] = finding.found + " -> " + finding.cure;
    }
    return degraded;
  }
};

TEST(Doctor, AGoodNodeLacksNothing) {
  EXPECT_TRUE(Node().Degraded().empty());
  EXPECT_EQ(Examine(Node().machine, Node().self).size(), 12u);
}

TEST(Doctor, ANodeWithoutAGpuIsGoodToo) {
  Node node;
  node.machine.gpus.clear();
  node.machine.driver.clear();
  node.self.devices.front() = DeviceInfo();
  EXPECT_TRUE(node.Degraded().empty());
  node.self.gpu_on_board = "/dev/nvidia0";
  EXPECT_THAT(
      node.Degraded()["driver"],
      AllOf(HasSubstr("/dev/nvidia0"), HasSubstr("-> repair the driver")));
}

TEST(Doctor, EachThingThatIsMissingIsNamedWithItsCure) {
  Node node;
  node.machine.gpus.front().width = 8;
  node.machine.memlock_bytes = 8 << 20;
  node.machine.descriptors = 1024;
  node.self.host_pool_pages = PageKind::kSmall;
  node.self.huge_pages.shared_memory = "never";
  node.self.devices.front().backing = Backing::kIpc;
  node.self.devices.front().stream_words = false;
  node.self.no_in_place = "no memory";
  node.self.io.fallbacks = {"io_uring: EPERM"};
  node.self.keeps = false;
  std::map<std::string, std::string> found = node.Degraded();
  EXPECT_EQ(found.size(), 9u);
  EXPECT_THAT(found["PCI links"], HasSubstr("0000:17:00.0 has 8 of 16 lanes"));
  EXPECT_THAT(found["locked memory"], HasSubstr("-> set LimitMEMLOCK"));
  EXPECT_THAT(found["descriptors"], HasSubstr("1024"));
  EXPECT_THAT(found["huge pages"], HasSubstr("shmem_enabled"));
  EXPECT_THAT(found["sharing"], HasSubstr("device.share = \"vmm\""));
  EXPECT_THAT(found["stream memory operations"], HasSubstr("NVIDIA H200"));
  EXPECT_THAT(found["read in place"], HasSubstr("no memory"));
  EXPECT_THAT(found["disk I/O"], HasSubstr("EPERM"));
  EXPECT_THAT(found["outliving"], HasSubstr("hoist-keeper"));
}

TEST(Doctor, PageableMemoryThatCannotAllBeHadIsNamed) {
  Node node;
  node.self.pageable_bytes = uint64_t{16} << 30;
  node.self.pageable_made_bytes = uint64_t{4} << 30;
  node.self.available_bytes = uint64_t{12} << 30;
  EXPECT_TRUE(node.Degraded().empty());
  node.self.available_bytes = uint64_t{6} << 30;
  EXPECT_THAT(node.Degraded()["pageable memory"],
              AllOf(HasSubstr("4.0 GiB of 16.0 GiB taken"),
                    HasSubstr("-> lower host.pageable to 10.0 GiB")));
  node.self.available_bytes.reset();
  EXPECT_TRUE(node.Degraded().empty()) << "nobody knows";
}

TEST(Doctor, ASmallPoolNeedsLittleLockedMemory) {
  Node node;
  node.machine.memlock_bytes = 8 << 20;
  node.self.host_pool_bytes = 4 << 20;
  EXPECT_TRUE(node.Degraded().empty());
}

TEST(Doctor, SmallPagesAreNamedWithEveryWayToBetterOnes) {
  Node node;
  node.self.host_pool_pages = PageKind::kSmall;
  node.self.huge_pages = {.shared_memory = "never",
                          .reserved_bytes = uint64_t{8} << 30,
                          .free_bytes = uint64_t{2} << 30};
  EXPECT_THAT(node.Degraded()["huge pages"],
              AllOf(HasSubstr("(never), and 2.0 GiB of 8.0 GiB of reserved "
                              "ones are free -> echo"),
                    HasSubstr(" or sysctl vm.nr_hugepages=32768; then")));
  // Reserved ones are not wanted, and not there.
  node.self.best_pages = PageKind::kTransparent;
  EXPECT_THAT(node.Degraded()["huge pages"],
              AllOf(HasSubstr("-> echo advise"), Not(HasSubstr("reserved")),
                    Not(HasSubstr("sysctl"))));
  node.self.best_pages = PageKind::kHugetlb;
  node.self.huge_pages = {};
  EXPECT_THAT(node.Degraded()["huge pages"],
              AllOf(HasSubstr("this kernel has none"),
                    HasSubstr("none are reserved -> sysctl")));
  // An inherited pool.
  node.self.huge_pages.shared_memory = "advise";
  EXPECT_THAT(node.Degraded()["huge pages"],
              AllOf(HasSubstr("older than"), HasSubstr("-> stop hoistd")));
}

TEST(Doctor, SmallPagesThatWereAskedForAreGood) {
  Node node;
  node.self.host_pool_pages = node.self.best_pages = PageKind::kSmall;
  EXPECT_TRUE(node.Degraded().empty());
}

}  // namespace hoistd::doctor_test
