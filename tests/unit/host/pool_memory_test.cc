#include "daemon/host/pool_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"
#include "tests/support/made_up_root.h"
#include "tests/support/status_matchers.h"

namespace hoistd::pool_memory_test {

using testing::StatusIs;

constexpr uint64_t kMiB = uint64_t{1} << 20;

class HugePagesTree : public testing::MadeUpRoot {
 protected:
  void Choice(const std::string& folder, const std::string& text) {
    Write("/sys/kernel/mm/transparent_hugepage/" + folder + "shmem_enabled",
          text + "\n");
  }
  void Reserved(const std::string& name, const std::string& pages) {
    Write("/sys/kernel/mm/hugepages/hugepages-2048kB/" + name, pages + "\n");
  }
};

TEST_F(HugePagesTree, AKernelWithoutThemOffersNone) {
  const HugePages offered = ReadHugePages(root_);
  EXPECT_EQ(offered.shared_memory, "");
  EXPECT_FALSE(offered.allows_transparent());
  EXPECT_EQ(offered.reserved_bytes, 0u);
  EXPECT_EQ(offered.free_bytes, 0u);
}

TEST_F(HugePagesTree, TheChoiceInBracketsIsRead) {
  Choice("", "always within_size [advise] never deny force");
  EXPECT_EQ(ReadHugePages(root_).shared_memory, "advise");
  Choice("", "]never[");
  EXPECT_EQ(ReadHugePages(root_).shared_memory, "");
}

TEST_F(HugePagesTree, TheChoiceOfTheSizeGoesBeforeTheOneOfAll) {
  Choice("", "always within_size [advise] never deny force");
  Choice("hugepages-2048kB/", "always [inherit] within_size advise never");
  EXPECT_EQ(ReadHugePages(root_).shared_memory, "advise");
  Choice("hugepages-2048kB/", "always inherit within_size advise [never]");
  EXPECT_EQ(ReadHugePages(root_).shared_memory, "never");
}

TEST_F(HugePagesTree, WhatAMappingHasReservedIsNotFree) {
  Reserved("nr_hugepages", "100");
  Reserved("free_hugepages", "90");
  Reserved("resv_hugepages", "30");
  HugePages offered = ReadHugePages(root_);
  EXPECT_EQ(offered.reserved_bytes, 200 * kMiB);
  EXPECT_EQ(offered.free_bytes, 120 * kMiB);
  Reserved("resv_hugepages", "91");
  EXPECT_EQ(ReadHugePages(root_).free_bytes, 0u);
}

TEST(PoolMemory, ItsPagesFollowTheKernelsChoiceAndTheConfiguredOne) {
  ASSERT_OK_AND_ASSIGN(const hoist::UniqueFd memory,
                       MakeHostMemory(2 * kMiB, PageKind::kSmall, 1));
  const auto pages = [&](PageKind best, const char* choice) {
    return PagesOf(memory, best, {.shared_memory = choice});
  };
  for (const char* choice : {"advise", "within_size", "always", "force"}) {
    EXPECT_EQ(pages(PageKind::kHugetlb, choice), PageKind::kTransparent);
    EXPECT_EQ(pages(PageKind::kTransparent, choice), PageKind::kTransparent);
    EXPECT_EQ(pages(PageKind::kSmall, choice), PageKind::kSmall);
  }
  for (const char* choice : {"never", "deny", ""}) {
    EXPECT_EQ(pages(PageKind::kHugetlb, choice), PageKind::kSmall);
  }
}

// On any machine: nobody reserves 64 TiB.
TEST(PoolMemory, MoreThanIsReservedHasOtherPagesAndTakesNone) {
  constexpr uint64_t kBytes = uint64_t{64} << 40;
  ASSERT_OK_AND_ASSIGN(const hoist::UniqueFd memory,
                       MakeHostMemory(kBytes, PageKind::kHugetlb, 2));
  struct stat file;
  ASSERT_EQ(fstat(memory.get(), &file), 0);
  EXPECT_EQ(static_cast<uint64_t>(file.st_size), kBytes);
  EXPECT_EQ(file.st_blocks, 0);
  EXPECT_NE(PagesOf(memory, PageKind::kHugetlb, {}), PageKind::kHugetlb);
}

TEST(PoolMemory, ReservedPagesAreAllAllocatedBeforeTheFirstUse) {
  constexpr uint64_t kBytes = 8 * kMiB;
  ASSERT_OK_AND_ASSIGN(const hoist::UniqueFd memory,
                       MakeHostMemory(kBytes, PageKind::kHugetlb, 3));
  if (PagesOf(memory, PageKind::kHugetlb, {}) != PageKind::kHugetlb) {
    GTEST_SKIP() << "no 8 MiB of reserved huge pages; sysctl vm.nr_hugepages=4";
  }
  struct stat file;
  ASSERT_EQ(fstat(memory.get(), &file), 0);
  EXPECT_EQ(static_cast<uint64_t>(file.st_blocks) * 512, kBytes);
  // They stay with the memory, whoever holds it.
  ASSERT_OK_AND_ASSIGN(
      const hoist::Mapping mapping,
      ToAbsl(hoist::Mapping::OfFd(memory.get(), kBytes,
                                  hoist::Mapping::Access::kReadWrite)));
  std::ranges::fill(mapping.span(), std::byte{7});
  EXPECT_EQ(mapping.span().back(), std::byte{7});
}

TEST(PoolMemory, AllocationReachesEveryPage) {
  constexpr uint64_t kBytes = 160 * kMiB;  // Not the same for each thread.
  ASSERT_OK_AND_ASSIGN(const hoist::UniqueFd memory,
                       MakeHostMemory(kBytes, PageKind::kSmall, 1));
  ASSERT_OK_AND_ASSIGN(
      const hoist::Mapping mapping,
      ToAbsl(hoist::Mapping::OfFd(memory.get(), kBytes,
                                  hoist::Mapping::Access::kReadWrite)));
  ASSERT_OK(AllocatePages(mapping.span(), 2));
  struct stat file;
  ASSERT_EQ(fstat(memory.get(), &file), 0);
  EXPECT_EQ(static_cast<uint64_t>(file.st_blocks) * 512, kBytes);
}

// As where a cgroup's limit refuses a page: what would be a SIGBUS.
TEST(PoolMemory, APageThatCannotBeHadIsAnErrorAndNoSignal) {
  ASSERT_OK_AND_ASSIGN(const hoist::UniqueFd memory,
                       MakeHostMemory(2 * kMiB, PageKind::kSmall, 1));
  ASSERT_OK_AND_ASSIGN(
      const hoist::Mapping mapping,
      ToAbsl(hoist::Mapping::OfFd(memory.get(), 4 * kMiB,
                                  hoist::Mapping::Access::kReadWrite)));
  EXPECT_THAT(AllocatePages(mapping.span(), 2),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       ::testing::HasSubstr("cgroup")));
}

}  // namespace hoistd::pool_memory_test
