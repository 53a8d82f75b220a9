#include "daemon/core/slab_book.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::slab_book_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const User kAnn(1);
const User kBob(2);
const SessionId kFirst(1);
const SessionId kSecond(2);
const DeviceIndex kDevice(0);
const SlabId kSlab(1);
const SlabId kOther(2);
const absl::Time kStart = absl::UnixEpoch();

struct Books {
  SlabBook book;
  std::vector<SlabAsk> asks;

  Books() {
    book.AddSession(kFirst, kAnn, /*closes_slabs=*/true);
    book.AddSession(kSecond, kBob, /*closes_slabs=*/true);
  }
  bool Use(SessionId id, SlabId slab) {
    SlabSpec spec;
    spec.id = slab;
    spec.bytes = 10;
    return book.Use(id, kDevice, spec);
  }
  void Idle(SessionId id, SlabId slab) {
    Use(id, slab);
    book.Leave(id, kDevice, slab);
  }
  bool Ask(const std::vector<SlabId>& slabs, absl::Time now = kStart) {
    return book.Ask(kDevice, slabs, std::nullopt, now, asks);
  }
};

TEST(SlabBook, ASlabIsSentOnceUntilItMayHaveBeenClosed) {
  Books books;
  EXPECT_TRUE(books.Use(kFirst, kSlab));
  EXPECT_FALSE(books.Use(kFirst, kSlab));
  EXPECT_FALSE(books.book.Leave(kFirst, kDevice, kSlab));
  EXPECT_TRUE(books.book.Leave(kFirst, kDevice, kSlab));
  EXPECT_FALSE(books.Use(kFirst, kSlab));  // Idle, but open.
  books.book.Leave(kFirst, kDevice, kSlab);
  books.Ask({kSlab});
  EXPECT_TRUE(books.Use(kFirst, kSlab));
  books.book.Check();
}

TEST(SlabBook, WhatItNeverHeardOfIsSentWithTheNextUse) {
  Books books;
  // Granted by a hoistd that died before it said so.
  books.Use(kFirst, kSlab);
  books.Use(kFirst, kOther);
  books.book.Keep(kFirst, {});
  books.book.Check();
  EXPECT_TRUE(books.Use(kFirst, kSlab));
  EXPECT_FALSE(books.Use(kFirst, kSlab));
  books.book.Leave(kFirst, kDevice, kOther);
  EXPECT_FALSE(books.book.HasOpen(kFirst, kDevice, kOther));
  EXPECT_TRUE(books.Use(kFirst, kOther));
  books.book.Check();
}

TEST(SlabBook, WhatItHasOpenStaysSo) {
  Books books;
  books.Idle(kFirst, kSlab);
  books.Idle(kFirst, kOther);
  books.book.Keep(kFirst, {{kDevice, kSlab}});
  EXPECT_TRUE(books.book.HasOpen(kFirst, kDevice, kSlab));
  EXPECT_FALSE(books.book.HasOpen(kFirst, kDevice, kOther));
  books.book.Check();
}

TEST(SlabBook, WhatWasGivenAgainIsNotMeantByTheAskBefore) {
  Books books;
  books.Idle(kFirst, kSlab);
  books.Ask({kSlab});
  books.Use(kFirst, kSlab);
  const SlabsClosedArgs closed = {kDevice, books.asks[0].number, {kSlab}};
  EXPECT_TRUE(books.book.Closed(kFirst, closed, kStart));
  EXPECT_TRUE(books.book.HasOpen(kFirst, kDevice, kSlab));
  EXPECT_EQ(books.book.OpenedBy(kDevice, kSlab), Opened::kKept);
  books.book.Check();
}

TEST(SlabBook, OneAskNamesAllOfASessionsSlabsAndIsNotRepeated) {
  Books books;
  books.Idle(kFirst, kSlab);
  books.Idle(kFirst, kOther);
  books.Idle(kSecond, kOther);
  EXPECT_FALSE(books.Ask({kSlab, kOther}));
  EXPECT_FALSE(books.Ask({kSlab, kOther}));
  ASSERT_THAT(books.asks, SizeIs(2));
  EXPECT_EQ(books.asks[0].session, kFirst);
  EXPECT_THAT(books.asks[0].slabs, ElementsAre(kSlab, kOther));
  EXPECT_THAT(books.asks[1].slabs, ElementsAre(kOther));
  EXPECT_NE(books.asks[0].number, books.asks[1].number);
}

TEST(SlabBook, ASlabIsNobodysWhenTheLastHasClosedIt) {
  Books books;
  books.Idle(kFirst, kSlab);
  books.Idle(kSecond, kSlab);
  books.Ask({kSlab});
  EXPECT_EQ(books.book.OpenedBy(kDevice, kSlab), Opened::kIdle);
  books.book.Closed(kFirst, {kDevice, books.asks[0].number, {kSlab}}, kStart);
  EXPECT_EQ(books.book.OpenedBy(kDevice, kSlab), Opened::kIdle);
  books.book.RemoveSession(kSecond);
  EXPECT_EQ(books.book.OpenedBy(kDevice, kSlab), Opened::kNobody);
  books.book.Check();
}

