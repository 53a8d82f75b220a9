// What is worth keeping: the order book's knowledge and its price.
#include <optional>
#include <vector>

#include "daemon/core/keep_value.h"
#include "daemon/core/order_book.h"
#include "daemon/types/tier.h"
#include "gtest/gtest.h"

namespace hoistd::order_test {

const SessionId kSession(1);
const ModelId kModel(1);

GroupIndex G(uint32_t index) { return GroupIndex(index); }
GroupKey Key(uint32_t index) { return {kModel, G(index)}; }
absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

KeepFacts Used(double seconds_ago, uint64_t bytes = 100) {
  KeepFacts facts;
  facts.bytes = bytes;
  facts.since_use = absl::Seconds(seconds_ago);
  return facts;
}

TEST(KeepValue, IsRecencyWhereCostsAreEqual) {
  EXPECT_GT(KeepValue(Used(1)), KeepValue(Used(2)));
  EXPECT_GT(KeepValue(Used(2)), KeepValue(Used(200)));
}

TEST(KeepValue, WhatIsDearToBringBackIsKept) {
  KeepFacts from_disk = Used(10);
  KeepFacts from_host = Used(10);
  from_disk.restore_bytes_per_second = 3;
  from_host.restore_bytes_per_second = 50;
  EXPECT_GT(KeepValue(from_disk), KeepValue(from_host));
  KeepFacts unsaved = from_disk;
  unsaved.spill_bytes_per_second = 3;
  EXPECT_DOUBLE_EQ(KeepValue(unsaved), 2 * KeepValue(from_disk));
}

TEST(KeepValue, AKnownNextUseOverrulesTheLastOne) {
  KeepFacts soon = Used(1000);
  soon.until_use = absl::Seconds(1);
  KeepFacts late = Used(0.1);
  late.until_use = absl::Seconds(50);
  EXPECT_GT(KeepValue(soon), KeepValue(late));
}

TEST(KeepValue, IsFiniteForWhatWasUsedJustNow) {
  EXPECT_DOUBLE_EQ(KeepValue(Used(0)), 100 / 1e-3);
  KeepFacts past = Used(0);
  past.since_use = -absl::Seconds(1);
  EXPECT_DOUBLE_EQ(KeepValue(past), 100 / 1e-3);
}

TEST(OrderBook, KnowsNothingWithoutAnOrder) {
  OrderBook book;
  book.Staged(kSession, Key(0), At(0));
  EXPECT_EQ(book.UntilUse(Key(0)), std::nullopt);
  book.Set(kSession, kModel, {G(0), G(1)});
  EXPECT_EQ(book.UntilUse(Key(2)), std::nullopt);
  EXPECT_EQ(book.UntilUse({ModelId(2), G(0)}), std::nullopt);
}

TEST(OrderBook, WhatWasJustStagedComesLastInACycle) {
  OrderBook book;
  book.Set(kSession, kModel, {G(0), G(1), G(2), G(3)});
  for (uint32_t i = 0; i < 8; ++i) {
    book.Staged(kSession, Key(i % 4), At(i));
    const auto last = book.UntilUse(Key(i % 4));
    ASSERT_TRUE(last.has_value());
    for (uint32_t other = 1; other < 4; ++other) {
      const auto until = book.UntilUse(Key((i + other) % 4));
      ASSERT_TRUE(until.has_value());
      EXPECT_LT(*until, *last);
      EXPECT_EQ(*until * 4, *last * other);
    }
  }
}

TEST(OrderBook, LearnsThePace) {
  OrderBook book;
  book.Set(kSession, kModel, {G(0), G(1)});
  for (int i = 0; i < 100; ++i) {
    book.Staged(kSession, Key(static_cast<uint32_t>(i) % 2), At(3.0 * i));
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(*book.UntilUse(Key(0))), 3, 0.01);
  EXPECT_NEAR(absl::ToDoubleSeconds(*book.UntilUse(Key(1))), 6, 0.01);
}

TEST(OrderBook, ASkippedGroupMovesTheCursorOn) {
  OrderBook book;
  book.Set(kSession, kModel, {G(0), G(1), G(2), G(3)});
  book.Staged(kSession, Key(2), At(0));
  EXPECT_LT(*book.UntilUse(Key(3)), *book.UntilUse(Key(0)));
  EXPECT_LT(*book.UntilUse(Key(0)), *book.UntilUse(Key(1)));
}

TEST(OrderBook, AnUnplannedGroupChangesNothing) {
  OrderBook book;
  book.Set(kSession, kModel, {G(0), G(1)});
  book.Staged(kSession, Key(7), At(0));
  EXPECT_LT(*book.UntilUse(Key(0)), *book.UntilUse(Key(1)));
}

TEST(OrderBook, AGroupThatComesTwiceIsNeededAtItsNextTurn) {
  OrderBook book;
  book.Set(kSession, kModel, {G(0), G(1), G(0), G(2)});
  book.Staged(kSession, Key(0), At(0));
  EXPECT_LT(*book.UntilUse(Key(1)), *book.UntilUse(Key(0)));
  EXPECT_LT(*book.UntilUse(Key(0)), *book.UntilUse(Key(2)));
}

TEST(OrderBook, TheSoonestOfAllSessionsCounts) {
  OrderBook book;
  book.Set(SessionId(1), kModel, {G(0), G(1), G(2)});
  book.Set(SessionId(2), kModel, {G(2), G(1), G(0)});
  EXPECT_EQ(book.UntilUse(Key(0)), book.UntilUse(Key(2)));
  EXPECT_LT(*book.UntilUse(Key(2)), *book.UntilUse(Key(1)));
  book.ForgetSession(SessionId(2));
  EXPECT_LT(*book.UntilUse(Key(1)), *book.UntilUse(Key(2)));
}

TEST(OrderBook, ForgetsModelsAndEmptyOrders) {
  OrderBook book;
  book.Set(SessionId(1), kModel, {G(0)});
  book.ForgetModel(kModel);
  EXPECT_EQ(book.UntilUse(Key(0)), std::nullopt);
  book.Set(SessionId(1), kModel, {G(0)});
  book.Set(SessionId(1), kModel, {});
  EXPECT_EQ(book.UntilUse(Key(0)), std::nullopt);
}

TEST(HumanBytes, ReadsAsPeopleWriteIt) {
  EXPECT_EQ(HumanBytes(512), "512 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(uint64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(HumanBytes(uint64_t{5000} << 40), "4.9 PiB");
}

TEST(TierAt, IsNamedAsAdminsWriteIt) {
  EXPECT_EQ(ToString(OnDevice(DeviceIndex(3))), "device 3");
  EXPECT_EQ(ToString(OnHost()), "host");
  EXPECT_EQ(ToString(OnDisk()), "disk");
}

}  // namespace hoistd::order_test
