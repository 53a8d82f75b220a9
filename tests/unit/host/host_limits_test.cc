#include "daemon/host/host_limits.h"

#include "gmock/gmock.h"
#include "tests/support/made_up_root.h"
#include "tests/support/status_matchers.h"

namespace hoistd::host_limits_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A made-up /proc and /sys.
class CgroupTree : public testing::MadeUpRoot {
 protected:
  void Member(const std::string& lines) { Write("/proc/self/cgroup", lines); }
};

TEST_F(CgroupTree, NoCgroupsIsNoLimit) {
  EXPECT_EQ(CgroupMemoryLimit(root_), std::nullopt);
  Member("0::/a\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), std::nullopt);
}

TEST_F(CgroupTree, Version2TakesTheLeastUpToTheRoot) {
  Member("0::/system.slice/hoistd.service\n");
  Write("/sys/fs/cgroup/system.slice/hoistd.service/memory.max", "max\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), std::nullopt);
  Write("/sys/fs/cgroup/system.slice/memory.max", "5000\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), 5000u);
  Write("/sys/fs/cgroup/system.slice/hoistd.service/memory.max", "7000\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), 5000u);
  Write("/sys/fs/cgroup/system.slice/hoistd.service/memory.max", "300\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), 300u);
  Write("/sys/fs/cgroup/memory.max", "200\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), 200u);
}

TEST_F(CgroupTree, WhereTheKernelSlowsItDownIsALimitToo) {
  Member("0::/system.slice/hoistd.service\n");
  const std::string unit = "/sys/fs/cgroup/system.slice/hoistd.service/";
  Write(unit + "memory.max", "900\n");
  Write(unit + "memory.high", "850\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), 850u);
  Write(unit + "memory.high", "max\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), 900u);
}

TEST_F(CgroupTree, AContainersLimitIsAtItsRootWhateverThePathSays) {
  Member("0::/../../docker/0123\n");
  Write("/sys/fs/cgroup/memory.max", "4096\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), 4096u);
}

TEST_F(CgroupTree, Version1IsReadWhereItIsMounted) {
  Member("12:cpu,cpuacct:/x\n5:memory:/docker/ab\n1:name=systemd:/docker/ab\n");
  Write("/sys/fs/cgroup/cpu/x/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), std::nullopt);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "9223372036854771712\n");  // The kernel's "none".
  EXPECT_EQ(CgroupMemoryLimit(root_), std::nullopt);
  Write("/sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes", "800\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), 800u);
}

TEST_F(CgroupTree, OnHybridHostsTheLeastOfBothCounts) {
  Member("7:memory:/a\n0::/b\n");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "900\n");
  Write("/sys/fs/cgroup/unified/b/memory.max", "700\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), 700u);
}

TEST_F(CgroupTree, GarbageIsNoLimit) {
  Member("::::\n0\n0::\nmemory\n\n");
  Write("/sys/fs/cgroup/memory.max", "lots\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), std::nullopt);
  Write("/sys/fs/cgroup/memory.max", "-1\n");
  EXPECT_EQ(CgroupMemoryLimit(root_), std::nullopt);
}

TEST_F(CgroupTree, TheMachinesMemoryIsReadBesideTheCgroups) {
  EXPECT_EQ(ReadHostMemory(root_).Limit(), std::nullopt);
  Write("/proc/meminfo", "MemFree: 5 kB\nMemTotal:  24690508 kB\nSwap: 1 kB\n");
  EXPECT_EQ(ReadHostMemory(root_).machine, uint64_t{24690508} << 10);
  EXPECT_EQ(ReadHostMemory(root_).Limit(), uint64_t{24690508} << 10);
  EXPECT_FALSE(ReadHostMemory(root_).cgroup_is_less());
  Member("0::/\n");
  Write("/sys/fs/cgroup/memory.max", "4096\n");
  EXPECT_EQ(ReadHostMemory(root_).Limit(), 4096u);
  EXPECT_TRUE(ReadHostMemory(root_).cgroup_is_less());
  Write("/proc/meminfo", "MemTotal: lots kB\n");
  EXPECT_EQ(ReadHostMemory(root_).machine, std::nullopt);
}

// A machine of 1,000 MiB, and a cgroup that may have `mib` of them.
HostMemory Machine(std::optional<uint64_t> mib = {}) {
  HostMemory memory = {.cgroup_limit = {}, .machine = 1000 * kMiB};
  if (mib) memory.cgroup_limit = *mib * kMiB;
  return memory;
}

TEST(HostPoolSize, TheConfiguredSizeIsTakenInWholeStepsOfTwoMiB) {
  ASSERT_OK_AND_ASSIGN(const HostPoolSize size,
                       ChooseHostPoolSize(101 * kMiB, Machine(200)));
  EXPECT_EQ(size.bytes, 100 * kMiB);
  EXPECT_EQ(size.note, "");
}

TEST(HostPoolSize, MoreThanThereIsIsRefusedWithBothNumbers) {
  EXPECT_THAT(ChooseHostPoolSize(300 * kMiB, Machine(200)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("314572800"), HasSubstr("209715200"),
                             HasSubstr("raise the cgroup's memory limit"))));
  EXPECT_OK(ChooseHostPoolSize(200 * kMiB, Machine(200)));
  for (const std::optional<uint64_t> cgroup :
       {std::optional<uint64_t>(), std::optional<uint64_t>(9000)}) {
    EXPECT_THAT(ChooseHostPoolSize(1002 * kMiB, Machine(cgroup)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("this machine has 1048576000"),
                               HasSubstr("lower host.pool"))));
  }
}

TEST(HostPoolSize, UnconfiguredItIsHalfOfTheCgroupsLimit) {
  ASSERT_OK_AND_ASSIGN(const HostPoolSize size,
                       ChooseHostPoolSize(std::nullopt, Machine(400)));
  EXPECT_EQ(size.bytes, 200 * kMiB);
  EXPECT_THAT(size.note, HasSubstr("200 MiB, half of the cgroup"));
}

TEST(HostPoolSize, WhereThatIsMoreItIsAQuarterOfTheMachine) {
  for (const std::optional<uint64_t> cgroup :
       {std::optional<uint64_t>(), std::optional<uint64_t>(850),
        std::optional<uint64_t>(9000)}) {
    ASSERT_OK_AND_ASSIGN(const HostPoolSize size,
                         ChooseHostPoolSize(std::nullopt, Machine(cgroup)));
    EXPECT_EQ(size.bytes, 250 * kMiB);
    EXPECT_THAT(size.note, HasSubstr("a quarter of this machine's memory"));
  }
}

TEST(HostPoolSize, WhereNothingIsKnownItIsFourGiBAndTheNoteSaysWhatToDo) {
  ASSERT_OK_AND_ASSIGN(const HostPoolSize size,
                       ChooseHostPoolSize(std::nullopt, HostMemory()));
  EXPECT_EQ(size.bytes, 4096 * kMiB);
  EXPECT_THAT(size.note, HasSubstr("set host.pool"));
}

TEST(InPlaceSize, UnconfiguredItIsAsThePoolWithinThreeQuartersOfWhatThereIs) {
  const auto chosen = [](uint64_t pool, const HostMemory& memory) {
    return ChooseInPlaceSize(std::nullopt, pool, memory).value();
  };
  EXPECT_EQ(chosen(100 * kMiB, HostMemory()), 100 * kMiB);
  EXPECT_EQ(chosen(500 * kMiB, Machine()), 250 * kMiB);
  EXPECT_EQ(chosen(100 * kMiB, Machine()), 100 * kMiB);
  EXPECT_EQ(chosen(100 * kMiB, Machine(200)), 50 * kMiB);
  EXPECT_EQ(chosen(800 * kMiB, Machine()), 0u);
  EXPECT_EQ(chosen(101 * kMiB, Machine()), 100 * kMiB);  // Whole slabs.
}

TEST(InPlaceSize, AsItIsConfiguredBesideThePool) {
  EXPECT_EQ(ChooseInPlaceSize(0, 100 * kMiB, HostMemory()).value(), 0u);
  EXPECT_EQ(ChooseInPlaceSize(900 * kMiB, 100 * kMiB, Machine()).value(),
            900 * kMiB);
  EXPECT_THAT(ChooseInPlaceSize(902 * kMiB, 100 * kMiB, Machine()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("host.in_place"),
                             HasSubstr("lower one of them"))));
  EXPECT_THAT(ChooseInPlaceSize(102 * kMiB, 100 * kMiB, Machine(200)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("raise the cgroup's memory limit")));
  EXPECT_THAT(ChooseInPlaceSize(2 * kMiB, 2000 * kMiB, Machine()),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(CgroupTree, WhatIsLeftIsTheLeastOfTheMachinesAndOfEachGroups) {
  EXPECT_EQ(AvailableMemory(root_), std::nullopt);
  Write("/proc/meminfo", "MemTotal: 900 kB\nMemAvailable:      90 kB\n");
  EXPECT_EQ(AvailableMemory(root_), 90u << 10);
  Member("0::/a\n");
  Write("/sys/fs/cgroup/a/memory.max", "8000\n");
  EXPECT_EQ(AvailableMemory(root_), 90u << 10) << "its use is not known";
  Write("/sys/fs/cgroup/a/memory.current", "6000\n");
  EXPECT_EQ(AvailableMemory(root_), 2000u);
  Write("/sys/fs/cgroup/a/memory.stat", "anon 5000\ninactive_file 1000\n");
  EXPECT_EQ(AvailableMemory(root_), 3000u) << "a page cache makes room";
  Write("/sys/fs/cgroup/memory.high", "5000\n");
  Write("/sys/fs/cgroup/memory.current", "7000\n");
  EXPECT_EQ(AvailableMemory(root_), 0u);
}

TEST_F(CgroupTree, Version1SaysWhatIsLeft) {
  Member("5:cpu,memory:/docker/x\n");
  const std::string group = "/sys/fs/cgroup/memory/docker/x/";
  Write(group + "memory.limit_in_bytes", "8000\n");
  Write(group + "memory.usage_in_bytes", "6000\n");
  Write(group + "memory.stat", "total_inactive_file 500\n");
  EXPECT_EQ(AvailableMemory(root_), 2500u);
}

TEST(PageableSize, IsWhatThePoolLeaves) {
  EXPECT_EQ(ChoosePageableSize(0, 100 * kMiB, Machine()).value(), 0u);
  EXPECT_EQ(ChoosePageableSize(901 * kMiB, 99 * kMiB, Machine()).value(),
            900 * kMiB);
  EXPECT_THAT(ChoosePageableSize(902 * kMiB, 100 * kMiB, Machine()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("host.pageable"),
                             HasSubstr("lower one of them"))));
}

TEST(HostPoolSize, NothingIsRefused) {
  EXPECT_THAT(ChooseHostPoolSize(0, Machine()),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ChooseHostPoolSize(kMiB, Machine()),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ChooseHostPoolSize(std::nullopt, Machine(3)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace hoistd::host_limits_test
