#include "daemon/core/need_book.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::need_book_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

CopyRef OnDeviceOf(uint32_t group, uint32_t device = 0) {
  return {{ModelId(1), GroupIndex(group)},
          {OnDevice(DeviceIndex(device)), false}};
}

CopyRef OnHostOf(uint32_t group) {
  return {{ModelId(1), GroupIndex(group)}, {OnHost(), false}};
}

class NeedBookTest : public ::testing::Test {
 protected:
  ~NeedBookTest() override { book_.Check(); }

  Need& AddStage(const CopyRef& copy, absl::Duration deadline) {
    Need& need = book_.Add(copy, ++last_);
    need.urgent = true;
    need.waiters.push_back({.deadline = kNow + deadline});
    book_.Changed(need);
    return need;
  }
  Need& AddPrefetch(const CopyRef& copy, absl::Duration patience) {
    Need& need = book_.Add(copy, ++last_);
    need.give_up = kNow + patience;
    book_.Changed(need);
    return need;
  }

  NeedBook book_;
  NeedBook::Age last_ = 0;
};

TEST_F(NeedBookTest, WhatIsNewIsTriedOldestFirst) {
  AddStage(OnDeviceOf(0), absl::Seconds(1));
  AddPrefetch(OnDeviceOf(1), absl::Seconds(1));
  AddStage(OnDeviceOf(2), absl::Seconds(1));
  EXPECT_THAT(book_.Ready(/*urgent=*/true), ElementsAre(1, 3));
  EXPECT_THAT(book_.Ready(/*urgent=*/false), ElementsAre(2));
}

TEST_F(NeedBookTest, BytesThatCameWakeWhatWaitsForThatGroupAlone) {
  for (uint32_t g = 0; g < 2; ++g) {
    book_.Rest(AddStage(OnDeviceOf(g, 0), absl::Seconds(1)));
    book_.Rest(AddStage(OnDeviceOf(g, 1), absl::Seconds(1)));
    book_.Rest(AddStage(OnHostOf(g), absl::Seconds(1)));
  }
  EXPECT_FALSE(book_.AnyReady());
  book_.Wake(GroupKey{ModelId(1), GroupIndex(1)});
  EXPECT_THAT(book_.Ready(true), ElementsAre(4, 5, 6));
}

TEST_F(NeedBookTest, SpaceThatCameFreeWakesWhoWaitsForSpaceAlone) {
  book_.Rest(AddStage(OnDeviceOf(0), absl::Seconds(1)));
  book_.Block(AddStage(OnDeviceOf(1), absl::Seconds(1)));
  book_.WakeBlocked();
  EXPECT_THAT(book_.Ready(true), ElementsAre(2));
}

TEST_F(NeedBookTest, OfThoseBlockedAlikeTheOldestIsTriedThenTheNext) {
  const auto block = [&](NeedBook::Age age, uint64_t bytes) {
    Need& need = book_.At(age);
    need.blocked = {absl::OkStatus(), OnHost(), bytes, /*alike=*/true};
    book_.Block(need);
    book_.Tried(age, /*met=*/false);
  };
  for (uint32_t g = 0; g < 4; ++g) AddStage(OnHostOf(g), absl::Seconds(1));
  for (const NeedBook::Age age : {1, 2, 3}) block(age, 7);
  block(4, 8);
  book_.WakeBlocked();
  EXPECT_THAT(book_.Ready(true), ElementsAre(1, 4));
  // Those that are refused again leave the others where they are.
  block(1, 7);
  block(4, 8);
  EXPECT_FALSE(book_.AnyReady());
  book_.WakeBlocked();
  book_.Rest(book_.At(1));  // It has its space.
  book_.Tried(1, /*met=*/false);
  EXPECT_THAT(book_.Ready(true), ElementsAre(2, 4));
  book_.Tried(2, /*met=*/true);
  EXPECT_THAT(book_.Ready(true), ElementsAre(3, 4));
  block(3, 7);
  book_.Wake(OnHostOf(2));  // For another reason than space.
  book_.Rest(book_.At(3));
  book_.Tried(3, /*met=*/false);
  block(4, 8);
  EXPECT_FALSE(book_.AnyReady());
}

