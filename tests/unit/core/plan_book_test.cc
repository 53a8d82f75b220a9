#include "daemon/core/plan_book.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/recount.h"
#include "tests/support/status_matchers.h"

namespace hoistd::plan_book_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using testing::StatusIs;

const User kAnn(1);
const User kBob(2);
const SessionId kFirst(1);
const SessionId kSecond(2);
const ModelId kModel(9);
const DeviceIndex kDevice(0);
const Zone kZone = {.readers = 1};
const absl::Time kStart = absl::UnixEpoch();
constexpr uint64_t kPage = 4096;
constexpr uint64_t kRing = 100;

CopyRef Ref(uint32_t group) {
  return {{kModel, GroupIndex(group)}, {OnDevice(kDevice), false}};
}

CopyRef OnHostRef(uint32_t group) {
  return {{kModel, GroupIndex(group)}, kHost};
}

// Four groups of a page each; Ann has the first session, Bob the second.
struct Books {
  CopyTable copies;
  QuotaBook quota{QuotaOptions{.each = {.plans = 2}}};
  SessionBook sessions{quota};
  std::vector<PromiseBook> promises = std::vector<PromiseBook>(1);
  PlanBook plans{promises, copies, sessions, quota};

  Books() {
    auto model = std::make_shared<Model>();
    model->id = kModel;
    ModelEntry& entry = copies.AddModel(model);
    auto group = std::make_shared<Group>();
    group->image_bytes = kPage;
    entry.groups.resize(4);
    for (GroupEntry& has : entry.groups) has.group = group;
    OpenSessionArgs args;
    args.peer.uid = kAnn;
    sessions.Open(kFirst, args, kStart);
    args.peer.uid = kBob;
    sessions.Open(kSecond, args, kStart);
  }
  // Group 0 is streamed; `resident` is resident.
  void Add(uint64_t request, SessionId session, User uid, uint32_t resident) {
    PendingPlan pending;
    pending.session = session;
    pending.uid = uid;
    pending.deadline = kStart + absl::Seconds(request);
    pending.grant.model = kModel;
    pending.grant.device = kDevice;
    pending.grant.ring_bytes = kRing;
    pending.grant.groups = {{.group = GroupIndex(0)},
                            {.group = GroupIndex(resident), .resident = true}};
    plans.Add(RequestId(request), pending);
  }
  // The request's number becomes the plan's.
  PlanId Stand(uint64_t request) {
    plans.Stand(RequestId(request), PlanId(request), OwnerId(request),
                /*ring_offset=*/0, kZone);
    return PlanId(request);
  }
  uint64_t Charged(User uid) const { return quota.Of(uid).On(kDevice); }
  // That totals are what is counted anew.
  void Check() const {
    plans.Check();
    QuotaBook counted;
    testing::CountInto(sessions, copies, counted);
    testing::CountInto(plans, copies, counted);
    EXPECT_EQ(counted.users(), quota.users());
    EXPECT_TRUE(plans.CountPromises() == promises);
  }
};

TEST(PlanBook, APlanIsChargedFromWhenItWaitsAndPromisedWhenItStands) {
  Books books;
  books.Add(1, kFirst, kAnn, 1);
  EXPECT_EQ(books.Charged(kAnn), kRing + kPage);
  EXPECT_FALSE(books.promises[0].any());
  books.Check();
  books.Stand(1);
  EXPECT_EQ(books.Charged(kAnn), kRing + kPage);
  EXPECT_TRUE(books.promises[0].Promised(Ref(1)));
  EXPECT_THAT(books.promises[0].ByZone(),
              ElementsAre(Pair(kZone, kRing + kPage)));
  EXPECT_THAT(books.plans.waiting(), IsEmpty());
  books.Check();
}

