// libhoist.so's permits; the test plays hoistd. On an emulated device, whose
// stream is the caller's thread.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist_copy_permit.h"
#include "tests/unit/client/fake_permit.h"
#include "tests/unit/client/plan_worker.h"

namespace hoist_test::copy_permit_test {

using Code = hoist::Code;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kPiece = hoist::CopyPermit::kPieceBytes;

class PermitTest : public ::testing::Test {
 protected:
  explicit PermitTest() : daemon_(script_.script()) {}

  hoist::CopyPermit Open(const hoist::PermitOptions& options = {}) {
    session_.emplace(ConnectTo(daemon_));
    return *hoist::CopyPermit::Open(*session_, options);
  }
  hoist::Status TryToOpen(const hoist::PermitOptions& options = {}) {
    session_.emplace(ConnectTo(daemon_));
    return hoist::CopyPermit::Open(*session_, options).status();
  }

  PermitScript script_;
  FakeDaemon daemon_;
  std::optional<hoist::Session> session_;
};

TEST_F(PermitTest, IsOpenedWithItsShareAndClosedOnce) {
  {
    const hoist::CopyPermit permit =
        Open({.weight = 3, .priority = -2, .max_bytes_per_second = 1'000'000});
    EXPECT_EQ(permit.stats().grants, 1);
  }
  ASSERT_EQ(script_.opened().size(), 1u);
  const pb::OpenPermitRequest opened = script_.opened()[0];
  EXPECT_EQ(opened.device(), 0u);
  EXPECT_EQ(opened.share().weight(), 3u);
  EXPECT_EQ(opened.share().priority(), -2);
  EXPECT_EQ(opened.share().max_bytes_per_second(), 1'000'000u);
  EXPECT_THAT(script_.closed(), ElementsAre(601u));
}

TEST_F(PermitTest, WhatIsBegunWaitsUntilItIsGranted) {
  hoist::CopyPermit permit = Open();
  FakePage& page = script_.page(0);
  auto begun =
      std::async(std::launch::async, [&] { return permit.Begin(5000); });
  ASSERT_TRUE(page.AwaitAsked(5000));
  EXPECT_EQ(page.page().put.load(), 5000u);
  EXPECT_EQ(begun.wait_for(std::chrono::seconds(0)),
            std::future_status::timeout);
  page.Grant(5000);
  EXPECT_TRUE(begun.get().ok());
  EXPECT_EQ(page.page().done.load(), 0u);
  EXPECT_TRUE(permit.End(2000).ok());
  EXPECT_EQ(page.page().done.load(), 2000u);
  EXPECT_TRUE(permit.End(3000).ok());
  EXPECT_EQ(page.page().done.load(), 5000u);
  EXPECT_EQ(permit.stats().granted_bytes, 5000u);
}

TEST_F(PermitTest, CopiesGoInPiecesEachOfWhichIsGranted) {
  hoist::CopyPermit permit = Open();
  FakePage& page = script_.page(0);
  std::string from(2 * kPiece + 7, 'a');
  for (size_t i = 0; i < from.size(); i += 4096) from[i] = char(i >> 12);
  std::string to(from.size(), 0);
  auto copied = std::async(std::launch::async, [&] {
    return permit.ToDevice(to.data(), from.data(), from.size());
  });
  for (uint32_t at = kPiece; at <= 2 * kPiece; at += kPiece) {
    ASSERT_TRUE(page.AwaitAsked(at));
    EXPECT_EQ(to[at - 1], 0);
    page.Grant(at);
    ASSERT_TRUE(page.AwaitDone(at));
    EXPECT_EQ(to[at - 1], 'a');
  }
  ASSERT_TRUE(page.AwaitAsked(2 * kPiece + 7));
  page.Grant(2 * kPiece + 7);
  ASSERT_TRUE(copied.get().ok());
  EXPECT_TRUE(to == from);
}

TEST_F(PermitTest, CopiesFromTheDeviceWaitForNothingAndAreCounted) {
  hoist::CopyPermit permit = Open();
  const std::string from = "activations";
  std::string to(from.size(), 0);
  ASSERT_TRUE(permit.ToHost(to.data(), from.data(), from.size()).ok());
  EXPECT_EQ(to, from);
  EXPECT_TRUE(permit.AddToHost(uint64_t{5} << 32).ok());
  const uint64_t read = (uint64_t{5} << 32) + from.size();
  EXPECT_EQ(script_.page(0).page().read.load(), read);
  EXPECT_EQ(permit.stats().to_host_bytes, read);
  EXPECT_EQ(script_.page(0).page().asked.load(), 0u);
}

TEST_F(PermitTest, AHoistdThatSleepsIsWokenAndNoOther) {
  hoist::CopyPermit permit = Open();
  FakePage& page = script_.page(0);
  page.Grant(3000);
  ASSERT_TRUE(permit.Begin(1000).ok());
  ASSERT_TRUE(permit.End(1000).ok());
  EXPECT_EQ(page.TakeWakeUps(), 0u);
  page.page().sleeping.store(1);
  ASSERT_TRUE(permit.Begin(1000).ok());
  EXPECT_GE(page.TakeWakeUps(), 1u);
  ASSERT_TRUE(permit.End(1000).ok());
  EXPECT_GE(page.TakeWakeUps(), 1u);
  EXPECT_GE(permit.stats().wake_ups, 2u);
}

TEST_F(PermitTest, WordsGoOnWhereTheyOverflow) {
  hoist::CopyPermit permit = Open();
  FakePage& page = script_.page(0);
  uint32_t granted = 0;
  for (int i = 0; i < 200; ++i) {  // 6.25 GiB.
    granted += kPiece;
    page.Grant(granted);
    ASSERT_TRUE(permit.Begin(kPiece).ok());
    ASSERT_TRUE(permit.End(kPiece).ok());
  }
  EXPECT_EQ(page.page().done.load(), granted);
  EXPECT_EQ(permit.stats().granted_bytes, 200 * uint64_t{kPiece});
}

TEST_F(PermitTest, WhatCannotBeIsRefusedWithWhatWouldDo) {
  hoist::CopyPermit permit = Open();
  FakePage& page = script_.page(0);
  const hoist::Status large = permit.Begin(kPiece + 1);
  EXPECT_EQ(large.code(), Code::kInvalidArgument);
  EXPECT_THAT(large.message(), HasSubstr("33554432 is the most"));
  const hoist::Status early = permit.End(1);
  EXPECT_EQ(early.code(), Code::kFailedPrecondition);
  EXPECT_THAT(early.message(), HasSubstr("hoist_copy_permit_begin"));
  page.Grant(uint32_t{1} << 30);
  for (int i = 0; i < 32; ++i) ASSERT_TRUE(permit.Begin(kPiece).ok());
  const hoist::Status many = permit.Begin(1);
  EXPECT_EQ(many.code(), Code::kFailedPrecondition);
  EXPECT_THAT(many.message(), HasSubstr("hoist_copy_permit_end"));
  EXPECT_TRUE(permit.Begin(0).ok());
  EXPECT_TRUE(permit.ToDevice(nullptr, nullptr, 0).ok());
  EXPECT_EQ(permit.ToDevice(nullptr, &page, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(permit.ToHost(&page, nullptr, 1).code(), Code::kInvalidArgument);
}

TEST_F(PermitTest, AShareOrADeviceThatCannotBeIsRefusedBeforeHoistdIsAsked) {
  EXPECT_EQ(TryToOpen({.device = 4}).code(), Code::kNotFound);
  EXPECT_EQ(TryToOpen({.weight = 1001}).code(), Code::kInvalidArgument);
  EXPECT_EQ(TryToOpen({.priority = 11}).code(), Code::kInvalidArgument);
  EXPECT_TRUE(script_.opened().empty());
}

TEST_F(PermitTest, AHoistdWithoutPermitsSaysSo) {
  script_.refuse = true;
  const hoist::Status refused = TryToOpen();
  EXPECT_EQ(refused.code(), Code::kUnimplemented);
  EXPECT_THAT(refused.message(), HasSubstr("no verb that this hoistd knows"));
}

TEST_F(PermitTest, APageThatIsNoneIsRefusedAndGivenBack) {
  const auto refused = [this] {
    const hoist::Status opened = TryToOpen();
    session_.reset();
    return opened;
  };
  script_.sealed = false;
  EXPECT_THAT(refused().message(), HasSubstr("sealed"));
  script_.sealed = true;
  script_.spoil = [](FakePage& page) { page.page().magic = 1; };
  EXPECT_EQ(refused().code(), Code::kInternal);
  script_.spoil = [](FakePage& page) { page.page().version = 9; };
  EXPECT_EQ(refused().code(), Code::kFailedPrecondition);
  EXPECT_THAT(script_.closed(), ElementsAre(601u, 602u, 603u));
  script_.one_descriptor = true;
  EXPECT_EQ(refused().code(), Code::kInternal);
}

// Does `then` where it is asked to describe a model, the first time.
FakeDaemon::Script Then(PermitScript& script, std::function<void(Peer&)> then) {
  return [&script, then = std::move(then), done = false](
             Peer& peer, const pb::ClientMessage& message,
             const std::vector<int>& fds) mutable {
    if (!message.has_describe_model()) {
      return script.script()(peer, message, fds);
    }
    if (std::exchange(done, true)) return false;
    then(peer);
    return true;
  };
}

TEST(PermitEnd, OfItsHoistdLetsWaitsThroughAndCopiesGoOnUngranted) {
  PermitScript script;
  FakeDaemon daemon(Then(script, [](Peer& peer) { peer.HangUp(); }));
  hoist::Session session = ConnectTo(daemon);
  hoist::CopyPermit permit = *hoist::CopyPermit::Open(session);
  auto begun = std::async(std::launch::async, [&] { return permit.Begin(9); });
  ASSERT_TRUE(script.page(0).AwaitAsked(9));
  EXPECT_EQ(session.DescribeModel("m").status().code(), Code::kUnavailable);
  EXPECT_TRUE(begun.get().ok());
  EXPECT_TRUE(permit.End(9).ok());
  int to = 0;
  const int from = 17;
  EXPECT_TRUE(permit.ToDevice(&to, &from, sizeof(to)).ok());
  EXPECT_EQ(to, 17);
  const hoist_copy_permit_stats stats = permit.stats();
  EXPECT_EQ(stats.grants, 0);
  EXPECT_EQ(stats.granted_bytes, 9u);
  EXPECT_EQ(stats.ungranted_bytes, sizeof(to));
}

TEST(PermitEnd, OfItsSessionLetsWaitsThrough) {
  PermitScript script;
  FakeDaemon daemon(script.script());
  hoist::Session session = ConnectTo(daemon);
  hoist::CopyPermit permit = *hoist::CopyPermit::Open(session);
  auto begun = std::async(std::launch::async, [&] { return permit.Begin(9); });
  ASSERT_TRUE(script.page(0).AwaitAsked(9));
  session.Close();
  EXPECT_TRUE(begun.get().ok());
}

TEST(PermitEnd, WhereTheSessionGoesOnGrantsDoToo) {
  PermitScript script;
  FakeDaemon daemon(Then(script, [](Peer& peer) {
    pb::DaemonMessage resumed;
    resumed.mutable_resumed()->set_number(2);
    peer.Send(resumed);
  }));
  hoist::Session session = ConnectTo(daemon);
  hoist::CopyPermit permit = *hoist::CopyPermit::Open(session, {.weight = 5});
  auto begun = std::async(std::launch::async, [&] { return permit.Begin(9); });
  ASSERT_TRUE(script.page(0).AwaitAsked(9));
  auto asked = std::async(std::launch::async,
                          [&] { return session.DescribeModel("m"); });
  EXPECT_TRUE(begun.get().ok());
  // What was begun there ends there; then the next hoistd is asked.
  EXPECT_TRUE(permit.End(9).ok());
  EXPECT_EQ(script.page(0).page().done.load(), 9u);
  FakePage& next = script.page(1);
  EXPECT_EQ(script.opened()[1].share().weight(), 5u);
  next.Grant(7);
  while (permit.stats().grants == 0) std::this_thread::yield();
  ASSERT_TRUE(permit.Begin(7).ok());
  ASSERT_TRUE(permit.End(7).ok());
  EXPECT_EQ(next.page().done.load(), 7u);
  EXPECT_TRUE(script.closed().empty());  // It went with its hoistd.
  EXPECT_TRUE(asked.get().ok());
}

// It takes 6 s: a second until it is asked, and five without a word.
TEST(PermitEnd, ASilentHoistdHoldsUpNobodyAndIsAskedAgain) {
  PermitScript script;
  std::atomic<bool> stopped = false;
  FakeDaemon daemon([&](Peer& peer, const pb::ClientMessage& message,
                        const std::vector<int>& fds) {
    while (stopped) std::this_thread::yield();
    return script.script()(peer, message, fds);
  });
  hoist::Session session = ConnectTo(daemon);
  hoist::CopyPermit permit = *hoist::CopyPermit::Open(session);
  stopped = true;
  EXPECT_TRUE(permit.Begin(9).ok());
  EXPECT_EQ(permit.stats().grants, 0);
  EXPECT_TRUE(permit.End(9).ok());
  stopped = false;
  FakePage& next = script.page(1);
  EXPECT_THAT(script.closed(), ElementsAre(601u));
  next.Grant(7);
  while (permit.stats().grants == 0) std::this_thread::yield();
  EXPECT_TRUE(permit.Begin(7).ok());
}

TEST_F(PermitTest, InTheChildOfAForkEveryCallIsRefused) {
  hoist::CopyPermit permit = Open();
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        permit.Begin(1).code() == Code::kFailedPrecondition &&
        permit.End(1).code() == Code::kFailedPrecondition &&
        permit.AddToHost(1).code() == Code::kFailedPrecondition &&
        permit.ToDevice(&permit, &permit, 1).code() ==
            Code::kFailedPrecondition;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  script_.page(0).Grant(1);
  EXPECT_TRUE(permit.Begin(1).ok());
}

}  // namespace hoist_test::copy_permit_test