TEST_F(NeedBookTest, OfACrowdOfPrefetchesTheOldestAreTried) {
  const auto crowd = static_cast<uint32_t>(NeedBook::kPrefetchesTried);
  for (uint32_t g = 0; g < crowd; ++g) {
    const Need& need = AddPrefetch(OnDeviceOf(g), absl::Seconds(1));
    EXPECT_EQ(book_.CrowdedBy(need), nullptr);
    book_.Block(need);
  }
  const Need& late = AddPrefetch(OnDeviceOf(crowd), absl::Seconds(1));
  ASSERT_NE(book_.CrowdedBy(late), nullptr);
  EXPECT_EQ(book_.CrowdedBy(late)->copy, OnDeviceOf(0));
  // Neither another device's, nor what somebody waits for.
  EXPECT_EQ(book_.CrowdedBy(AddPrefetch(OnDeviceOf(0, 1), absl::Seconds(1))),
            nullptr);
  EXPECT_EQ(book_.CrowdedBy(AddStage(OnDeviceOf(99), absl::Seconds(1))),
            nullptr);
  book_.Block(late);
  book_.WakeBlocked();
  EXPECT_FALSE(book_.IsReady(book_.AgeOf(OnDeviceOf(crowd))));
  EXPECT_EQ(book_.Ready(false).size(), crowd + 1);
  // One of the older goes: the next is tried with the rest.
  book_.Erase(book_.AgeOf(OnDeviceOf(0)));
  for (const NeedBook::Age age : book_.Ready(false)) {
    book_.Block(book_.At(age));
  }
  book_.WakeBlocked();
  EXPECT_TRUE(book_.IsReady(book_.AgeOf(OnDeviceOf(crowd))));
}

TEST_F(NeedBookTest, ThoseAreDueWhoseDeadlineIsOver) {
  AddStage(OnDeviceOf(0), absl::Seconds(3));
  AddPrefetch(OnDeviceOf(1), absl::Seconds(1));
  EXPECT_EQ(book_.NextDeadline(), kNow + absl::Seconds(1));
  EXPECT_THAT(book_.Due(kNow), IsEmpty());
  EXPECT_THAT(book_.Due(kNow + absl::Seconds(1)), ElementsAre(2));
  // The first of several waiters counts.
  Need& need = *book_.Find(OnDeviceOf(0));
  need.waiters.push_back({.deadline = kNow});
  book_.Changed(need);
  EXPECT_THAT(book_.Due(kNow), ElementsAre(1));
}

TEST_F(NeedBookTest, WhoWouldRatherBeRefusedIsDueAsLongAsItIsBlocked) {
  Need& need = AddStage(OnDeviceOf(0), absl::InfiniteDuration());
  book_.Block(need);
  EXPECT_THAT(book_.Due(kNow), IsEmpty());
  need.waiters.front().no_wait = true;
  book_.Changed(need);
  EXPECT_THAT(book_.Due(kNow), ElementsAre(1));
  book_.Rest(need);
  EXPECT_THAT(book_.Due(kNow), IsEmpty());
}

TEST_F(NeedBookTest, WhatNobodyWaitsForAnyMoreIsDueAtOnce) {
  Need& need = AddStage(OnDeviceOf(0), absl::Hours(1));
  need.waiters.clear();
  book_.Changed(need);
  EXPECT_THAT(book_.Due(kNow), ElementsAre(1));
}

TEST_F(NeedBookTest, WhatIsErasedIsNowhere) {
  book_.Block(AddStage(OnDeviceOf(0), absl::Seconds(1)));
  book_.Erase(1);
  book_.WakeBlocked();
  EXPECT_TRUE(book_.empty());
  EXPECT_FALSE(book_.AnyReady());
  EXPECT_EQ(book_.Find(OnDeviceOf(0)), nullptr);
  EXPECT_EQ(book_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(NeedBookTest, AChangeThatIsNotToldIsFound) {
  Need& need = AddStage(OnDeviceOf(0), absl::Seconds(1));
  need.waiters.clear();
  EXPECT_DEATH(book_.Check(), "filed");
  book_.Changed(need);
}

}  // namespace hoistd::need_book_test
