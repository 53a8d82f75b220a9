// One range of a worker's addresses, over slabs of a device and of what it
// reads in place.
#include <csignal>

#include "absl/strings/str_cat.h"
#include "tests/conformance/device/resources.h"
#include "tests/conformance/device/rig.h"
#include "tests/support/pattern.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing::piece_test {

// Two pieces that are read in place, the first of them on the device too.
class PieceConformance : public DeviceConformance {
 protected:
  void SetUp() override {
    DeviceConformance::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    in_place_ = InPlaceBeside();
    if (in_place_ == nullptr) GTEST_SKIP() << "nothing is read in place here";
    hot_.apart = true;
    ASSERT_OK(device().CreateSlab(hot_));
    for (SlabSpec* cold : {&cold_, &other_}) {
      cold->apart = true;
      ASSERT_OK(in_place_->CreateSlab(*cold));
    }
    ASSERT_OK(CopyIn(*in_place_, cold_.offset, first_));
    ASSERT_OK(CopyIn(*in_place_, other_.offset, second_));
    // As hoistd makes a piece hot.
    ASSERT_OK(CopyIn(hot_.offset,
                     in_place_->span().subspan(cold_.offset, cold_.bytes)));
    ASSERT_OK_AND_ASSIGN(worker_, SpawnWorker());
    ASSERT_OK(Import(*worker_, hot_));
    ASSERT_OK(Import(*worker_, cold_, *in_place_));
    ASSERT_OK(Import(*worker_, other_, *in_place_));
    ASSERT_OK(worker_->Call(absl::StrCat("range ", 2 * kSlabBytes)));
    ASSERT_OK(worker_->Call(absl::StrCat("lay 0 ", cold_.offset)));
    ASSERT_OK(
        worker_->Call(absl::StrCat("lay ", kSlabBytes, " ", other_.offset)));
    ASSERT_OK(worker_->Call("open"));
  }
  void TearDown() override {
    if (in_place_ != nullptr) {
      worker_.reset();
      device().DestroySlab(hot_.id).IgnoreError();
      in_place_->DestroySlab(cold_.id).IgnoreError();
      in_place_->DestroySlab(other_.id).IgnoreError();
    }
    DeviceConformance::TearDown();
  }
  absl::Status Place(uint64_t at, const SlabSpec& slab) {
    return worker_->Call(absl::StrCat("place ", at, " ", slab.offset)).status();
  }
  std::vector<std::byte> Seen(uint64_t at) {
    const auto seen = worker_->Read(at, kSlabBytes);
    EXPECT_OK(seen);
    return seen.value_or(std::vector<std::byte>());
  }

  InPlaceDevice* in_place_ = nullptr;
  SlabSpec hot_ = Spec(0);
  SlabSpec cold_ = Spec(4 * kSlabBytes);  // Of one map, apart from the others.
  SlabSpec other_ = Spec(6 * kSlabBytes);
  const std::vector<std::byte> first_ = Pattern(kSlabBytes, 1);
  const std::vector<std::byte> second_ = Pattern(kSlabBytes, 2);
  const std::vector<std::byte> third_ = Pattern(kSlabBytes, 3);
  std::unique_ptr<Peer> worker_;
};

TEST_P(PieceConformance, PiecesChangePlacesAtOneAddress) {
  EXPECT_TRUE(Seen(0) == first_);
  EXPECT_TRUE(Seen(kSlabBytes) == second_);
  ASSERT_OK(Place(0, hot_));
  EXPECT_TRUE(Seen(0) == first_);
  EXPECT_TRUE(Seen(kSlabBytes) == second_);
  // It is the device's memory that is there now, then not any more.
  ASSERT_OK(CopyIn(hot_.offset, third_));
  EXPECT_TRUE(Seen(0) == third_);
  ASSERT_OK(Place(0, cold_));
  EXPECT_TRUE(Seen(0) == first_);
  EXPECT_TRUE(Seen(kSlabBytes) == second_);
}

// As layers would share places for fetched experts.
TEST_P(PieceConformance, OneSlabLiesInTwoPlaces) {
  ASSERT_OK(Place(0, hot_));
  ASSERT_OK(Place(kSlabBytes, hot_));
  ASSERT_OK(CopyIn(hot_.offset, third_));
  EXPECT_TRUE(Seen(0) == third_);
  EXPECT_TRUE(Seen(kSlabBytes) == third_);
  // Either mapping ends alone.
  ASSERT_OK(Place(0, cold_));
  ASSERT_OK(CopyIn(hot_.offset, second_));
  EXPECT_TRUE(Seen(0) == first_);
  EXPECT_TRUE(Seen(kSlabBytes) == second_);
}

TEST_P(PieceConformance, AWorkerCannotWriteThere) {
  for (const SlabSpec& slab : {cold_, hot_}) {
    ASSERT_OK(Place(0, slab));
    if (backing() == Backing::kMemfd) {
      EXPECT_THAT(worker_->Call("writable 0 4096"),
                  StatusIs(absl::StatusCode::kPermissionDenied));
    } else {
      EXPECT_FALSE(worker_->Call("write 0 4096").ok());
      // A GPU's context may be lost by it.
      if (!worker_->Read(0, kSlabBytes).ok()) break;
      EXPECT_TRUE(Seen(0) == first_);
    }
  }
  if (backing() == Backing::kMemfd) {
    EXPECT_THAT(worker_->Call("write 0 4096"),
                StatusIs(absl::StatusCode::kAborted));
    EXPECT_EQ(worker_->DeathSignal(), SIGSEGV);
  }
  EXPECT_TRUE(CopyOut(hot_.offset, hot_.bytes).value() == first_);
  EXPECT_EQ(std::memcmp(in_place_->span().data() + cold_.offset, first_.data(),
                        first_.size()),
            0);
}

TEST_P(PieceConformance, WhatIsMappedStaysWhenTheSlabsAreGone) {
  ASSERT_OK(Place(0, hot_));
  for (const SlabSpec& slab : {hot_, cold_, other_}) {
    ASSERT_OK(worker_->Call(absl::StrCat("drop ", slab.id.number())));
  }
  ASSERT_OK(device().DestroySlab(hot_.id));
  ASSERT_OK(in_place_->DestroySlab(other_.id));
  EXPECT_TRUE(Seen(0) == first_);
  EXPECT_TRUE(Seen(kSlabBytes) == second_);
  EXPECT_THAT(Place(0, cold_), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_TRUE(Seen(0) == first_);
}

TEST_P(PieceConformance, AThousandMovesLeakNothing) {
  const auto mappings = [&] {
    Resources resources;
    std::istringstream(worker_->Call("resources")->body) >> resources.fds >>
        resources.mappings;
    return resources.fds + resources.mappings;
  };
  const auto moves = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_OK(Place(0, hot_));
      ASSERT_OK(Place(0, cold_));
    }
  };
  moves(10);
  const int64_t before = mappings();
  moves(500);
  EXPECT_LE(mappings(), before + 4);
  EXPECT_TRUE(Seen(0) == first_);
}

INSTANTIATE_TEST_SUITE_P(, PieceConformance,
                         ::testing::Values(DeviceCase{Backing::kMemfd},
                                           DeviceCase{Backing::kVmm}),
                         CaseName);

}  // namespace hoistd::testing::piece_test
