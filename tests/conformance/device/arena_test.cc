// Slabs that a worker writes to: what it and hoistd see of them.
#include <fcntl.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/conformance/device/rig.h"
#include "tests/conformance/device/share_text.h"
#include "tests/support/pattern.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing::arena_test {

constexpr uint64_t kOffset = 8 * kSlabBytes;

// One writable slab of what is read in place, which a worker maps.
class ArenaConformance : public DeviceConformance {
 protected:
  void SetUp() override {
    DeviceConformance::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    slab_ = Spec(kOffset);
    slab_.apart = true;
    slab_.writable = true;
    ASSERT_OK(device().CreateSlab(slab_));
    ASSERT_OK_AND_ASSIGN(worker_, SpawnWorker());
    ASSERT_OK(Open(*worker_));
  }
  void TearDown() override {
    worker_.reset();
    if (slab_.bytes > 0) device().DestroySlab(slab_.id).IgnoreError();
    DeviceConformance::TearDown();
  }
  absl::Status Open(Peer& worker) {
    const absl::StatusOr<SlabShare> share = device().Share(slab_.id);
    if (!share.ok()) return share.status();
    return worker.Call("arena " + SlabText(slab_, *share), {share->fd})
        .status();
  }
  std::vector<std::byte> SeenByHoistd() {
    const auto seen = CopyOut(kOffset, kSlabBytes);
    EXPECT_OK(seen);
    return seen.value_or(std::vector<std::byte>());
  }
  std::vector<std::byte> SeenBy(Peer& worker) {
    const auto seen = worker.Read(0, kSlabBytes);
    EXPECT_OK(seen);
    return seen.value_or(std::vector<std::byte>());
  }

  SlabSpec slab_;
  std::unique_ptr<Peer> worker_;
  const std::vector<std::byte> zeros_ = std::vector<std::byte>(kSlabBytes);
};

TEST_P(ArenaConformance, ItsCpuAndItsDeviceWriteWhatTheOtherReads) {
  EXPECT_TRUE(SeenBy(*worker_) == zeros_);
  ASSERT_OK(worker_->Call(absl::StrCat("put 0 ", kSlabBytes, " 7")));
  EXPECT_TRUE(SeenBy(*worker_) == Pattern(kSlabBytes, 7));
  EXPECT_TRUE(SeenByHoistd() == Pattern(kSlabBytes, 7));
  ASSERT_OK(worker_->Call(absl::StrCat("write 0 ", kSlabBytes)));
  const std::vector<std::byte> seen = SeenByHoistd();
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](std::byte byte) {
    return byte == std::byte{0xee};
  }));
}

TEST_P(ArenaConformance, IsZeroForWhomeverHasItNext) {
  ASSERT_OK(worker_->Call(absl::StrCat("put 0 ", kSlabBytes, " 7")));
  worker_->Kill();
  ASSERT_OK(device().ZeroSlab(slab_.id));
  EXPECT_TRUE(SeenByHoistd() == zeros_);
  ASSERT_OK_AND_ASSIGN(const auto next, SpawnWorker());
  ASSERT_OK(Open(*next));
  EXPECT_TRUE(SeenBy(*next) == zeros_);
  ASSERT_OK(next->Call(absl::StrCat("put 0 ", kSlabBytes, " 8")));
  EXPECT_TRUE(SeenByHoistd() == Pattern(kSlabBytes, 8));
}

// hoistd zeroes it, and its successor maps it for writing.
TEST_P(ArenaConformance, AWorkerCannotTakeItFromHoistd) {
  if (backing() == Backing::kMemfd) {
    ASSERT_OK_AND_ASSIGN(const SlabShare share, device().Share(slab_.id));
    EXPECT_THAT(worker_->Call("misuse", {share.fd}),
                StatusIs(absl::StatusCode::kPermissionDenied));
  }
  ASSERT_OK(device().ZeroSlab(slab_.id));
  ASSERT_OK_AND_ASSIGN(const SlabShare share, device().Share(slab_.id));
  hoist::UniqueFd kept(fcntl(share.keep_fd, F_DUPFD_CLOEXEC, 0));
  ASSERT_OK(worker_->Call(absl::StrCat("put 0 ", kSlabBytes, " 9")));
  ASSERT_OK(device().DestroySlab(slab_.id));
  SlabSpec adopted = Spec(kOffset);
  adopted.apart = adopted.writable = true;
  ASSERT_OK(device().AdoptSlab(adopted, std::move(kept)));
  EXPECT_TRUE(SeenByHoistd() == Pattern(kSlabBytes, 9));
  ASSERT_OK(device().ZeroSlab(adopted.id));
  EXPECT_TRUE(SeenBy(*worker_) == zeros_);
  ASSERT_OK(device().DestroySlab(adopted.id));
}

TEST_P(ArenaConformance, WhatTheWorkerMapsStaysWhenTheSlabIsGone) {
  ASSERT_OK(worker_->Call(absl::StrCat("put 0 ", kSlabBytes, " 7")));
  ASSERT_OK(device().DestroySlab(slab_.id));
  EXPECT_TRUE(SeenBy(*worker_) == Pattern(kSlabBytes, 7));
  EXPECT_THAT(device().ZeroSlab(slab_.id),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_P(ArenaConformance, OthersThanItsWorkerCannotOpenIt) {
  if (backing() != Backing::kMemfd) GTEST_SKIP() << "a driver's descriptor";
  ASSERT_OK_AND_ASSIGN(const SlabShare share, device().Share(slab_.id));
  const absl::Status opened = worker_->Call("reopen", {share.fd}).status();
  if (absl::IsFailedPrecondition(opened)) GTEST_SKIP() << opened.message();
  EXPECT_THAT(opened, StatusIs(absl::StatusCode::kPermissionDenied));
}

INSTANTIATE_TEST_SUITE_P(, ArenaConformance,
                         ::testing::Values(DeviceCase{Backing::kMemfd, true},
                                           DeviceCase{Backing::kVmm, true}),
                         CaseName);

}  // namespace hoistd::testing::arena_test