TEST(PlanBook, AnEndedPlanKeepsItsRingUntilItIsGone) {
  Books books;
  books.Add(1, kFirst, kAnn, 1);
  const PlanId id = books.Stand(1);
  books.plans.End(id);
  EXPECT_EQ(books.Charged(kAnn), kRing);
  EXPECT_EQ(books.plans.RingBytes({.device = kDevice}), kRing);
  EXPECT_THAT(books.promises[0].ByZone(), ElementsAre(Pair(kZone, kRing)));
  EXPECT_EQ(books.plans.FindLive(id), nullptr);
  EXPECT_THAT(books.plans.Models(), ElementsAre(kModel));
  books.Check();
  books.plans.Erase(id);
  EXPECT_EQ(books.Charged(kAnn), 0u);
  EXPECT_EQ(books.plans.RingBytes({.device = kDevice}), 0u);
  EXPECT_THAT(books.promises[0].ByZone(), IsEmpty());
  EXPECT_THAT(books.plans.Models(), IsEmpty());
  books.Check();
}

TEST(PlanBook, WhatIsNotToBeGivesAllBack) {
  Books books;
  const Holdings before = books.quota.Of(kAnn);
  books.Add(1, kFirst, kAnn, 1);
  books.plans.Drop(RequestId(1));
  EXPECT_EQ(books.quota.Of(kAnn), before);
  books.Check();
}

