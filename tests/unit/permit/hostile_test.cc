// A client that writes into its page what it likes harms nobody but itself.
#include <cstdint>
#include <random>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/permit/rig.h"

namespace hoistd::testing::hostile_test {

const PermitId kOne(1);
const PlanId kPlan(1);

class HostilePermit : public ::testing::Test {
 protected:
  // A link that goes on serves a plan, once what is held in vain is over.
  void ExpectServed() {
    Repeater& plan =
        rig_.link().AddPlan(PlanId(++plans_), 0, kSmall, {.pieces = 20});
    ASSERT_TRUE(Until([&] {
      rig_.link().clock().Advance(absl::Milliseconds(1));
      return plan.ended() == 20;
    }));
  }

  PermitRig rig_;
  PermitClient client_ = rig_.Open(kOne);
  uint64_t plans_ = 0;
};

TEST_F(HostilePermit, AnAskThatIsBehindAsksForNothing) {
  client_.page().asked.store(uint32_t{0} - 1);
  client_.Wake();
  ExpectServed();
  EXPECT_EQ(client_.granted(), 0u);
}

TEST_F(HostilePermit, AnAskThatJumpsIsGrantedPieceByPiece) {
  client_.page().asked.store(uint32_t{INT32_MAX});
  client_.Wake();
  ASSERT_TRUE(client_.AwaitGranted(2 * kPiece));
  ExpectServed();
  EXPECT_EQ(rig_.Stats(kOne).copied_bytes, 0u);
}

TEST_F(HostilePermit, MoreDoneThanGrantedIsNotBelieved) {
  client_.Ask(kPiece);
  ASSERT_TRUE(client_.AwaitGranted(kPiece));
  client_.page().done.store(kPiece + 1);
  client_.Wake();
  ExpectServed();
  EXPECT_TRUE(Until([&] {
    rig_.link().clock().Advance(absl::Milliseconds(1));
    return rig_.Stats(kOne).late == 1;
  }));
  EXPECT_EQ(rig_.Stats(kOne).copied_bytes, 0u);
}

TEST_F(HostilePermit, WhatIsDoneDoesNotGoBack) {
  client_.Ask(kPiece);
  ASSERT_TRUE(client_.AwaitGranted(kPiece));
  client_.Done(kPiece);
  ASSERT_TRUE(Until([&] { return rig_.Stats(kOne).copied_bytes == kPiece; }));
  client_.page().done.store(5);
  client_.Wake();
  ExpectServed();
  EXPECT_EQ(rig_.Stats(kOne).copied_bytes, kPiece);
}

TEST_F(HostilePermit, WhatIsReadOnlyGrowsAndHasABound) {
  client_.page().read.store(100);
  EXPECT_EQ(rig_.Stats(kOne).read_bytes, 100u);
  client_.page().read.store(7);
  EXPECT_EQ(rig_.Stats(kOne).read_bytes, 100u);
  client_.page().read.store(~uint64_t{0});
  EXPECT_EQ(rig_.Stats(kOne).read_bytes, uint64_t{1} << 56);
}

// Each tiny grant would hold a place as long as it likes.
TEST_F(HostilePermit, ManyTinyAsksCountForAsMuchAsTheyHoldUp) {
  client_.Ask(1);
  ASSERT_TRUE(client_.AwaitGranted(1));
  Repeater& plan = rig_.link().AddPlan(kPlan, 0, kSmall, {.pieces = 100});
  // The other place is the plan's.
  ASSERT_TRUE(Until([&] { return plan.ended() == 100; }));
  EXPECT_EQ(rig_.Stats(kOne).copied_bytes, 0u);
  // One byte is late after what 1 MiB takes, and a quarter of that.
  const double takes = double(Link::kLeastGrantBytes) / LinkMeter::kFirstGuess;
  rig_.link().clock().Advance(absl::Seconds(1.3 * takes));
  EXPECT_TRUE(Until([&] { return rig_.Stats(kOne).late == 1; }));
}

// Neither one who says at once that all is done, nor one who never does.
TEST_F(HostilePermit, TeachesNobodyHowFastTheLinkIs) {
  const double before = rig_.link().link().Rate();
  for (uint32_t i = 1; i <= 20; ++i) {
    client_.Ask(kPiece);
    ASSERT_TRUE(client_.AwaitGranted(i * kPiece));
    rig_.link().clock().Advance(absl::Nanoseconds(i % 2));
    client_.Done(kPiece);
  }
  EXPECT_EQ(rig_.link().link().Rate(), before);
}

TEST_F(HostilePermit, WordsAtRandomKeepNobodyFromTheLink) {
  std::mt19937 random(17);  // NOLINT
  for (int i = 0; i < 200; ++i) {
    hoist::permit::Page& page = client_.page();
    hoist::lane::Word* const words[] = {&page.put, &page.asked, &page.done,
                                        &page.granted, &page.sleeping};
    words[random() % std::size(words)]->store(static_cast<uint32_t>(random()));
    page.read.store(random());
    client_.Wake();
    if (i % 20 == 0) ExpectServed();
  }
  ExpectServed();
  EXPECT_LE(rig_.Stats(kOne).copied_bytes,
            rig_.Stats(kOne).grants * uint64_t{kPiece});
}

}  // namespace hoistd::testing::hostile_test
