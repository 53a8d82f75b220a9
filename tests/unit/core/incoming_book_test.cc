#include "daemon/core/incoming_book.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/recount.h"

namespace hoistd::incoming_book_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const User kAnn(1);
const absl::Time kStart = absl::UnixEpoch();
constexpr uint64_t kPage = 4096;

struct Books {
  QuotaBook quota;
  IncomingBook incoming{quota};

  void Add(uint64_t request, uint64_t session) {
    Incoming incoming_image;
    incoming_image.request = RequestId(request);
    incoming_image.session = SessionId(session);
    incoming_image.owner = kAnn;
    auto group = std::make_shared<Group>();
    group->image_bytes = kPage;
    incoming_image.group = group;
    incoming_image.deadline = kStart + absl::Seconds(request);
    incoming.Add(incoming_image);
  }
  uint64_t Published() const {
    return quota.Of(kAnn).Of(Quota::kPublishedBytes);
  }
  void Check() const {
    QuotaBook counted;
    testing::CountInto(incoming, counted);
    EXPECT_EQ(counted.users(), quota.users());
  }
};

TEST(IncomingBook, AnImageCountsFromWhenItHasSpaceUntilItIsDropped) {
  Books books;
  books.Add(1, 1);
  EXPECT_EQ(books.Published(), 0u);
  books.incoming.Place(RequestId(1), 0);
  EXPECT_EQ(books.Published(), kPage);
  books.Check();
  books.incoming.Start(RequestId(1), TransferId(5));
  const Incoming done = books.incoming.Take(TransferId(5));
  EXPECT_TRUE(books.incoming.empty());
  EXPECT_EQ(books.Published(), kPage);  // Its model's, unless it is dropped.
  EXPECT_TRUE(books.incoming.Drop(done));
  EXPECT_EQ(books.Published(), 0u);
}

TEST(IncomingBook, WhatHasNoSpaceCountsNothing) {
  Books books;
  books.Add(1, 1);
  EXPECT_FALSE(books.incoming.Drop(books.incoming.Take(RequestId(1))));
  EXPECT_EQ(books.Published(), 0u);
  EXPECT_TRUE(books.incoming.empty());
}

TEST(IncomingBook, WhatHasStartedWaitsForNothingButItsEnd) {
  Books books;
  books.Add(1, 1);
  books.Add(2, 1);
  books.Add(3, 2);
  EXPECT_EQ(books.incoming.NextDeadline(), kStart + absl::Seconds(1));
  EXPECT_THAT(books.incoming.WaitingOf(SessionId(1)),
              ElementsAre(RequestId(1), RequestId(2)));
  EXPECT_THAT(books.incoming.Late(kStart + absl::Seconds(2)),
              ElementsAre(RequestId(1), RequestId(2)));
  books.incoming.Start(RequestId(1), TransferId(5));
  EXPECT_THAT(books.incoming.Waiting(),
              ElementsAre(RequestId(2), RequestId(3)));
  EXPECT_THAT(books.incoming.WaitingOf(SessionId(1)),
              ElementsAre(RequestId(2)));
  EXPECT_THAT(books.incoming.Late(kStart + absl::Seconds(2)),
              ElementsAre(RequestId(2)));
  EXPECT_EQ(books.incoming.NextDeadline(), kStart + absl::Seconds(2));
  EXPECT_EQ(books.incoming.Take(TransferId(5)).request, RequestId(1));
}

TEST(IncomingBook, WhatCanNeverHaveRoomIsLateAtOnce) {
  Books books;
  books.Add(9, 1);
  EXPECT_THAT(books.incoming.Late(kStart), IsEmpty());
  books.incoming.Block(RequestId(9), 4, {absl::UnavailableError(""), {}, 0});
  EXPECT_EQ(books.incoming.At(RequestId(9)).tried_at, 4u);
  books.incoming.GiveUp(RequestId(9), kStart);
  EXPECT_THAT(books.incoming.Late(kStart), ElementsAre(RequestId(9)));
}

}  // namespace hoistd::incoming_book_test