TEST(PlanBook, AUserHasAsManyPlansAsTheirQuotaThoseThatWaitIncluded) {
  Books books;
  books.Add(1, kFirst, kAnn, 1);
  EXPECT_OK(books.plans.CheckMore(kAnn));
  books.Add(2, kFirst, kAnn, 1);
  EXPECT_THAT(books.plans.CheckMore(kAnn),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_OK(books.plans.CheckMore(kBob));
}

TEST(PlanBook, RingsAreCountedAsAFilterSays) {
  Books books;
  books.Add(1, kFirst, kAnn, 1);
  books.Add(2, kSecond, kBob, 1);
  const PlanId id = books.Stand(1);
  const PlanBook& plans = books.plans;
  EXPECT_EQ(plans.RingBytes({.device = kDevice}), 2 * kRing);
  EXPECT_EQ(plans.RingBytes({.device = DeviceIndex(1)}), 0u);
  EXPECT_EQ(plans.RingBytes({.device = kDevice, .session = kSecond}), kRing);
  EXPECT_EQ(plans.RingBytes({.device = kDevice, .uid = kAnn}), kRing);
  EXPECT_EQ(plans.RingBytes({.device = kDevice, .uid = kAnn, .except = id}),
            0u);
}

TEST(PlanBook, WhatIsPromisedLeavesOutWhatOnlyALeavingPlanNeeds) {
  Books books;
  books.Add(1, kFirst, kAnn, 1);
  books.Add(2, kSecond, kBob, 2);
  const PlanId first = books.Stand(1);
  books.Stand(2);
  books.sessions.Claim(kFirst, Ref(1), kPage);  // Its plan's resident.
  books.sessions.Claim(kFirst, Ref(3), kPage);
  books.copies.At(Ref(0)).pinned = true;
  const PlanBook& plans = books.plans;
  EXPECT_THAT(plans.PromisedCopies(kDevice, kFirst, std::nullopt),
              ElementsAre(Ref(0), Ref(1), Ref(2), Ref(3)));
  EXPECT_THAT(plans.PromisedCopies(kDevice, kFirst, first),
              ElementsAre(Ref(0), Ref(2), Ref(3)));
  // Another session's claim on the same copy stays.
  books.sessions.Claim(kSecond, Ref(1), kPage);
  EXPECT_THAT(plans.PromisedCopies(kDevice, kFirst, first),
              ElementsAre(Ref(0), Ref(1), Ref(2), Ref(3)));
}

TEST(PlanBook, ASessionsOwnCopiesAreItsLeasesAndItsPlansResidents) {
  Books books;
  books.Add(1, kFirst, kAnn, 1);
  books.Add(2, kFirst, kAnn, 2);  // Waits: its user's, not yet promised.
  books.Stand(1);
  books.sessions.Claim(kFirst, Ref(3), kPage);
  const PlanBook& plans = books.plans;
  EXPECT_THAT(plans.OwnCopies(kFirst, kDevice, std::nullopt),
              ElementsAre(Ref(1), Ref(3)));
  EXPECT_THAT(plans.OwnCopies(kFirst, kDevice, PlanId(1)), ElementsAre(Ref(3)));
  EXPECT_THAT(plans.OwnCopies(kSecond, kDevice, std::nullopt), IsEmpty());
  EXPECT_THAT(plans.UserCopies(kAnn, kDevice, std::nullopt),
              ElementsAre(Ref(1), Ref(2), Ref(3)));
}

TEST(PlanBook, AGroupThatSeveralPlansHoldCountsOnceUntilTheLastLetsGo) {
  Books books;
  books.Add(1, kFirst, kAnn, 1);
  books.Add(2, kSecond, kBob, 1);
  const PlanId first = books.Stand(1);
  const PlanId second = books.Stand(2);
  EXPECT_TRUE(books.plans.Ask(first, GroupIndex(0)));
  EXPECT_FALSE(books.plans.Ask(first, GroupIndex(0)));
  EXPECT_TRUE(books.plans.Ask(second, GroupIndex(0)));
  EXPECT_EQ(books.plans.on_host().size(), 1u);
  EXPECT_TRUE(books.quota.Uses(kAnn, OnHostRef(0)));
  EXPECT_TRUE(books.plans.Hold(first, GroupIndex(0)));
  books.Check();
  books.plans.Unask(second, GroupIndex(0));
  books.plans.Unask(second, GroupIndex(0));  // It was: nothing more.
  EXPECT_FALSE(books.quota.Uses(kBob, OnHostRef(0)));
  EXPECT_EQ(books.plans.on_host().size(), 1u);
  books.plans.Unhold(first, GroupIndex(0));
  EXPECT_TRUE(books.plans.on_host().empty());
  books.Check();
}

TEST(PlanBook, AnEndedPlanHoldsNothingMore) {
  Books books;
  books.Add(1, kFirst, kAnn, 1);
  const PlanId id = books.Stand(1);
  books.plans.Ask(id, GroupIndex(0));
  books.plans.Ask(id, GroupIndex(2));
  books.plans.End(id);
  EXPECT_FALSE(books.plans.Hold(id, GroupIndex(0)));
  EXPECT_EQ(books.plans.on_host().size(), 1u);
  books.Check();
  books.plans.Erase(id);  // With what it still asked for.
  EXPECT_TRUE(books.plans.on_host().empty());
  books.Check();
}

TEST(PlanBook, WhoWouldNotWaitWaitsForThoseWhoAnswerAtOnce) {
  Books books;
  books.Add(1, kFirst, kAnn, 1);
  EXPECT_EQ(books.plans.NextDeadline(), kStart + absl::Seconds(1));
  EXPECT_THAT(books.plans.Late(kStart), IsEmpty());
  EXPECT_THAT(books.plans.Late(kStart + absl::Seconds(1)),
              ElementsAre(RequestId(1)));
  PendingPlan hasty = books.plans.waiting().at(RequestId(1));
  books.plans.Drop(RequestId(1));
  hasty.no_wait = true;
  hasty.deadline = kStart;
  books.plans.Add(RequestId(2), hasty);
  EXPECT_EQ(books.plans.NextDeadline(), absl::InfiniteFuture());
  EXPECT_THAT(books.plans.Late(kStart), ElementsAre(RequestId(2)));
  books.plans.Block(RequestId(2), 5, {absl::UnavailableError("asked"), {}, 0});
  EXPECT_THAT(books.plans.Late(kStart), IsEmpty());
  EXPECT_EQ(books.plans.waiting().at(RequestId(2)).tried_at, 5u);
}

}  // namespace hoistd::plan_book_test
