#include "daemon/host/host_limits.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace hoistd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A made-up /proc and /sys.
class CgroupTree : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/hoist-cgroup-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void Member(const std::string& lines) { Write("/proc/self/cgroup", lines); }

  std::string root_;
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

TEST(HostPoolSize, TheConfiguredSizeIsTakenInWholeStepsOfTwoMiB) {
  ASSERT_OK_AND_ASSIGN(const HostPoolSize size,
                       ChooseHostPoolSize(101 * kMiB, 200 * kMiB));
  EXPECT_EQ(size.bytes, 100 * kMiB);
  EXPECT_EQ(size.note, "");
}

TEST(HostPoolSize, MoreThanTheLimitIsRefusedWithBothNumbers) {
  EXPECT_THAT(ChooseHostPoolSize(300 * kMiB, 200 * kMiB),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("314572800"), HasSubstr("209715200"),
                             HasSubstr("host.pool"))));
  EXPECT_OK(ChooseHostPoolSize(200 * kMiB, 200 * kMiB));
}

TEST(HostPoolSize, UnconfiguredItIsHalfOfTheLimit) {
  ASSERT_OK_AND_ASSIGN(const HostPoolSize size,
                       ChooseHostPoolSize(std::nullopt, 1000 * kMiB));
  EXPECT_EQ(size.bytes, 500 * kMiB);
  EXPECT_THAT(size.note, HasSubstr("500 MiB, half of the cgroup"));
}

TEST(HostPoolSize, WithoutAnyLimitItIsFourGiBAndTheNoteSaysWhatToDo) {
  ASSERT_OK_AND_ASSIGN(const HostPoolSize size,
                       ChooseHostPoolSize(std::nullopt, std::nullopt));
  EXPECT_EQ(size.bytes, 4096 * kMiB);
  EXPECT_THAT(size.note, HasSubstr("set host.pool"));
}

TEST(InPlaceSize, UnconfiguredItIsAsThePoolWithinThreeQuartersOfTheLimit) {
  const auto chosen = [](uint64_t pool, std::optional<uint64_t> limit) {
    return ChooseInPlaceSize(std::nullopt, pool, limit).value();
  };
  EXPECT_EQ(chosen(100 * kMiB, std::nullopt), 100 * kMiB);
  EXPECT_EQ(chosen(500 * kMiB, 1000 * kMiB), 250 * kMiB);
  EXPECT_EQ(chosen(100 * kMiB, 1000 * kMiB), 100 * kMiB);
  EXPECT_EQ(chosen(800 * kMiB, 1000 * kMiB), 0u);
  EXPECT_EQ(chosen(101 * kMiB, std::nullopt), 100 * kMiB);  // Whole slabs.
}

TEST(InPlaceSize, AsItIsConfiguredBesideThePool) {
  EXPECT_EQ(ChooseInPlaceSize(0, 100 * kMiB, std::nullopt).value(), 0u);
  EXPECT_EQ(ChooseInPlaceSize(900 * kMiB, 100 * kMiB, 1000 * kMiB).value(),
            900 * kMiB);
  EXPECT_THAT(ChooseInPlaceSize(902 * kMiB, 100 * kMiB, 1000 * kMiB),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("host.in_place"),
                             HasSubstr("raise the cgroup's memory limit"))));
  EXPECT_THAT(ChooseInPlaceSize(2 * kMiB, 2000 * kMiB, 1000 * kMiB),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(HostPoolSize, NothingIsRefused) {
  for (const auto& [configured, limit] :
       {std::pair<std::optional<uint64_t>, std::optional<uint64_t>>(0, {}),
        {kMiB, {}},
        {std::nullopt, 3 * kMiB}}) {
    EXPECT_THAT(ChooseHostPoolSize(configured, limit),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace hoistd