TEST(SlabBook, WhoDoesNotAnswerKeepsItsSlabsUntilItDoes) {
  Books books;
  books.Idle(kFirst, kSlab);
  books.Ask({kSlab});
  EXPECT_EQ(books.book.due(), kStart + SlabBook::kPrompt);
  EXPECT_FALSE(books.book.LookAt(kStart).changed);
  EXPECT_THAT(books.book.LookAt(books.book.due()).silent, IsEmpty());
  EXPECT_EQ(books.book.OpenedBy(kDevice, kSlab), Opened::kIdle);
  const absl::Time late = books.book.due();
  EXPECT_EQ(late, kStart + SlabBook::kAnswerPatience);
  const SlabBook::Looked looked = books.book.LookAt(late);
  EXPECT_TRUE(looked.changed);
  ASSERT_THAT(looked.silent, SizeIs(1));
  EXPECT_EQ(looked.silent[0].session, kFirst);
  EXPECT_EQ(looked.silent[0].bytes, 10u);
  EXPECT_EQ(books.book.OpenedBy(kDevice, kSlab), Opened::kKept);
  EXPECT_EQ(books.book.KeptBytes(kDevice, kAnn), 10u);
  EXPECT_EQ(books.book.KeptBytes(kDevice, kBob), 0u);
  EXPECT_EQ(books.book.due(), absl::InfiniteFuture());
  books.book.Closed(kFirst, {kDevice, books.asks[0].number, {kSlab}}, late);
  EXPECT_EQ(books.book.KeptBytes(kDevice, std::nullopt), 0u);
  books.book.Check();
}

TEST(SlabBook, ALateAnswerHasTheOthersAsked) {
  Books books;
  books.Idle(kFirst, kSlab);
  books.Idle(kSecond, kOther);
  books.Ask({kSlab});
  EXPECT_THAT(books.asks, SizeIs(1));
  EXPECT_TRUE(books.book.LookAt(kStart + SlabBook::kPrompt).changed);
  books.Ask({kSlab});
  ASSERT_THAT(books.asks, SizeIs(2));
  EXPECT_THAT(books.asks[1].slabs, ElementsAre(kOther));
  // What it keeps is known: the others are asked for what is needed again.
  books.book.Closed(kFirst, {kDevice, books.asks[0].number, {}}, kStart);
  books.book.Closed(kSecond, {kDevice, books.asks[1].number, {kOther}}, kStart);
  books.Idle(kSecond, kOther);
  books.asks.clear();
  books.Ask({kSlab});
  EXPECT_THAT(books.asks, IsEmpty());
  books.book.Check();
}

TEST(SlabBook, WhoSaysNoIsAskedAgainLater) {
  Books books;
  books.Idle(kFirst, kSlab);
  books.Ask({kSlab});
  books.book.Closed(kFirst, {kDevice, books.asks[0].number, {}}, kStart);
  EXPECT_EQ(books.book.OpenedBy(kDevice, kSlab), Opened::kKept);
  books.asks.clear();
  books.Ask({kSlab});
  EXPECT_THAT(books.asks, IsEmpty());
  books.book.Check();
  const absl::Time later = kStart + SlabBook::kAskAgain;
  EXPECT_THAT(books.book.LookAt(later).silent, IsEmpty());
  EXPECT_EQ(books.book.OpenedBy(kDevice, kSlab), Opened::kIdle);
  books.Ask({kSlab}, later);
  EXPECT_THAT(books.asks, SizeIs(1));
}

TEST(SlabBook, WhoClosesNoneKeepsWhatItIsAskedFor) {
  Books books;
  books.book.AddSession(SessionId(3), kAnn, /*closes_slabs=*/false);
  books.Idle(SessionId(3), kSlab);
  EXPECT_EQ(books.book.OpenedBy(kDevice, kSlab), Opened::kIdle);
  EXPECT_TRUE(books.Ask({kSlab}));
  EXPECT_THAT(books.asks, IsEmpty());
  EXPECT_EQ(books.book.OpenedBy(kDevice, kSlab), Opened::kKept);
  books.book.Check();
}

TEST(SlabBook, IdleIsWhatNoSessionOfTheUserUses) {
  Books books;
  books.book.AddSession(SessionId(3), kAnn, /*closes_slabs=*/true);
  books.Idle(kFirst, kSlab);
  books.Idle(kFirst, kOther);
  books.Use(SessionId(3), kOther);
  books.Use(kSecond, kSlab);  // Another user's: no matter here.
  const auto idle = books.book.IdleOf(kAnn, kDevice, {});
  ASSERT_THAT(idle, SizeIs(1));
  EXPECT_EQ(idle[0].slab, kSlab);
  EXPECT_EQ(idle[0].bytes, 10u);
  SlabSpec spec;
  spec.id = kSlab;
  EXPECT_THAT(books.book.IdleOf(kAnn, kDevice, {spec}), IsEmpty());
  EXPECT_FALSE(books.book.Ask(kDevice, {kSlab}, kAnn, kStart, books.asks));
  ASSERT_THAT(books.asks, SizeIs(1));  // Bob's session uses it.
  EXPECT_EQ(books.asks[0].session, kFirst);
}

TEST(SlabBook, WhatAUserUsesCountsOnceAndWhole) {
  Books books;
  books.book.AddSession(SessionId(3), kAnn, /*closes_slabs=*/true);
  books.Use(kFirst, kSlab);
  books.Use(SessionId(3), kSlab);
  books.Use(kSecond, kOther);
  EXPECT_EQ(books.book.UsedBy(kAnn, kDevice, {}).bytes, 10u);
  EXPECT_EQ(books.book.UsedBy(kAnn, DeviceIndex(1), {}).bytes, 0u);
  SlabSpec more;
  more.id = kOther;
  more.bytes = 30;
  const SlabBook::InUse with = books.book.UsedBy(kAnn, kDevice, {more});
  EXPECT_EQ(with.bytes, 40u);
  EXPECT_EQ(with.largest, 30u);
  books.book.Leave(kFirst, kDevice, kSlab);
  books.book.Leave(SessionId(3), kDevice, kSlab);
  EXPECT_EQ(books.book.UsedBy(kAnn, kDevice, {}).bytes, 0u);
}

}  // namespace hoistd::slab_book_test
