#include "daemon/mover/transfer_queue.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::transfer_queue_test {

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

// Starts what the width allows.
std::vector<uint64_t> Start(TransferQueue& queue) {
  std::vector<uint64_t> ids;
  while (const std::optional<Transfer> next = queue.Next()) {
    ids.push_back(next->id.number());
  }
  return ids;
}

TEST(TransferQueue, StartsAsManyAsItIsWide) {
  TransferQueue queue({2});
  for (uint64_t id = 1; id <= 4; ++id) queue.Add(Make(id));
  EXPECT_THAT(Start(queue), ElementsAre(1, 2));
  EXPECT_THAT(Start(queue), IsEmpty());
  queue.Finished(TransferId(2));
  EXPECT_THAT(Start(queue), ElementsAre(3));
  queue.Finished(TransferId(1));
  queue.Finished(TransferId(3));
  EXPECT_THAT(Start(queue), ElementsAre(4));
}

TEST(TransferQueue, SmallOnesGoBesideEachOther) {
  constexpr uint64_t kHalf = TransferQueue::kSmallBytes / 2;
  TransferQueue queue({.width = 1, .of_small = 3});
  for (uint64_t id = 1; id <= 4; ++id) queue.Add(Make(id));
  queue.Add(Make(5, false, kHalf));
  queue.Add(Make(6, false, kHalf));
  queue.Add(Make(7));
  EXPECT_THAT(Start(queue), ElementsAre(1, 2, 3));
  queue.Finished(TransferId(1));
  queue.Finished(TransferId(2));
  // The sixth would be one byte too many; and nobody overtakes it.
  EXPECT_THAT(Start(queue), ElementsAre(4, 5));
  queue.Finished(TransferId(3));
  EXPECT_THAT(Start(queue), IsEmpty());
  queue.Finished(TransferId(4));
  EXPECT_THAT(Start(queue), ElementsAre(6));
  EXPECT_THAT(Start(queue), IsEmpty());
  queue.Finished(TransferId(5));
  queue.Finished(TransferId(6));
  EXPECT_THAT(Start(queue), ElementsAre(7));
  queue.Finished(TransferId(7));
  EXPECT_TRUE(queue.idle());
}

TEST(TransferQueue, ALargeOneGoesAlone) {
  TransferQueue queue({.width = 1, .of_small = 3});
  queue.Add(Make(1, false, 2 * TransferQueue::kSmallBytes));
  queue.Add(Make(2));
  EXPECT_THAT(Start(queue), ElementsAre(1));
  queue.Finished(TransferId(1));
  EXPECT_THAT(Start(queue), ElementsAre(2));
}

TEST(TransferQueue, UrgentOnesGoFirst) {
  TransferQueue queue({9});
  queue.Add(Make(1));
  queue.Add(Make(2, /*urgent=*/true));
  queue.Add(Make(3));
  queue.Add(Make(4, /*urgent=*/true));
  EXPECT_THAT(Start(queue), ElementsAre(2, 4, 1, 3));
}

TEST(TransferQueue, WhatIsHurriedJoinsTheUrgentOnes) {
  TransferQueue queue({9});
  queue.Add(Make(1));
  queue.Add(Make(2));
  queue.Add(Make(3, /*urgent=*/true));
  queue.Hurry(TransferId(2));
  EXPECT_THAT(Start(queue), ElementsAre(3, 2, 1));
}

TEST(TransferQueue, HurryingWhatDoesNotWaitChangesNothing) {
  TransferQueue queue({1});
  queue.Add(Make(1));
  EXPECT_THAT(Start(queue), ElementsAre(1));
  queue.Hurry(TransferId(1));
  queue.Hurry(TransferId(7));
  queue.Add(Make(2, /*urgent=*/true));
  queue.Hurry(TransferId(2));
  queue.Finished(TransferId(1));
  EXPECT_THAT(Start(queue), ElementsAre(2));
  queue.Finished(TransferId(2));
  EXPECT_THAT(Start(queue), IsEmpty());
}

}  // namespace hoistd::transfer_queue_test
