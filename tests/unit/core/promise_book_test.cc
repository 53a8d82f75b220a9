#include "daemon/core/promise_book.h"

#include "gtest/gtest.h"

namespace hoistd {
namespace {

CopyRef Ref(uint32_t group) {
  return {{ModelId(1), GroupIndex(group)}, {OnDevice(DeviceIndex(0)), false}};
}

TEST(PromiseBook, ACopyCountsOnceWhoeverKeepsIt) {
  PromiseBook book;
  book.Promise(Ref(0), 10);
  book.Promise(Ref(0), 10);
  book.SetBusy(Ref(0), 10, true);
  book.SetBusy(Ref(1), 5, true);
  EXPECT_EQ(book.BytesWith(Ref(0), 10), 15u);
  EXPECT_EQ(book.BytesWith(Ref(2), 7), 22u);
}

TEST(PromiseBook, ACopyIsFirmUntilTheLastLetsGo) {
  PromiseBook book;
  book.Promise(Ref(0), 10);
  book.Promise(Ref(0), 10);
  book.SetBusy(Ref(0), 10, true);
  book.Unpromise(Ref(0));
  EXPECT_TRUE(book.Promised(Ref(0)));
  book.Unpromise(Ref(0));
  EXPECT_FALSE(book.Promised(Ref(0)));
  EXPECT_FALSE(book.any());
  EXPECT_EQ(book.BytesWith(Ref(1), 0), 10u);
  book.SetBusy(Ref(0), 10, false);
  EXPECT_EQ(book.BytesWith(Ref(1), 0), 0u);
  EXPECT_TRUE(book == PromiseBook());
}

TEST(PromiseBook, WhatWasNeverBusyLeavesNothing) {
  PromiseBook book;
  book.SetBusy(Ref(0), 10, false);
  EXPECT_TRUE(book == PromiseBook());
}

}  // namespace
}  // namespace hoistd
