#include "daemon/host/pageable_memory.h"

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/support/made_up_root.h"
#include "tests/support/status_matchers.h"

namespace hoistd::pageable_memory_test {

using ::testing::HasSubstr;
using testing::StatusIs;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSpare = PageableMemory::kSpareBytes;

class PageableMemoryTest : public testing::MadeUpRoot {
 protected:
  void SetUp() override {
    testing::MadeUpRoot::SetUp();
    auto memory = PageableMemory::Create(8 * kMiB, root_);
    ASSERT_OK(memory);
    memory_ = *std::move(memory);
  }
  void Available(uint64_t bytes) {
    Write("/proc/meminfo",
          absl::StrCat("MemTotal: 9999999 kB\nMemAvailable:   ", bytes >> 10,
                       " kB\n"));
  }
  std::span<std::byte> Part(uint64_t from, uint64_t bytes) {
    return memory_->span().subspan(from, bytes);
  }

  std::unique_ptr<PageableMemory> memory_;
};

TEST_F(PageableMemoryTest, PagesAreMadeOnFirstUse) {
  EXPECT_EQ(memory_->made_bytes(), 0u);
  ASSERT_OK(memory_->MakePages(Part(kMiB, 2 * kMiB)));
  EXPECT_EQ(memory_->made_bytes(), 4 * kMiB) << "whole ones";
  std::memset(Part(kMiB, 2 * kMiB).data(), 7, 2 * kMiB);
  ASSERT_OK(memory_->MakePages(Part(0, 8 * kMiB)));
  EXPECT_EQ(memory_->made_bytes(), 8 * kMiB);
  EXPECT_EQ(Part(2 * kMiB, 1)[0], std::byte{7});
}

TEST_F(PageableMemoryTest, TheMachineKeepsSomeToSpare) {
  Available(kSpare + 2 * kMiB);
  EXPECT_OK(memory_->MakePages(Part(0, 2 * kMiB)));
  Available(kSpare + 2 * kMiB - 4096);
  EXPECT_THAT(memory_->MakePages(Part(2 * kMiB, 2 * kMiB)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("lower host.pageable")));
  EXPECT_EQ(memory_->made_bytes(), 2 * kMiB);
  Available(0);
  EXPECT_OK(memory_->MakePages(Part(0, 2 * kMiB))) << "it is there";
}

}  // namespace hoistd::pageable_memory_test
