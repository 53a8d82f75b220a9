// Many clients, and clients that do not read.
#include <sys/resource.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/component/session/session_fixture.h"

namespace hoistd::testing::session_crowd_test {

using ::hoist::v1::ClientMessage;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kExhausted =
    static_cast<int>(absl::StatusCode::kResourceExhausted);

// Sets this process's descriptor limit for as long as it lives.
class FdLimit {
 public:
  explicit FdLimit(rlim_t limit) {
    HOIST_CHECK(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit now = {limit, before_.rlim_max};
    HOIST_CHECK(setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~FdLimit() { HOIST_CHECK(setrlimit(RLIMIT_NOFILE, &before_) == 0); }

 private:
  rlimit before_;
};

TEST_F(SessionFixture, FiveHundredSessionsAreServedAtOnce) {
  // Three for each are in this process. Many systems give 1024 unless asked.
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_max < 2048) GTEST_SKIP() << "too few descriptors allowed";
  const FdLimit many(std::max<rlim_t>(files.rlim_cur, 2048));
  engine().verb<StageArgs>().Answer(
      [](auto call) { call.done(absl::NotFoundError("no model")); });
  std::vector<RawSession> clients;
  for (int i = 0; i < 500; ++i) {
    clients.emplace_back(path());
    ASSERT_TRUE(clients.back().valid());
    ASSERT_EQ(clients.back().Open().message.code(), 0);
  }
  for (RawSession& client : clients) {
    for (uint64_t i = 1; i <= 4; ++i) ASSERT_TRUE(client.Send(StageMessage(i)));
  }
  for (RawSession& client : clients) {
    for (uint64_t i = 1; i <= 4; ++i) {
      const auto reply = client.Receive();
      ASSERT_TRUE(reply.has_value());
      EXPECT_EQ(reply->message.request_id(), i);
    }
  }
  EXPECT_EQ(engine().open_sessions(), 500u);
  clients.clear();
  engine().WaitUntilClosed(500);
  EXPECT_EQ(engine().open_sessions(), 0u);
}

TEST_F(SessionFixture, OneSessionTooManyIsRefusedUntilAnotherCloses) {
  server_->Shutdown();
  options_.max_sessions = 2;
  Start();
  RawSession a(path()), b(path()), c(path());
  ASSERT_EQ(a.Open().message.code(), 0);
  ASSERT_EQ(b.Open().message.code(), 0);
  const auto refused = c.Open().message;
  EXPECT_EQ(refused.code(), kExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("max_sessions"));
  a.Close();
  engine().WaitUntilClosed(SessionId(1));
  EXPECT_EQ(c.Open().message.code(), 0);
}

// A client that says nothing is held back, not its memory bought with ours: it
// is not read from until it takes its replies in, and then gets all of them.
TEST_F(SessionFixture, AClientThatDoesNotReadIsHeldBackAndOthersGoOn) {
  engine().verb<DescribeModelArgs>().Answer(
      [](auto call) { call.done(ModelOf(1, 300)); });  // About 15 KiB.
  RawSession deaf(path());
  ASSERT_EQ(deaf.Open().message.code(), 0);
  RawSession other(path());
  ASSERT_EQ(other.Open().message.code(), 0);
  timeval at_once = {0, 1};  // A send that would wait is given up.
  ASSERT_EQ(setsockopt(deaf.socket(), SOL_SOCKET, SO_SNDTIMEO, &at_once,
                       sizeof(at_once)),
            0);
  // Until nothing goes in any more, though others are served.
  uint64_t sent = 0;
  int held = 0;
  while (held < 10) {
    if (deaf.Send(DescribeMessage(sent + 1))) {
      ++sent;
      held = 0;
    } else {
      ++held;
      EXPECT_EQ(other.Call(DescribeMessage(sent)).message.code(), 0);
    }
    ASSERT_LT(sent, 10'000u) << "it is read on and on";
  }
  // A refusal, for too many in flight, may overtake what the engine answers.
  std::set<uint64_t> answered;
  for (uint64_t i = 1; i <= sent; ++i) {
    const auto reply = deaf.Receive();
    ASSERT_TRUE(reply.has_value()) << "after " << i;
    answered.insert(reply->message.request_id());
    if (reply->message.code() != 0) {
      EXPECT_EQ(reply->message.code(), kExhausted);
    }
  }
  EXPECT_EQ(answered.size(), sent);
  EXPECT_EQ(deaf.Call(DescribeMessage(1)).message.code(), 0);
}

TEST_F(SessionFixture, RepliesThatGrowBeyondTheLimitEndTheConnection) {
  server_->Shutdown();
  options_.connection.max_outbound_bytes = 1 << 20;
  Start();
  RawSession deaf(path());
  ASSERT_EQ(deaf.Open().message.code(), 0);
  RawSession other(path());
  ASSERT_EQ(other.Open().message.code(), 0);
  // All are in flight before the first is answered.
  constexpr uint64_t kCount = 200;
  for (uint64_t i = 1; i <= kCount; ++i) {
    ASSERT_TRUE(deaf.Send(DescribeMessage(i)));
  }
  std::vector<Asked<DescribeModelArgs>> asked;
  while (asked.size() < kCount) {
    asked.push_back(engine().verb<DescribeModelArgs>().Next());
  }
  const ModelPtr model = ModelOf(1, 300);
  for (auto& call : asked) call.done(model);
  deaf.WaitUntilDaemonHangsUp();
  // What it was given it may still use.
  EXPECT_THAT(engine().closed(), IsEmpty());
  deaf.Close();
  engine().WaitUntilClosed(SessionId(1));
  EXPECT_THAT(engine().closed(), ElementsAre(SessionId(1)));
  EXPECT_EQ(other.Call(ClientMessage()).message.code(), 3);
}

TEST_F(SessionFixture, AClientThatReadsLateGetsEveryReplyInOrder) {
  engine().verb<DescribeModelArgs>().Answer(
      [](auto call) { call.done(ModelOf(1, 300)); });
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  constexpr uint64_t kCount = 200;  // 3 MB; the socket's buffer takes 0.2.
  for (uint64_t i = 1; i <= kCount; ++i) {
    ASSERT_TRUE(client.Send(DescribeMessage(i)));
  }
  Settle();
  for (uint64_t i = 1; i <= kCount; ++i) {
    const auto reply = client.Receive();
    ASSERT_TRUE(reply.has_value()) << "after " << i;
    ASSERT_EQ(reply->message.request_id(), i);
  }
}

TEST_F(SessionFixture, AReplyLargerThanTheLimitStillArrives) {
  server_->Shutdown();
  options_.connection.max_outbound_bytes = 4096;
  Start();
  engine().verb<DescribeModelArgs>().Answer(
      [](auto call) { call.done(ModelOf(1, 20'000)); });
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  const auto reply = client.Call(DescribeMessage(1)).message;
  EXPECT_EQ(reply.model().groups(0).tensors_size(), 20'000);
}

TEST_F(SessionFixture, OutOfDescriptorsClientsAreToldAndLaterServed) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan checks virtual calls through a pipe, which needs "
                  "descriptors";
#endif
  std::vector<hoist::UniqueFd> sockets;
  RawSession served(path());
  ASSERT_EQ(served.Open().message.code(), 0);
  RawSession refused(path());  // Accepted; a place for its descriptor is had.
  ASSERT_EQ(refused.Open().message.code(), 0);
  refused.Close();
  engine().WaitUntilClosed(SessionId(2));
  Barrier(served);  // The refused one's descriptors are closed by now, too.
  {
    // The next client's own socket takes the last descriptor there is.
    hoist::UniqueFd lowest = DevNull();
    const auto limit = static_cast<rlim_t>(lowest.get()) + 1;
    lowest.reset();
    FdLimit few(limit);
    RawSession unlucky(path());
    ASSERT_TRUE(unlucky.valid());
    const auto reply = unlucky.Receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->message.code(), kExhausted);
    EXPECT_THAT(reply->message.message(), HasSubstr("LimitNOFILE"));
    EXPECT_EQ(served.Call(ClientMessage()).message.code(), 3);
  }
  RawSession lucky(path());
  EXPECT_EQ(lucky.Open().message.code(), 0);
}

}  // namespace hoistd::testing::session_crowd_test
