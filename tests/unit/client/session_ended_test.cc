// A session that ends while hoistd lives: what it gave stays this process's
// until it is given back here, and only then does the connection end.
#include <poll.h>

#include <atomic>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "tests/unit/client/fake_daemon.h"

namespace hoist_test::session_ended_test {

using hoist::Code;
using ::testing::HasSubstr;

// Tells the session why it ends when it is asked to describe "end".
class Ends {
 public:
  Ends()
      : daemon_([this](Peer& peer, const pb::ClientMessage& message,
                       const std::vector<int>&) {
          peer_ = &peer;
          if (!message.has_describe_model() ||
              message.describe_model().name() != "end") {
            return false;
          }
          pb::DaemonMessage word;  // Of request 0.
          word.set_code(14);
          word.set_message("an admin has ended this session");
          peer.Send(word);
          return true;
        }),
        session_(*hoist::Session::Connect(To(daemon_))),
        model_(*session_.DescribeModel("m")) {}

  hoist::Session& session() { return session_; }
  hoist::Model& model() { return model_; }
  // Returns once this side knows.
  void End() {
    const hoist::Status told = session_.DescribeModel("end").status();
    EXPECT_EQ(told.code(), Code::kUnavailable);
    EXPECT_THAT(told.message(), HasSubstr("an admin has ended"));
  }
  // What hoistd sees of the connection within so long.
  bool HungUp(int ms) {
    pollfd gone = {peer_.load()->socket(), POLLRDHUP, 0};
    return poll(&gone, 1, ms) > 0;
  }

 private:
  static hoist::ConnectOptions To(const FakeDaemon& daemon) {
    hoist::ConnectOptions options;
    options.socket_path = daemon.path();
    return options;
  }

  std::atomic<Peer*> peer_{nullptr};
  FakeDaemon daemon_;
  hoist::Session session_;
  hoist::Model model_;
};

constexpr int kLong = 60'000;

TEST(SessionEnded, ThatUsesNothingHangsUpAtOnce) {
  Ends ends;
  ends.End();
  EXPECT_TRUE(ends.HungUp(kLong));
}

TEST(SessionEnded, ALeaseKeepsItsMemoryUntilItIsReleased) {
  Ends ends;
  auto lease = ends.session().Stage(ends.model(), "a");
  ASSERT_TRUE(lease.ok());
  ends.End();
  EXPECT_FALSE(ends.HungUp(0));
  EXPECT_EQ(lease->Check().code(), Code::kUnavailable);
  EXPECT_FALSE(ends.HungUp(0));
  (void)lease->Release();
  EXPECT_TRUE(ends.HungUp(kLong));
}

TEST(SessionEnded, TheLastOfSeveralLeasesThatIsDroppedEndsIt) {
  Ends ends;
  auto first = ends.session().Stage(ends.model(), "a");
  ASSERT_TRUE(first.ok());
  {
    auto second = ends.session().Stage(ends.model(), "b");
    ASSERT_TRUE(second.ok());
    ends.End();
  }
  EXPECT_FALSE(ends.HungUp(0));
  first = hoist::Status(Code::kCancelled, "dropped");
  EXPECT_TRUE(ends.HungUp(kLong));
}

TEST(SessionEnded, APlanKeepsItsRingUntilItIsDropped) {
  Ends ends;
  {
    hoist::PlanOptions options;
    options.budget_bytes = 1 << 16;
    auto plan =
        ends.session().SetPlan(*ends.session().DescribeModel("deep"), options);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    ends.End();
    EXPECT_FALSE(ends.HungUp(0));
  }
  EXPECT_TRUE(ends.HungUp(kLong));
}

// Who closes a session says that what it had is not used any more.
TEST(SessionEnded, ClosingItGivesAllBackAtOnce) {
  Ends ends;
  auto lease = ends.session().Stage(ends.model(), "a");
  ASSERT_TRUE(lease.ok());
  ends.End();
  EXPECT_FALSE(ends.HungUp(0));
  ends.session().Close();
  EXPECT_TRUE(ends.HungUp(kLong));
}

}  // namespace hoist_test::session_ended_test
