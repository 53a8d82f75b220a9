// A session goes on with the next hoistd, over the socket that it has.
#include <utility>
#include <vector>

#include "tests/component/session/session_fixture.h"

namespace hoistd::testing::session_resume_test {

using ::hoist::v1::ClientMessage;
using ::hoist::v1::DaemonMessage;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kGeneration = 7;

// Clients, and a server that is gone.
class ResumingSessions : public SessionFixture {
 protected:
  void SetUp() override {
    options_.keeps = true;
    SessionFixture::SetUp();
  }
  void TearDown() override {
    sockets_.clear();
    SessionFixture::TearDown();
  }

  // Of a client that can go on.
  void Open(RawSession& client) {
    engine().verb<OpenSessionArgs>().Answer([this](auto call) {
      sockets_.push_back(call.args.socket);
      call.done(engine().NewSession());
    });
    ClientMessage open;
    open.set_request_id(1);
    open.mutable_open_session()->set_resumes(true);
    ASSERT_TRUE(client.Send(open));
    ASSERT_EQ(client.Receive()->message.code(), 0);
  }

  // The server ends, and another takes over what the engine had.
  void Succeed() {
    server_->Shutdown();
    server_.reset();
    EXPECT_THAT(engine().closed(), IsEmpty());
    options_.generation = kGeneration;
    uint64_t next = 1;
    for (const auto& socket : sockets_) {
      options_.resumed.push_back({SessionId(next++), Peer(), socket});
    }
    sockets_.clear();
    Start();
    options_.resumed.clear();  // The server's now.
  }

  static ClientMessage Answer(uint64_t number) {
    ClientMessage message;
    message.set_request_id(20);
    message.mutable_resume()->set_number(number);
    message.mutable_resume()->add_lease_ids(5);
    message.mutable_resume()->add_plan_ids(6);
    message.mutable_resume()->add_slabs()->set_slab_id(8);
    return message;
  }

  // The same, but that none goes on.
  void SucceedWithout(const absl::Status& why) {
    server_->Shutdown();
    server_.reset();
    for (const auto& socket : std::exchange(sockets_, {})) {
      options_.resumed.push_back(
          {SessionId(1), Peer(), socket, hoist::kProtocolVersion, why});
    }
    Start();
    options_.resumed.clear();
  }

  // Says that it goes on.
  static void ExpectTold(RawSession& client) {
    const auto told = client.Receive();
    ASSERT_TRUE(told.has_value());
    EXPECT_EQ(told->message.request_id(), 0u);
    EXPECT_EQ(told->message.resumed().number(), kGeneration);
  }

  std::vector<std::shared_ptr<hoist::UniqueFd>> sockets_;
};

TEST_F(ResumingSessions, GoOnOverTheirSockets) {
  RawSession client(path());
  Open(client);
  Succeed();
  ExpectTold(client);
  ASSERT_TRUE(client.Send(Answer(kGeneration)));
  auto call = engine().verb<ResumeArgs>().Next();
  EXPECT_EQ(call.session, SessionId(1));
  EXPECT_THAT(call.args.leases, ElementsAre(LeaseId(5)));
  EXPECT_THAT(call.args.plans, ElementsAre(PlanId(6)));
  EXPECT_THAT(call.args.slabs,
              ElementsAre(OpenSlab{DeviceIndex(0), SlabId(8)}));
  Resumed lost;
  lost.lost_plans = {PlanId(6)};
  call.done(std::move(lost));
  const auto answer = client.Receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->message.request_id(), 20u);
  EXPECT_THAT(answer->message.resume().lost_plan_ids(), ElementsAre(6));
  Barrier(client);
  client.Close();
  engine().WaitUntilClosed(SessionId(1));
}

// The last hoistd died before it said that the session is open.
TEST_F(ResumingSessions, AreOpenedForWhoAsksForThatAgain) {
  RawSession client(path());
  Open(client);
  Succeed();
  ExpectTold(client);
  ASSERT_TRUE(client.Send(Answer(kGeneration)));
  ClientMessage open;
  open.set_request_id(21);
  open.mutable_open_session()->set_resumes(true);
  ASSERT_TRUE(client.Send(open));
  EXPECT_EQ(client.Receive()->message.open_session().session_id(), 1u);
  engine().verb<ResumeArgs>().Next().done(Resumed());
  EXPECT_EQ(client.Receive()->message.request_id(), 20u);
  Barrier(client);
}

