#include "daemon/core/session_book.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/recount.h"
#include "tests/support/status_matchers.h"

namespace hoistd::session_book_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StatusIs;

const User kAnn(1);
const User kBob(2);
const SessionId kFirst(1);
const SessionId kSecond(2);
const DeviceIndex kDevice(0);

CopyRef Ref(uint32_t group) {
  return {{ModelId(1), GroupIndex(group)}, {OnDevice(kDevice), false}};
}

struct Books {
  QuotaBook quota{QuotaOptions{.each = {.sessions = 2, .device_bytes = {100}}}};
  SessionBook sessions{quota};

  void Open(SessionId id, User uid) {
    OpenSessionArgs args;
    args.peer.uid = uid;
    sessions.Open(id, args, absl::UnixEpoch());
  }
};

TEST(SessionBook, ACopyCountsForItsUserWhileAnyStageOfItIsThere) {
  Books books;
  books.Open(kFirst, kAnn);
  books.sessions.Claim(kFirst, Ref(0), 40);  // As soon as it waits.
  EXPECT_EQ(books.quota.Of(kAnn).On(kDevice), 40u);
  books.sessions.Claim(kFirst, Ref(0), 40);
  books.sessions.Check();
  books.sessions.Grant(kFirst, LeaseId(1), Ref(0));
  books.sessions.Refuse(kFirst, Ref(0));
  books.sessions.Check();
  EXPECT_EQ(books.quota.Of(kAnn).On(kDevice), 40u);
  EXPECT_EQ(books.sessions.EndLease(LeaseId(1)).copy, Ref(0));
  EXPECT_EQ(books.quota.Of(kAnn).On(kDevice), 0u);
  EXPECT_THAT(books.sessions.At(kFirst).claims, IsEmpty());
  EXPECT_EQ(books.sessions.At(kFirst).waiting, 0u);
  books.sessions.Check();
}

TEST(SessionBook, ACopyOfTwoSessionsCountsOnceForTheirUser) {
  Books books;
  books.Open(kFirst, kAnn);
  books.Open(kSecond, kAnn);
  books.sessions.Claim(kFirst, Ref(0), 80);
  EXPECT_OK(books.sessions.CheckClaim(kSecond, Ref(0), 80));
  EXPECT_THAT(books.sessions.CheckClaim(kSecond, Ref(1), 21),
              StatusIs(absl::StatusCode::kResourceExhausted));
  books.sessions.Claim(kSecond, Ref(0), 80);
  books.sessions.Grant(kSecond, LeaseId(1), Ref(0));
  EXPECT_EQ(books.quota.Of(kAnn).On(kDevice), 80u);
  books.sessions.Refuse(kFirst, Ref(0));
  EXPECT_EQ(books.quota.Of(kAnn).On(kDevice), 80u);
}

TEST(SessionBook, WhatAClosedSessionWaitedForCountsNoMore) {
  Books books;
  books.Open(kFirst, kAnn);
  books.Open(kSecond, kBob);
  books.sessions.Claim(kFirst, Ref(0), 10);
  books.sessions.Claim(kFirst, Ref(1), 10);
  books.sessions.Claim(kSecond, Ref(0), 10);
  books.sessions.Close(kFirst);
  EXPECT_EQ(books.quota.Of(kAnn), Holdings());
  EXPECT_EQ(books.quota.Of(kBob).On(kDevice), 10u);
  books.sessions.Refuse(kFirst, Ref(0));  // It is gone: nothing to give back.
  EXPECT_EQ(books.sessions.Find(kFirst), nullptr);
  books.sessions.Check();
}

TEST(SessionBook, ALeaseIsItsSessionsUntilItEnds) {
  Books books;
  books.Open(kFirst, kAnn);
  books.sessions.Claim(kFirst, Ref(3), 10);
  books.sessions.Grant(kFirst, LeaseId(7), Ref(3));
  ASSERT_NE(books.sessions.FindLease(LeaseId(7)), nullptr);
  EXPECT_EQ(books.sessions.FindLease(LeaseId(7))->session, kFirst);
  EXPECT_THAT(books.sessions.At(kFirst).leases, ElementsAre(LeaseId(7)));
  books.sessions.EndLease(LeaseId(7));
  EXPECT_EQ(books.sessions.FindLease(LeaseId(7)), nullptr);
  EXPECT_THAT(books.sessions.At(kFirst).leases, IsEmpty());
}

TEST(SessionBook, AUserHasAsManySessionsAsTheirQuota) {
  Books books;
  books.Open(kFirst, kAnn);
  EXPECT_OK(books.sessions.CheckMore(kAnn));
  books.Open(kSecond, kAnn);
  EXPECT_THAT(books.sessions.CheckMore(kAnn),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("quota.sessions")));
  EXPECT_OK(books.sessions.CheckMore(kBob));
  books.sessions.Close(kFirst);
  EXPECT_OK(books.sessions.CheckMore(kAnn));
}

TEST(SessionBook, WhatItCountsAnewIsWhatItCharged) {
  CopyTable copies;
  auto model = std::make_shared<Model>();
  model->id = ModelId(1);
  copies.AddModel(model).groups.push_back(
      {.group = std::make_shared<Group>()});  // Of no bytes: takes a page.
  Books books;
  books.Open(kFirst, kAnn);
  books.sessions.Claim(kFirst, Ref(0), copies.SpaceOf(Ref(0).key));
  QuotaBook counted;
  testing::CountInto(books.sessions, copies, counted);
  EXPECT_EQ(counted.users(), books.quota.users());
}

}  // namespace hoistd::session_book_test
