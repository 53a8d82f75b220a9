#include "daemon/core/pageable_book.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::pageable_book_test {

using ::testing::Optional;

class PageableBookTest : public ::testing::Test {
 protected:
  static GroupKey Key(uint32_t group) {
    return {ModelId(1), GroupIndex(group)};
  }
  bool Place(uint32_t group, uint64_t bytes) {
    now_ += absl::Seconds(1);
    return book_.Place(Key(group), bytes, now_);
  }
  void Put(uint32_t group, uint64_t bytes) {
    ASSERT_TRUE(Place(group, bytes));
    book_.Came(Key(group));
  }
  bool Has(uint32_t group) const { return book_.Has(Key(group)); }

  PageableBook book_{100};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(PageableBookTest, WithoutMemoryNothingFits) {
  EXPECT_FALSE(PageableBook().Place(Key(0), 1, now_));
}

TEST_F(PageableBookTest, TheOldestMakeRoom) {
  Put(0, 50);
  Put(1, 50);
  Put(2, 50);
  EXPECT_FALSE(Has(0));
  EXPECT_TRUE(Has(1));
  EXPECT_TRUE(Has(2));
  EXPECT_FALSE(Place(3, 101)) << "it is larger than the memory";
  EXPECT_TRUE(Has(1));
}

TEST_F(PageableBookTest, WhatIsBeingCopiedStays) {
  ASSERT_TRUE(Place(0, 50));
  Put(1, 50);
  EXPECT_EQ(book_.Take(Key(0)), std::nullopt) << "it has not come yet";
  EXPECT_THAT(book_.Take(Key(1)), Optional(50u));
  EXPECT_EQ(book_.Take(Key(1)), std::nullopt) << "it is taken";
  EXPECT_FALSE(Place(2, 50));
  book_.Drop(Key(1));
  EXPECT_TRUE(Place(2, 50));
}

TEST_F(PageableBookTest, AnOnlyCopyStaysUntilItIsForgotten) {
  EXPECT_FALSE(book_.KeepOnly(Key(0)));
  Put(0, 100);
  EXPECT_TRUE(book_.KeepOnly(Key(0)));
  EXPECT_FALSE(Place(1, 50));
  EXPECT_FALSE(book_.Evict(Key(0)));
  EXPECT_TRUE(Has(0));
  book_.Forget(Key(0));
  EXPECT_EQ(book_.memory().used(), 0u);
}

TEST_F(PageableBookTest, OneThatIsComingGoesAtItsEnd) {
  ASSERT_TRUE(Place(0, 50));
  EXPECT_FALSE(book_.Evict(Key(0)));
  EXPECT_EQ(book_.memory().used(), 50u);
  book_.Came(Key(0));
  EXPECT_EQ(book_.memory().used(), 0u);
}

TEST_F(PageableBookTest, WhatACheckReadsKeepsItsPlace) {
  Put(0, 100);
  EXPECT_THAT(book_.Read(Key(0)), Optional(0u));
  EXPECT_EQ(book_.Read(Key(1)), std::nullopt);
  EXPECT_FALSE(Place(1, 50)) << "it is read";
  EXPECT_TRUE(book_.Evict(Key(0)));
  EXPECT_FALSE(Has(0));
  EXPECT_FALSE(Place(0, 50)) << "it is read still";
  EXPECT_EQ(book_.memory().used(), 100u);
  book_.EndRead(Key(0));
  EXPECT_EQ(book_.memory().used(), 0u);
  Put(0, 50);
  EXPECT_THAT(book_.Read(Key(0)), Optional(0u));
  book_.EndRead(Key(0));
  EXPECT_TRUE(Has(0));
}

TEST_F(PageableBookTest, OneThatComesAgainWhileTheFormerIsReadIsAnother) {
  Put(0, 50);
  ASSERT_TRUE(book_.Read(Key(0)).has_value());
  book_.Forget(Key(0));
  Put(0, 50);
  book_.Forget(Key(0));
  EXPECT_EQ(book_.memory().used(), 50u);
  book_.EndRead(Key(0));
  EXPECT_EQ(book_.memory().used(), 0u);
}

TEST_F(PageableBookTest, AFailureIsRemembered) {
  book_.Failed(now_);
  EXPECT_FALSE(Place(0, 50));
  now_ += PageableBook::kRetry;
  EXPECT_TRUE(Place(0, 50));
}

}  // namespace hoistd::pageable_book_test
