// libhoist.so and a hoistd that dies: the next one goes on over the socket.
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "tests/unit/client/fake_daemon.h"
#include "tests/unit/client/plan_worker.h"

namespace hoist_test::session_resume_test {

using Code = hoist::Code;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Takes what its first hoistd is asked for `verb` and says nothing; a second
// one takes over at once, `deaths` times, and answers.
class DyingDaemon {
 public:
  using Verb = bool (*)(const pb::ClientMessage&);

  DyingDaemon(Verb verb, int deaths) : verb_(verb), deaths_(deaths) {}

  FakeDaemon::Script script() {
    return [this](Peer& peer, const pb::ClientMessage& message,
                  const std::vector<int>& fds) {
      const std::lock_guard<std::mutex> lock(mu_);
      if (message.has_open_session()) {
        resumes_ = message.open_session().resumes();
        return false;
      }
      if (message.has_resume()) {
        dead_ = false;
        asked_.push_back(message.resume());
        pb::DaemonMessage reply;
        reply.set_request_id(message.request_id());
        *reply.mutable_resume() = lost;
        peer.Send(reply);
        return true;
      }
      if (dead_) return true;  // Nobody reads what comes before.
      if (message.has_set_order()) {
        done_with_.push_back(message.set_order().model_id());
      }
      if (!verb_(message) || died_ == deaths_) return false;
      fds_.push_back(fds.size());
      ids_.push_back(message.request_id());
      pb::DaemonMessage resumed;
      resumed.mutable_resumed()->set_number(static_cast<uint64_t>(++died_));
      dead_ = true;
      peer.Send(resumed);
      return true;
    };
  }

  bool resumes() { return Locked(resumes_); }
  std::vector<pb::ResumeRequest> asked() { return Locked(asked_); }
  std::vector<uint64_t> ids() { return Locked(ids_); }
  std::vector<size_t> fds() { return Locked(fds_); }
  std::vector<uint64_t> done_with() { return Locked(done_with_); }

  pb::ResumeReply lost;

 private:
  template <typename T>
  T Locked(const T& value) {
    const std::lock_guard<std::mutex> lock(mu_);
    return value;
  }