TEST_F(ResumingSessions, HearWhyTheyEnd) {
  RawSession client(path());
  Open(client);
  // What they had asked for is not looked at, nor in the way.
  server_->Shutdown();
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(client.Send(StageMessage(i)));
  SucceedWithout(absl::UnavailableError("connect again"));
  const auto told = client.Receive();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->message.request_id(), 0u);
  EXPECT_EQ(told->message.code(), static_cast<int>(hoist::Code::kUnavailable));
  EXPECT_EQ(told->message.message(), "connect again");
  EXPECT_EQ(client.Receive(), std::nullopt);
  // The engine never knew it, and others are served.
  RawSession other(path());
  Open(other);
  EXPECT_THAT(engine().closed(), IsEmpty());
}

TEST_F(ResumingSessions, ForgetWhatWasAskedOfTheLastHoistd) {
  RawSession client(path());
  Open(client);
  server_->Shutdown();
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(client.Send(StageMessage(i)));
  const hoist::UniqueFd null = DevNull();
  ClientMessage with_fds = DescribeMessage(9);
  ASSERT_TRUE(client.Send(with_fds, {{null.get()}}));
  Succeed();
  ExpectTold(client);
  ASSERT_TRUE(client.Send(StageMessage(10)));
  // Of the hoistd before: it had not been read yet.
  ASSERT_TRUE(client.Send(Answer(kGeneration - 1)));
  ASSERT_TRUE(client.Send(Answer(kGeneration)));
  ASSERT_TRUE(client.Send(StageMessage(11)));
  engine().verb<ResumeArgs>().Next().done(Resumed());
  engine().verb<StageArgs>().Next().done(absl::NotFoundError("nothing"));
  EXPECT_EQ(client.Receive()->message.request_id(), 20u);
  EXPECT_EQ(client.Receive()->message.request_id(), 11u);
}

TEST_F(ResumingSessions, EndWithTheirClients) {
  RawSession client(path());
  Open(client);
  RawSession other(path());
  Open(other);
  server_->Shutdown();
  client.Close();
  Succeed();
  engine().WaitUntilClosed(SessionId(1));
  ExpectTold(other);
  other.Close();
  engine().WaitUntilClosed(SessionId(2));
}

// The last hoistd had told it to end, and died before its client let go.
TEST_F(ResumingSessions, ThatWereToldToEndLiveUntilTheirClientsHangUp) {
  RawSession client(path());
  Open(client);
  RawSession other(path());
  Open(other);
  engine().Say(absl::UnavailableError("an admin has ended this session"));
  ASSERT_NE(other.Receive()->message.code(), 0);
  Succeed();
  ExpectTold(client);
  ASSERT_TRUE(client.Send(Answer(kGeneration)));
  engine().verb<ResumeArgs>().Next().done(Resumed());
  ASSERT_TRUE(client.Receive().has_value());
  EXPECT_THAT(engine().closed(), IsEmpty());
  other.Close();
  engine().WaitUntilClosed(SessionId(2));
}

TEST_F(ResumingSessions, EndIfTheirClientsNeverAnswer) {
  RawSession client(path());
  Open(client);
  Succeed();
  ExpectTold(client);
  for (uint64_t i = 0; !client.DaemonHungUp(); ++i) {
    ASSERT_LT(i, 100'000u);
    ASSERT_TRUE(client.Send(StageMessage(i)));
  }
  client.Close();
  engine().WaitUntilClosed(SessionId(1));
}

TEST_F(ResumingSessions, AreNotThoseOfClientsThatCannot) {
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  server_->Shutdown();
  engine().WaitUntilClosed(SessionId(1));
  EXPECT_EQ(client.Receive(), std::nullopt);
}

TEST_F(ResumingSessions, AnAnswerThatNobodyAskedForIsRefused) {
  RawSession client(path());
  Open(client);
  ASSERT_TRUE(client.Send(Answer(kGeneration)));
  const auto answer = client.Receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->message.code(),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  Barrier(client);
}

}  // namespace hoistd::testing::session_resume_test
