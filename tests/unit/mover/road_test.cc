#include "daemon/mover/road.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Transfer Make(uint64_t id, bool urgent = false, uint64_t bytes = 1) {
  Transfer transfer;
  auto group = std::make_shared<Group>();
  group->image_bytes = bytes;
  transfer.group = std::move(group);
  transfer.id = TransferId(id);
  transfer.urgent = urgent;
  return transfer;
}

// Starts what the road has room for.
std::vector<uint64_t> Start(Road& road) {
  std::vector<uint64_t> ids;
  while (const std::optional<Transfer> next = road.Next()) {
    ids.push_back(next->id.number());
  }
  return ids;
}

TEST(Road, StartsAsManyAsItIsWide) {
  Road road({2});
  for (uint64_t id = 1; id <= 4; ++id) road.Add(Make(id));
  EXPECT_THAT(Start(road), ElementsAre(1, 2));
  EXPECT_THAT(Start(road), IsEmpty());
  road.Finished(TransferId(2));
  EXPECT_THAT(Start(road), ElementsAre(3));
  road.Finished(TransferId(1));
  road.Finished(TransferId(3));
  EXPECT_THAT(Start(road), ElementsAre(4));
}

TEST(Road, SmallOnesGoBesideEachOther) {
  constexpr uint64_t kHalf = Road::kSmallBytes / 2;
  Road road({.width = 1, .of_small = 3});
  for (uint64_t id = 1; id <= 4; ++id) road.Add(Make(id));
  road.Add(Make(5, false, kHalf));
  road.Add(Make(6, false, kHalf));
  road.Add(Make(7));
  EXPECT_THAT(Start(road), ElementsAre(1, 2, 3));
  road.Finished(TransferId(1));
  road.Finished(TransferId(2));
  // The sixth would be one byte too many; and nobody overtakes it.
  EXPECT_THAT(Start(road), ElementsAre(4, 5));
  road.Finished(TransferId(3));
  EXPECT_THAT(Start(road), IsEmpty());
  road.Finished(TransferId(4));
  EXPECT_THAT(Start(road), ElementsAre(6));
  EXPECT_THAT(Start(road), IsEmpty());
  road.Finished(TransferId(5));
  road.Finished(TransferId(6));
  EXPECT_THAT(Start(road), ElementsAre(7));
  road.Finished(TransferId(7));
  EXPECT_TRUE(road.idle());
}

TEST(Road, ALargeOneGoesAlone) {
  Road road({.width = 1, .of_small = 3});
  road.Add(Make(1, false, 2 * Road::kSmallBytes));
  road.Add(Make(2));
  EXPECT_THAT(Start(road), ElementsAre(1));
  road.Finished(TransferId(1));
  EXPECT_THAT(Start(road), ElementsAre(2));
}

TEST(Road, UrgentOnesGoFirst) {
  Road road({9});
  road.Add(Make(1));
  road.Add(Make(2, /*urgent=*/true));
  road.Add(Make(3));
  road.Add(Make(4, /*urgent=*/true));
  EXPECT_THAT(Start(road), ElementsAre(2, 4, 1, 3));
}

TEST(Road, WhatIsHurriedJoinsTheUrgentOnes) {
  Road road({9});
  road.Add(Make(1));
  road.Add(Make(2));
  road.Add(Make(3, /*urgent=*/true));
  road.Hurry(TransferId(2));
  EXPECT_THAT(Start(road), ElementsAre(3, 2, 1));
}

TEST(Road, HurryingWhatDoesNotWaitChangesNothing) {
  Road road({1});
  road.Add(Make(1));
  EXPECT_THAT(Start(road), ElementsAre(1));
  road.Hurry(TransferId(1));
  road.Hurry(TransferId(7));
  road.Add(Make(2, /*urgent=*/true));
  road.Hurry(TransferId(2));
  road.Finished(TransferId(1));
  EXPECT_THAT(Start(road), ElementsAre(2));
  road.Finished(TransferId(2));
  EXPECT_THAT(Start(road), IsEmpty());
}

}  // namespace
}  // namespace hoistd
