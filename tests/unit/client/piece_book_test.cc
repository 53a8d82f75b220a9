#include "client/src/in_place/piece_book.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoist::piece_book_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kLease = 70;  // And the piece's number.

class PieceBookTest : public ::testing::Test {
 protected:
  // A pass that read so much of each.
  void Read(const std::vector<double>& bytes) { book_.heat().Add(bytes, 1); }
  void Bring(uint64_t budget) {
    book_.Choose(budget);
    for (const size_t piece : book_.NextToBring(budget)) {
      book_.Came(piece, kLease + piece);
    }
  }
  void PlaceAll() {
    for (size_t i = 0; i < book_.size(); ++i) {
      if (book_.MayPlace(i)) book_.Placed(i);
    }
  }

  PieceBook book_{{4, 4, 4, 2}};
};

TEST_F(PieceBookTest, TheHottestComeAndAreShownOncePlaced) {
  Read({1, 4, 3, 0});
  book_.Choose(8);
  EXPECT_THAT(book_.NextToBring(8), ElementsAre(1, 2));
  EXPECT_EQ(book_.StateOf(1), PieceState::kComing);
  EXPECT_EQ(book_.device_bytes(), 8u);
  book_.Came(1, kLease);
  EXPECT_FALSE(book_.IsHot(1));
  ASSERT_TRUE(book_.MayPlace(1));
  book_.Placed(1);
  EXPECT_TRUE(book_.IsHot(1));
  EXPECT_EQ(book_.CountToPlace(), 0u);
  EXPECT_THAT(book_.TakeLeft(), IsEmpty());
}

TEST_F(PieceBookTest, ALeaseIsOverOnlyWhenNothingShowsItsMemory) {
  Read({0, 4, 0, 0});
  Bring(4);
  PlaceAll();
  book_.Choose(0);
  EXPECT_EQ(book_.StateOf(1), PieceState::kLeaving);
  EXPECT_TRUE(book_.IsHot(1));
  EXPECT_THAT(book_.TakeLeft(), IsEmpty());
  book_.Placed(1);
  EXPECT_EQ(book_.StateOf(1), PieceState::kCold);
  EXPECT_THAT(book_.TakeLeft(), ElementsAre(kLease + 1));
  EXPECT_THAT(book_.TakeLeft(), IsEmpty());
}

TEST_F(PieceBookTest, WhatCameInVainIsLeftAtOnce) {
  Read({0, 4, 0, 0});
  Bring(4);
  book_.Choose(0);
  EXPECT_EQ(book_.StateOf(1), PieceState::kCold);
  EXPECT_THAT(book_.TakeLeft(), ElementsAre(kLease + 1));
}

TEST_F(PieceBookTest, WhatLeavesAndIsWantedAgainStays) {
  Read({0, 4, 0, 0});
  Bring(4);
  PlaceAll();
  book_.Choose(0);
  book_.Choose(4);
  EXPECT_EQ(book_.StateOf(1), PieceState::kHot);
  EXPECT_EQ(book_.CountToPlace(), 0u);
}

TEST_F(PieceBookTest, WhatLeavesHasItsRoomUntilItIsPlaced) {
  Read({0, 4, 0, 0});
  Bring(4);
  PlaceAll();
  for (int i = 0; i < 100; ++i) Read({4, 0, 0, 0});
  book_.Choose(4);
  EXPECT_TRUE(book_.wanted(0));
  EXPECT_THAT(book_.NextToBring(4), IsEmpty());
  book_.Placed(1);
  EXPECT_THAT(book_.NextToBring(4), ElementsAre(0));
}

TEST_F(PieceBookTest, WhatDidNotComeIsTriedAgain) {
  Read({0, 4, 0, 0});
  book_.Choose(4);
  ASSERT_THAT(book_.NextToBring(4), ElementsAre(1));
  EXPECT_THAT(book_.NextToBring(4), IsEmpty());
  book_.DidNotCome(1);
  EXPECT_THAT(book_.NextToBring(4), ElementsAre(1));
}

TEST_F(PieceBookTest, AtTheEndAllLeasesAreLeft) {
  Read({1, 1, 1, 1});
  Bring(14);
  book_.Placed(0);
  book_.Leave(3);
  book_.LeaveAll();
  EXPECT_THAT(book_.TakeLeft(), UnorderedElementsAre(3, kLease, kLease + 1,
                                                     kLease + 2, kLease + 3));
  EXPECT_EQ(book_.device_bytes(), 0u);
}

}  // namespace hoist::piece_book_test