  const Verb verb_;
  const int deaths_;
  std::mutex mu_;
  bool resumes_ = false;
  int died_ = 0;
  bool dead_ = false;  // The next one has not been told yet.
  std::vector<pb::ResumeRequest> asked_;
  std::vector<uint64_t> ids_;
  std::vector<size_t> fds_;
  std::vector<uint64_t> done_with_;
};

hoist::ConnectOptions To(const FakeDaemon& daemon) {
  hoist::ConnectOptions options;
  options.socket_path = daemon.path();
  return options;
}

bool IsStageOfB(const pb::ClientMessage& message) {
  return message.has_stage() && message.stage().group() == 1;
}
bool IsPublish(const pb::ClientMessage& message) {
  return message.has_publish();
}
bool IsRelease(const pb::ClientMessage& message) {
  return message.has_release();
}
bool IsPrefetch(const pb::ClientMessage& message) {
  return message.has_prefetch();
}

TEST(SessionResume, WhatNobodyAnsweredIsAskedAgainBehindWhatTheSessionHas) {
  DyingDaemon dying(IsStageOfB, 3);
  FakeDaemon daemon(dying.script());
  auto session = hoist::Session::Connect(To(daemon));
  ASSERT_TRUE(session.ok());
  EXPECT_TRUE(dying.resumes());
  auto model = session->DescribeModel("m");
  auto held = session->Stage(*model, "a");
  ASSERT_TRUE(held.ok());
  const void* address = held->data();
  auto lease = session->Stage(*model, "b");
  ASSERT_TRUE(lease.ok()) << lease.status().ToString();
  EXPECT_EQ(held->data(), address);
  EXPECT_TRUE(held->Check().ok());
  EXPECT_TRUE(session->Check().ok());
  const auto asked = dying.asked();
  ASSERT_EQ(asked.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(asked[i].number(), i + 1);
    EXPECT_EQ(asked[i].lease_ids_size(), 1);
    EXPECT_EQ(asked[i].slabs_size(), 1);
    EXPECT_THAT(asked[i].plan_ids(), IsEmpty());
  }
  // The same request each time.
  const auto ids = dying.ids();
  EXPECT_THAT(ids, ElementsAre(ids[0], ids[0], ids[0]));
}

TEST(SessionResume, DescriptorsAreSentAgainToo) {
  DyingDaemon dying(IsPublish, 2);
  FakeDaemon daemon(dying.script());
  auto session = hoist::Session::Connect(To(daemon));
  ASSERT_TRUE(session.ok());
  const std::vector<float> values(6, 1.5f);
  hoist::PublishOptions options;
  options.model = "p";
  options.group = "g";
  options.tensors = {{"x", hoist::DType::kF32, {6}, values.data()}};
  auto published = session->Publish(options);
  ASSERT_TRUE(published.ok()) << published.status().ToString();
  EXPECT_THAT(dying.fds(), ElementsAre(1, 1));
}

TEST(SessionResume, ALeaseThatWasBeingReleasedIsNotAskedFor) {
  DyingDaemon dying(IsRelease, 1);
  FakeDaemon daemon(dying.script());
  auto session = hoist::Session::Connect(To(daemon));
  auto model = session->DescribeModel("m");
  auto lease = session->Stage(*model, "a");
  ASSERT_TRUE(lease.ok());
  EXPECT_TRUE(lease->Release().ok());
  ASSERT_EQ(dying.asked().size(), 1u);
  EXPECT_THAT(dying.asked()[0].lease_ids(), IsEmpty());
}

TEST(SessionResume, ALostLeaseEndsTheSession) {
  DyingDaemon dying(IsPrefetch, 1);
  dying.lost.add_lost_lease_ids(1);
  FakeDaemon daemon(dying.script());
  auto session = hoist::Session::Connect(To(daemon));
  auto model = session->DescribeModel("m");
  const hoist::Status asked = session->Prefetch(*model, {0});
  EXPECT_EQ(asked.code(), Code::kUnavailable);
  EXPECT_EQ(session->Check().code(), Code::kUnavailable);
}

TEST(SessionResume, PlansAreToldAndALostOneEnds) {
  DyingDaemon dying(IsPrefetch, 1);
  dying.lost.add_lost_plan_ids(501);
  FakeDaemon daemon(dying.script());
  PlanWorker worker(daemon, {0, 1, 2});
  EXPECT_TRUE(worker.plan.Check().ok());
  ASSERT_TRUE(worker.session.Prefetch(worker.model, {0}).ok());
  ASSERT_EQ(dying.asked().size(), 1u);
  EXPECT_THAT(dying.asked()[0].plan_ids(), ElementsAre(501));
  // The reply came before the one that was waited for.
  const hoist::Status ended = worker.plan.Check();
  EXPECT_EQ(ended.code(), Code::kAborted);
  EXPECT_THAT(ended.message(), HasSubstr("make it anew"));
  EXPECT_TRUE(worker.session.Check().ok());
}

TEST(SessionResume, TheNextHoistdIsToldWhichModelsTheSessionUses) {
  DyingDaemon dying(IsPrefetch, 1);
  FakeDaemon daemon(dying.script());
  auto session = hoist::Session::Connect(To(daemon));
  auto model = session->DescribeModel("m");
  auto deep = session->DescribeModel("deep");
  ASSERT_TRUE(session->DoneWith(*model).ok());
  ASSERT_TRUE(session->Prefetch(*deep, {0}).ok());  // It dies of it.
  ASSERT_TRUE(session->DescribeModel("deep").ok());
  ASSERT_EQ(dying.asked().size(), 1u);
  EXPECT_TRUE(dying.asked()[0].knows_models());
  EXPECT_THAT(dying.asked()[0].model_ids(), ElementsAre(deep->id()));
  EXPECT_THAT(dying.done_with(), ElementsAre(model->id(), model->id()));
}

TEST(SessionResume, TakeoversAmidAnotherThreadsMessages) {
  constexpr int kDeaths = 300;
  DyingDaemon dying(IsStageOfB, kDeaths);
  FakeDaemon daemon(dying.script());
  auto session = hoist::Session::Connect(To(daemon));
  auto model = session->DescribeModel("m");
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) {
      auto deep = session->DescribeModel("deep");
      if (!deep.ok() || !session->DoneWith(*deep).ok()) return;
    }
  });
  auto lease = session->Stage(*model, "b");
  over = true;
  other.join();
  EXPECT_TRUE(lease.ok()) << lease.status().ToString();
  EXPECT_EQ(dying.asked().size(), kDeaths);
  EXPECT_TRUE(session->Check().ok()) << session->Check().ToString();
}

// Its answer may be a model that the session uses without knowing.
TEST(SessionResume, WithAPublicationUnderWayNobodyKnowsTheModelsInUse) {
  DyingDaemon dying(IsPublish, 1);
  FakeDaemon daemon(dying.script());
  auto session = hoist::Session::Connect(To(daemon));
  ASSERT_TRUE(session->Publish({.model = "m", .group = "a"}).ok());
  ASSERT_EQ(dying.asked().size(), 1u);
  EXPECT_FALSE(dying.asked()[0].knows_models());
}

}  // namespace hoist_test::session_resume_test
