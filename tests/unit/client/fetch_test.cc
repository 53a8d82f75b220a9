// Fetches through hoist.h: groups that come beside the caller.
#include <poll.h>
#include <sys/eventfd.h>

#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "tests/unit/client/fake_daemon.h"
#include "tests/unit/client/plan_worker.h"

namespace hoist_test::fetch_test {

using hoist::Code;
using std::chrono::minutes;
using ::testing::HasSubstr;

bool IsReadable(int fd, int timeout_ms = 0) {
  pollfd one = {fd, POLLIN, 0};
  return poll(&one, 1, timeout_ms) == 1;
}

struct Worker {
  explicit Worker(const FakeDaemon& daemon)
      : session(ConnectTo(daemon)), model(*session.DescribeModel("deep")) {}
  hoist::Session session;
  hoist::Model model;
};

TEST(Fetch, KeepsWhatHasComeUntilItGoes) {
  FakeDaemon daemon;
  Worker worker(daemon);
  {
    auto fetch = worker.session.StartFetch(worker.model, {0, 2, 1});
    ASSERT_TRUE(fetch.ok()) << fetch.status().ToString();
    EXPECT_TRUE(IsReadable(fetch->event_fd(), 60'000));
    EXPECT_TRUE(fetch->Wait({}).ok());  // It is done.
    EXPECT_EQ(fetch->there(), 3u);
    EXPECT_TRUE(daemon.released().empty());
  }
  // Without waiting; a call behind it shows that it has come.
  ASSERT_TRUE(worker.session.DescribeModel("deep").ok());
  EXPECT_EQ(daemon.released().size(), 3u);
}

TEST(Fetch, IsWaitedForAndTellsWhenItIsDone) {
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  FakeDaemon daemon(
      [&](Peer&, const pb::ClientMessage& message, const std::vector<int>&) {
        if (message.has_stage() && message.stage().group() == 1) may_go.wait();
        return false;
      });
  Worker worker(daemon);
  auto fetch = worker.session.StartFetch(worker.model, {0, 1});
  ASSERT_TRUE(fetch.ok());
  while (fetch->there() == 0) std::this_thread::yield();
  const hoist::Status early = fetch->Wait(std::chrono::milliseconds(1));
  EXPECT_EQ(early.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(early.message(), HasSubstr("1 of 2"));
  EXPECT_FALSE(IsReadable(fetch->event_fd()));
  auto waited =
      std::async(std::launch::async, [&] { return fetch->Wait(minutes(1)); });
  go.set_value();
  EXPECT_TRUE(waited.get().ok());
  EXPECT_EQ(fetch->there(), 2u);
  EXPECT_TRUE(IsReadable(fetch->event_fd(), 60'000));
}

// hoistd never answers for group 1.
TEST(Fetch, IsCalledOffAndKeepsWhatCame) {
  std::promise<void> asked;
  FakeDaemon daemon(
      [&](Peer&, const pb::ClientMessage& message, const std::vector<int>&) {
        const bool last = message.has_stage() && message.stage().group() == 1;
        if (last) asked.set_value();
        return last;
      });
  Worker worker(daemon);
  auto fetch = worker.session.StartFetch(worker.model, {0, 1, 2});
  ASSERT_TRUE(fetch.ok());
  asked.get_future().wait();
  fetch->Cancel();
  EXPECT_EQ(fetch->Wait(minutes(1)).code(), Code::kCancelled);
  EXPECT_EQ(fetch->there(), 1u);
  EXPECT_TRUE(IsReadable(fetch->event_fd()));
  EXPECT_TRUE(daemon.released().empty());
}

TEST(Fetch, SaysWhichGroupCannotComeAndWhy) {
  FakeDaemon daemon([&](Peer& peer, const pb::ClientMessage& message,
                        const std::vector<int>&) {
    if (!message.has_stage() || message.stage().group() != 2) return false;
    pb::DaemonMessage reply;
    reply.set_request_id(message.request_id());
    reply.set_code(HOIST_RESOURCE_EXHAUSTED);
    reply.set_message("no space");
    peer.Send(reply);
    return true;
  });
  Worker worker(daemon);
  auto fetch = worker.session.StartFetch(worker.model, {0, 2, 1});
  ASSERT_TRUE(fetch.ok());
  const hoist::Status refused = fetch->Wait(minutes(1));
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("\"l2\": no space"));
  EXPECT_EQ(fetch->there(), 1u);
}

TEST(Fetch, EndsWithItsSession) {
  FakeDaemon daemon(
      [&](Peer&, const pb::ClientMessage& message, const std::vector<int>&) {
        return message.has_stage();  // And never answers.
      });
  Worker worker(daemon);
  auto fetch = worker.session.StartFetch(worker.model, {0});
  ASSERT_TRUE(fetch.ok());
  worker.session.Close();
  EXPECT_EQ(fetch->Wait(minutes(1)).code(), Code::kFailedPrecondition);
  auto late = worker.session.StartFetch(worker.model, {0});
  EXPECT_EQ(late.status().code(), Code::kFailedPrecondition);
}

TEST(Fetch, BadCallsAreRefused) {
  FakeDaemon daemon;
  Worker worker(daemon);
  const auto code = [&](std::vector<uint32_t> groups, uint32_t device) {
    hoist::StageOptions options;
    options.device = device;
    return worker.session.StartFetch(worker.model, groups, options)
        .status()
        .code();
  };
  EXPECT_EQ(code({99}, 0), Code::kOutOfRange);
  EXPECT_EQ(code({0}, 99), Code::kNotFound);
  hoist_fetch_cancel(nullptr);
  hoist_fetch_free(nullptr);
  EXPECT_EQ(hoist_fetch_event_fd(nullptr), -1);
  EXPECT_EQ(hoist_fetch_wait(nullptr, 0, nullptr, nullptr),
            HOIST_INVALID_ARGUMENT);
  const uint32_t group = 0;
  EXPECT_EQ(hoist_fetch_start(worker.session.get(), worker.model.get(), &group,
                              1, 0, 0, nullptr, nullptr),
            HOIST_INVALID_ARGUMENT);
  auto none = worker.session.StartFetch(worker.model, {});
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->Wait(minutes(1)).ok());
}

}  // namespace hoist_test::fetch_test
