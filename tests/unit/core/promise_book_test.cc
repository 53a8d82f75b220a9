#include "daemon/core/promise_book.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::promise_book_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

const Zone kOwn = {.readers = 1};
const Zone kOther = {.readers = 2};

CopyRef Ref(uint32_t group) {
  return {{ModelId(1), GroupIndex(group)}, {OnDevice(DeviceIndex(0)), false}};
}

TEST(PromiseBook, ACopyCountsOnceWhoeverKeepsIt) {
  PromiseBook book;
  book.Promise(Ref(0), kOwn, 10);
  book.Promise(Ref(0), kOwn, 10);
  book.SetBusy(Ref(0), kOwn, 10);
  book.SetBusy(Ref(1), kOwn, 5);
  book.SetBusy(Ref(2), kOther, 7);
  EXPECT_THAT(book.ByZone(), ElementsAre(Pair(kOwn, 15), Pair(kOther, 7)));
  EXPECT_THAT(book.FirmCopies(), ElementsAre(Ref(0), Ref(1), Ref(2)));
}

TEST(PromiseBook, ACopyIsFirmUntilTheLastLetsGo) {
  PromiseBook book;
  book.Promise(Ref(0), kOwn, 10);
  book.Promise(Ref(0), kOwn, 10);
  book.SetBusy(Ref(0), kOwn, 10);
  book.Unpromise(Ref(0));
  EXPECT_TRUE(book.Promised(Ref(0)));
  book.Unpromise(Ref(0));
  EXPECT_FALSE(book.Promised(Ref(0)));
  EXPECT_FALSE(book.any());
  EXPECT_TRUE(book.IsFirm(Ref(0)));
  book.SetIdle(Ref(0));
  EXPECT_FALSE(book.IsFirm(Ref(0)));
  EXPECT_THAT(book.ByZone(), IsEmpty());
  EXPECT_TRUE(book == PromiseBook());
}

TEST(PromiseBook, ARingIsFirmWhileItIsThere) {
  PromiseBook book;
  book.SetBusy(Ref(0), kOwn, 10);
  book.AddRing(kOwn, 100);
  book.AddRing(kOther, 30);
  EXPECT_THAT(book.ByZone(), ElementsAre(Pair(kOwn, 110), Pair(kOther, 30)));
  EXPECT_THAT(book.rings(), ElementsAre(Pair(kOwn, 100), Pair(kOther, 30)));
  EXPECT_FALSE(book.any());  // It is no copy.
  book.RemoveRing(kOther, 30);
  book.RemoveRing(kOwn, 100);
  EXPECT_THAT(book.ByZone(), ElementsAre(Pair(kOwn, 10)));
  book.SetIdle(Ref(0));
  EXPECT_TRUE(book == PromiseBook());
}

TEST(PromiseBook, WhatWasNeverBusyLeavesNothing) {
  PromiseBook book;
  book.SetIdle(Ref(0));
  EXPECT_TRUE(book == PromiseBook());
}

}  // namespace hoistd::promise_book_test
