// Many leases apart at once: their order, how many are asked for at a time, and
// what becomes of those that nobody waits for any more.
#include <chrono>
#include <memory>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "client/src/session/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_in_place.h"

namespace hoist::session_apart_test {

using hoist_test::FakeInPlace;
using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kPlace = FakeInPlace::kInPlace;
constexpr size_t kWindow = 64;

std::vector<uint32_t> Upto(uint32_t count) {
  std::vector<uint32_t> groups(count);
  std::iota(groups.begin(), groups.end(), 0u);
  return groups;
}

hoist_connect_options OptionsFor(const std::string& path) {
  hoist_connect_options options = {};
  options.socket_path = path.c_str();
  options.client_name = "test";
  options.call_deadline_ms = 60'000;
  return options;
}

Result<HeldModel> Describe(Session& session, const char* name) {
  Hoist__V1__DescribeModelRequest request =
      HOIST__V1__DESCRIBE_MODEL_REQUEST__INIT;
  request.name = Text(name);
  return session.CallForModel(request.base);
}

class SessionApart : public ::testing::Test {
 protected:
  void SetUp() override {
    auto session = Session::Connect(OptionsFor(daemon_.path()));
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    session_ = std::move(session).value();
    auto model = Describe(*session_, "moe");
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = model->table;
  }
  void Stage(const std::vector<uint32_t>& groups,
             const Session::EachLease& each,
             const std::atomic<bool>* cancelled = nullptr) {
    Session::ApartOptions options;
    options.device = kPlace;
    options.deadline = milliseconds(60'000);
    options.cancelled = cancelled;
    session_->StageApart(*model_, groups, options, each);
  }
  // What was sent before has been dealt with.
  void Settle() { ASSERT_TRUE(Describe(*session_, "m").ok()); }

  FakeInPlace daemon_;
  std::shared_ptr<Session> session_;
  ModelPtr model_;
};

TEST_F(SessionApart, LeasesComeInOrderWithTheirSlabs) {
  std::vector<uint32_t> groups = Upto(FakeInPlace::kPieces);
  std::vector<uint64_t> ids;
  Stage(groups, [&](size_t i, Result<LeaseGrant> lease) {
    EXPECT_EQ(i, ids.size());
    EXPECT_TRUE(lease.ok()) << lease.status().ToString();
    if (!lease.ok()) return false;
    EXPECT_EQ(lease->group, i);
    EXPECT_EQ(lease->slab.bytes, FakeInPlace::kPiece);
    EXPECT_EQ(static_cast<uint8_t>(*lease->slab.memory),
              FakeInPlace::PieceByte(static_cast<uint32_t>(i)));
    ids.push_back(lease->id);
    return true;
  });
  EXPECT_THAT(ids, SizeIs(groups.size()));
  EXPECT_THAT(daemon_.leased(kPlace), SizeIs(groups.size()));
  session_->PostReleases(ids);
  Settle();
  EXPECT_THAT(daemon_.leased(kPlace), IsEmpty());
}

TEST_F(SessionApart, NoMoreThanAWindowIsAskedForAtATime) {
  daemon_.Hold(kPlace, true);
  size_t answered = 0;
  std::thread stages([&] {
    Stage(Upto(FakeInPlace::kPieces), [&](size_t, Result<LeaseGrant> lease) {
      answered += lease.ok() ? 1 : 0;
      return true;
    });
  });
  daemon_.AwaitStages(kPlace, kWindow);
  Settle();
  EXPECT_EQ(daemon_.stages(kPlace), kWindow);
  daemon_.LetOneCome();
  daemon_.AwaitStages(kPlace, kWindow + 1);
  daemon_.Hold(kPlace, false);
  daemon_.LetAllCome();
  stages.join();
  EXPECT_EQ(answered, FakeInPlace::kPieces);
}

TEST_F(SessionApart, ARefusalIsToldInItsPlaceAndOthersGoOn) {
  daemon_.SetRoom(kPlace, 3);
  std::vector<Code> codes;
  Stage(Upto(5), [&](size_t, Result<LeaseGrant> lease) {
    codes.push_back(lease.ok() ? Code::kOk : lease.status().code());
    return true;
  });
  EXPECT_THAT(codes,
              ElementsAre(Code::kOk, Code::kOk, Code::kOk,
                          Code::kResourceExhausted, Code::kResourceExhausted));
}

TEST_F(SessionApart, WhoStopsInTheMiddleGivesTheRestBack) {
  daemon_.Hold(kPlace, true);
  std::vector<size_t> seen;
  uint64_t kept = 0;
  std::thread stages([&] {
    Stage(Upto(FakeInPlace::kPieces), [&](size_t i, Result<LeaseGrant> lease) {
      seen.push_back(i);
      kept = lease->id;
      return false;
    });
  });
  daemon_.AwaitStages(kPlace, kWindow);
  daemon_.LetOneCome();
  stages.join();
  EXPECT_THAT(seen, ElementsAre(0));
  // Those that come when it has long returned go back by themselves, and none
  // was asked for after it had said so.
  daemon_.LetAllCome();
  Settle();
  Settle();  // Behind what the reading thread sent.
  EXPECT_EQ(daemon_.stages(kPlace), kWindow);
  EXPECT_THAT(daemon_.leased(kPlace), ElementsAre(0));
  session_->PostReleases({&kept, 1});
  Settle();
  EXPECT_THAT(daemon_.leased(kPlace), IsEmpty());
}

TEST_F(SessionApart, WhatHasComeAlreadyGoesBackToo) {
  std::vector<uint64_t> kept;
  Stage(Upto(10), [&](size_t i, Result<LeaseGrant> lease) {
    // By now some of those behind it have come as well.
    if (i == 0) Settle();
    kept.push_back(lease->id);
    return i < 2;
  });
  Settle();
  Settle();
  EXPECT_THAT(kept, SizeIs(3));
  EXPECT_THAT(daemon_.leased(kPlace), ElementsAre(0, 1, 2));
}

TEST_F(SessionApart, ACancelledOneEndsAtOnceAndGivesBackWhatComes) {
  daemon_.Hold(kPlace, true);
  std::atomic<bool> cancelled{false};
  std::vector<Code> codes;
  std::thread stages([&] {
    Stage(
        Upto(20),
        [&](size_t, Result<LeaseGrant> lease) {
          codes.push_back(lease.status().code());
          return true;
        },
        &cancelled);
  });
  daemon_.AwaitStages(kPlace, 20);
  cancelled = true;
  session_->WakeCalls();
  stages.join();
  EXPECT_THAT(codes, SizeIs(20));
  EXPECT_THAT(codes, Each(Code::kCancelled));
  daemon_.LetAllCome();
  Settle();
  Settle();
  EXPECT_THAT(daemon_.leased(kPlace), IsEmpty());
}

TEST_F(SessionApart, AHoistdThatGoesOnIsAskedAgainForAllThatAreOnTheirWay) {
  daemon_.Hold(kPlace, true);
  std::vector<uint32_t> got;
  std::thread stages([&] {
    Stage(Upto(80), [&](size_t, Result<LeaseGrant> lease) {
      EXPECT_TRUE(lease.ok()) << lease.status().ToString();
      if (lease.ok()) got.push_back(lease->group);
      return true;
    });
  });
  daemon_.AwaitStages(kPlace, kWindow);
  for (int i = 0; i < 10; ++i) daemon_.LetOneCome();
  daemon_.AwaitStages(kPlace, kWindow + 10);
  daemon_.Resume();
  daemon_.AwaitStages(kPlace, 2 * kWindow + 10);
  daemon_.Hold(kPlace, false);
  daemon_.LetAllCome();
  stages.join();
  EXPECT_EQ(got, Upto(80));
  EXPECT_EQ(daemon_.resumed(), 1u);
  EXPECT_THAT(daemon_.leased(kPlace), SizeIs(80));
}

TEST_F(SessionApart, TheSessionsEndAnswersAll) {
  daemon_.Hold(kPlace, true);
  std::vector<Code> codes;
  std::thread stages([&] {
    Stage(Upto(FakeInPlace::kPieces), [&](size_t, Result<LeaseGrant> lease) {
      codes.push_back(lease.status().code());
      return true;
    });
  });
  daemon_.AwaitStages(kPlace, kWindow);
  daemon_.HangUp();
  stages.join();
  EXPECT_THAT(codes, SizeIs(FakeInPlace::kPieces));
  EXPECT_THAT(codes, Each(Code::kUnavailable));
}

TEST_F(SessionApart, ASlabThatIsNotApartIsNoAnswer) {
  // One lease that shares a slab, as a stage with others has it.
  hoist_test::FakeDaemon daemon(
      [&](hoist_test::Peer& peer, const hoist_test::pb::ClientMessage& message,
          const std::vector<int>&) {
        if (!message.has_stage()) return false;
        const int fd = daemon.slab_fd();
        auto reply = daemon.LeaseReply(message.request_id(), 0, true);
        peer.Send(reply, {&fd, 1});
        return true;
      });
  auto session = Session::Connect(OptionsFor(daemon.path())).value();
  const ModelPtr model = Describe(*session, "m")->table;
  Session::ApartOptions apart;
  session->StageApart(
      *model, Upto(1), apart, [&](size_t, Result<LeaseGrant> lease) {
        EXPECT_EQ(lease.status().code(), Code::kInternal);
        EXPECT_THAT(lease.status().message(), HasSubstr("not asked for"));
        return true;
      });
  ASSERT_TRUE(Describe(*session, "m").ok());
  EXPECT_THAT(daemon.released(), SizeIs(1));
}

}  // namespace hoist::session_apart_test
