// What goes wrong, and who is told.
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/link/rig.h"

namespace hoistd::testing::link_fault_test {

using ::testing::HasSubstr;

class LinkFaults : public ::testing::TestWithParam<DeviceCall> {};

TEST_P(LinkFaults, AreToldToTheImageThatMetThemAndToNoOther) {
  LinkRig rig;
  rig.faulty().FailNth(GetParam(), 1, absl::DataLossError("as told"));
  const TransferId id = rig.Copy(0, 40 * kMiB, true);
  EXPECT_THAT(rig.WaitFor(id),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("as told")));
  ASSERT_OK(rig.WaitFor(rig.Copy(0, 40 * kMiB, true)));
  rig.clock().Advance(absl::Seconds(1));
  ASSERT_OK(rig.WaitFor(rig.Copy(40 * kMiB, 40 * kMiB, false)));
  EXPECT_TRUE(rig.Right(0, 80 * kMiB));
}

INSTANTIATE_TEST_SUITE_P(, LinkFaults,
                         ::testing::Values(DeviceCall::kCopyIn,
                                           DeviceCall::kWriteWords),
                         [](const auto& tried) {
                           return tried.param == DeviceCall::kCopyIn ? "Copy"
                                                                     : "Words";
                         });

TEST(LinkFault, IsToldWhenNothingOfTheImageIsUnderWayAnyMore) {
  LinkRig rig;
  rig.faulty().HoldCopies();
  rig.faulty().FailNth(DeviceCall::kCopyIn, 2, absl::DataLossError("as told"));
  const TransferId id = rig.Copy(0, 3 * Link::kPieceBytes, true);
  const TransferId next = rig.Copy(100 * kMiB, kMiB, true);
  rig.faulty().WaitForCopies(2);
  rig.Settle();
  EXPECT_FALSE(rig.end(id).has_value());
  rig.faulty().LetCopiesGo();
  EXPECT_THAT(rig.WaitFor(id), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_OK(rig.WaitFor(next));
  EXPECT_EQ(rig.faulty().copies().size(), 2u);
}

// A GPU's copy is cut at the edges of registered memory, and its first part may
// be in flight where a later one fails.
TEST(LinkFault, OfOneRunIsToldWhenNothingOfItCanBeUnderWayAnyMore) {
  LinkRig rig;
  rig.faulty().HoldCopies();
  const TransferId before = rig.Copy(kMiB, kMiB, true);
  rig.faulty().WaitForCopies(1);
  rig.faulty().FailNth(DeviceCall::kCopyIn, 1, absl::DataLossError("as told"));
  const TransferId id = rig.Copy(0, 4096, true);
  rig.faulty().WaitForCopies(2);
  rig.Settle();
  EXPECT_FALSE(rig.end(id).has_value());
  rig.faulty().LetCopiesGo();
  EXPECT_THAT(rig.WaitFor(id), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_OK(rig.WaitFor(before));
}

TEST(LinkFault, IsToldWhenTheRowsBeforeItAreThere) {
  LinkRig rig;
  rig.faulty().HoldCopies();
  rig.faulty().FailNth(DeviceCall::kCopyIn, 2, absl::DataLossError("as told"));
  const TransferId id = rig.Copy(0, 4096, true, /*rows=*/3, /*pitch=*/10'000);
  rig.faulty().WaitForCopies(2);
  rig.Settle();
  EXPECT_FALSE(rig.end(id).has_value());
  rig.faulty().LetCopiesGo();
  EXPECT_THAT(rig.WaitFor(id), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(rig.faulty().copies().size(), 1u);
}

TEST(LinkFault, ABrokenDeviceIsToldToAllAndForGood) {
  LinkRig rig;
  rig.faulty().HoldCopies();
  std::vector<TransferId> ids;
  for (const bool urgent : {false, true, false}) {
    ids.push_back(rig.Copy(0, 3 * Link::kPieceBytes, urgent));
  }
  rig.faulty().WaitForCopies(Link::kPiecesUnderWay);
  rig.faulty().FailAll(DeviceCall::kHealth, absl::InternalError("sticky"));
  for (const TransferId id : ids) {
    EXPECT_THAT(rig.WaitFor(id),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("sticky")));
  }
  rig.faulty().LetCopiesGo();
  EXPECT_THAT(rig.WaitFor(rig.Copy(0, kMiB, true)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("sticky")));
}

TEST(LinkFault, ImagesThatAreGivenUpWaitForNoCap) {
  LinkRig rig({.load_bytes_per_second = 1});
  const TransferId load = rig.Copy(0, 120 * kMiB, false);
  rig.link().GiveUpImages();
  EXPECT_THAT(rig.WaitFor(load), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(rig.WaitFor(rig.Copy(0, kMiB, true)),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST(LinkFault, WhoStillWaitsAtTheEndIsTold) {
  LinkRig rig;
  rig.faulty().HoldCopies();
  const TransferId under_way = rig.Copy(0, Link::kPieceBytes, true);
  rig.faulty().WaitForCopies(1);
  std::vector<TransferId> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(rig.Copy(0, 2 * Link::kPieceBytes, true));
  }
  rig.Settle();
  std::thread ends([&] { rig.EndLink(); });
  // Those of which nothing is under way, at once.
  EXPECT_THAT(rig.WaitFor(ids[1]), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(rig.WaitFor(ids[2]), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(rig.end(ids[0]).has_value());
  rig.faulty().LetCopiesGo();
  ends.join();
  EXPECT_OK(rig.WaitFor(under_way));
  EXPECT_THAT(rig.WaitFor(ids[0]), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace hoistd::testing::link_fault_test
