// When a session says that it is done with a model, through hoist.h.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "tests/unit/client/fake_daemon.h"

namespace hoist_test::model_uses_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Notes what it is told, in order; holds back what `waits` says, until `go`.
class UsesDaemon {
 public:
  using Waits = bool (*)(const pb::ClientMessage&);

  explicit UsesDaemon(Waits waits = nullptr)
      : waits_(waits),
        daemon_(
            [this](Peer& peer, const pb::ClientMessage& message,
                   const std::vector<int>&) { return Note(peer, message); }) {}
  ~UsesDaemon() {
    if (late_.joinable()) late_.join();
  }

  hoist::Session Connect() {
    hoist::ConnectOptions options;
    options.socket_path = daemon_.path();
    return *hoist::Session::Connect(options);
  }
  // The models that the session said it is done with, up to now.
  std::vector<uint64_t> Done(hoist::Session& session) {
    EXPECT_TRUE(session.DescribeModel("deep").ok());  // In order behind them.
    const std::lock_guard<std::mutex> lock(mu_);
    return done_;
  }

  // Those of them that hoistd is to forget.
  std::vector<uint64_t> Forgotten() {
    const std::lock_guard<std::mutex> lock(mu_);
    return forgotten_;
  }

  std::atomic<bool> holds_back{false};
  std::promise<void> came;  // What is held back.
  std::promise<pb::DaemonMessage> go;

 private:
  bool Note(Peer& peer, const pb::ClientMessage& message) {
    if (message.has_set_order() && message.set_order().groups().empty()) {
      const std::lock_guard<std::mutex> lock(mu_);
      done_.push_back(message.set_order().model_id());
      if (message.set_order().forget()) forgotten_.push_back(done_.back());
      return false;
    }
    if (message.has_read_image()) {
      pb::DaemonMessage reply;
      reply.set_request_id(message.request_id());
      peer.Send(reply);
      return true;
    }
    if (!holds_back || !waits_(message)) return false;
    holds_back = false;
    late_ = std::thread([this, &peer, id = message.request_id()] {
      pb::DaemonMessage reply = go.get_future().get();
      reply.set_request_id(id);
      peer.Send(reply);
    });
    came.set_value();
    return true;
  }

  const Waits waits_;
  std::mutex mu_;
  std::vector<uint64_t> done_;
  std::vector<uint64_t> forgotten_;
  std::thread late_;
  FakeDaemon daemon_;
};

pb::DaemonMessage ModelM() {
  pb::DaemonMessage reply;
  *reply.mutable_model() = FakeDaemon::ModelMessage();
  return reply;
}

TEST(ModelUses, WhoIsDoneWithTheOnlyHandleIsDoneWithTheModel) {
  UsesDaemon daemon;
  hoist::Session session = daemon.Connect();
  const hoist::Model model = *session.DescribeModel("m");
  EXPECT_THAT(daemon.Done(session), IsEmpty());
  ASSERT_TRUE(session.DoneWith(model).ok());
  EXPECT_THAT(daemon.Done(session), ElementsAre(model.id()));
  EXPECT_EQ(model.name(), "m");
}

TEST(ModelUses, AHandleThatIsDroppedWithoutAWordLeavesItUsed) {
  UsesDaemon daemon;
  hoist::Session session = daemon.Connect();
  { const hoist::Model model = *session.DescribeModel("m"); }
  EXPECT_THAT(daemon.Done(session), IsEmpty());
}

TEST(ModelUses, EveryHandleCounts) {
  UsesDaemon daemon;
  hoist::Session session = daemon.Connect();
  const hoist::Model one = *session.DescribeModel("m");
  std::optional<hoist::Model> other(*session.DescribeModel("m"));
  ASSERT_TRUE(session.DoneWith(one).ok());
  ASSERT_TRUE(session.DoneWith(one).ok());
  EXPECT_THAT(daemon.Done(session), IsEmpty());
  other.reset();
  EXPECT_THAT(daemon.Done(session), ElementsAre(one.id()));
}

// A C++ caller has no such call; the C API has.
TEST(ModelUses, ThatItIsToBeForgottenIsSaidWithTheLastUseUnlessItAsksAgain) {
  UsesDaemon daemon;
  hoist::Session session = daemon.Connect();
  const hoist::Model one = *session.DescribeModel("m");
  std::optional<hoist::Model> other(*session.DescribeModel("m"));
  const auto forget = [&](const hoist::Model& model) {
    return hoist_forget_unused_model(session.get(), model.get(), nullptr);
  };
  ASSERT_EQ(forget(one), HOIST_OK);
  EXPECT_THAT(daemon.Done(session), IsEmpty());
  other.reset();
  EXPECT_THAT(daemon.Done(session), ElementsAre(one.id()));
  EXPECT_THAT(daemon.Forgotten(), ElementsAre(one.id()));
  const hoist::Model again = *session.DescribeModel("m");
  ASSERT_TRUE(session.DoneWith(again).ok());
  EXPECT_THAT(daemon.Done(session), ElementsAre(one.id(), one.id()));
  EXPECT_THAT(daemon.Forgotten(), ElementsAre(one.id()));
}

TEST(ModelUses, WhatIsHeldOfItKeepsItUsed) {
  UsesDaemon daemon;
  hoist::Session session = daemon.Connect();
  const hoist::Model model = *session.DescribeModel("m");
  std::optional<hoist::Lease> lease(*session.Stage(model, "a"));
  std::optional<hoist::Plan> plan(*session.SetPlan(model, {}));
  std::optional<hoist::HostImage> image(*session.ReserveHostImage(model, 0));
  std::optional<hoist::Fetch> fetch(*session.StartFetch(model, {0}));
  ASSERT_TRUE(session.DoneWith(model).ok());
  lease.reset();
  plan.reset();
  fetch.reset();
  EXPECT_THAT(daemon.Done(session), IsEmpty());
  EXPECT_TRUE(image->Load().ok());
  image.reset();
  EXPECT_THAT(daemon.Done(session), ElementsAre(model.id()));
  // Any of them alone does.
  lease.emplace(*session.Stage(model, "a"));
  plan.emplace(*session.SetPlan(model, {}));
  lease.reset();
  EXPECT_THAT(daemon.Done(session), ElementsAre(model.id()));
  fetch.emplace(*session.StartFetch(model, {0}));
  plan.reset();
  EXPECT_THAT(daemon.Done(session), ElementsAre(model.id()));
  fetch.reset();
  EXPECT_THAT(daemon.Done(session), ElementsAre(model.id(), model.id()));
}

TEST(ModelUses, AReleasedLeaseHoldsItNoMore) {
  UsesDaemon daemon;
  hoist::Session session = daemon.Connect();
  const hoist::Model model = *session.DescribeModel("m");
  hoist::Lease lease = *session.Stage(model, "a");
  ASSERT_TRUE(session.DoneWith(model).ok());
  ASSERT_TRUE(lease.Release().ok());
  EXPECT_THAT(daemon.Done(session), ElementsAre(model.id()));
  EXPECT_EQ(lease.group(), 0u);
}

TEST(ModelUses, AnImageThatMovesHoldsItWhereItIs) {
  UsesDaemon daemon;
  hoist::Session one = daemon.Connect(), other = daemon.Connect();
  const hoist::Model before = *one.DescribeModel("m");
  const hoist::Model after = *other.DescribeModel("m");
  std::optional<hoist::HostImage> image(*one.ReserveHostImage(before, 0));
  ASSERT_TRUE(one.DoneWith(before).ok());
  ASSERT_TRUE(other.DoneWith(after).ok());
  EXPECT_THAT(daemon.Done(other), ElementsAre(after.id()));
  ASSERT_TRUE(image->Move(other, after, 0).ok());
  EXPECT_THAT(daemon.Done(one), ElementsAre(after.id(), after.id()));
  image.reset();
  EXPECT_EQ(daemon.Done(other).size(), 3u);
}

TEST(ModelUses, WhoAsksAgainUsesItUntilTheyAreDoneToo) {
  UsesDaemon daemon;
  hoist::Session session = daemon.Connect();
  const hoist::Model one = *session.DescribeModel("m");
  std::optional<hoist::Lease> lease(*session.Stage(one, "a"));
  ASSERT_TRUE(session.DoneWith(one).ok());
  const hoist::Model again = *session.DescribeModel("m");
  lease.reset();
  EXPECT_THAT(daemon.Done(session), IsEmpty());
  ASSERT_TRUE(session.DoneWith(again).ok());
  EXPECT_THAT(daemon.Done(session), ElementsAre(one.id()));
  ASSERT_TRUE(session.Prefetch(one, {0}).ok());
  { const hoist::Lease staged = *session.Stage(one, "a"); }
  EXPECT_THAT(daemon.Done(session), ElementsAre(one.id()));
}

bool IsDescribe(const pb::ClientMessage& message) {
  return message.has_describe_model();
}
bool IsPublish(const pb::ClientMessage& message) {
  return message.has_publish();
}

hoist::Result<hoist::Model> Publish(hoist::Session& session,
                                    const std::string& name) {
  const float value = 1;
  hoist::PublishOptions options;
  options.model = name;
  options.group = "a";
  options.tensors = {{"x", hoist::DType::kF32, {1}, &value}};
  return session.Publish(options);
}

// hoistd may have found the model for it before it hears that the session is
// done.
TEST(ModelUses, AnAnswerThatIsUnderWayIsWaitedFor) {
  UsesDaemon daemon(IsDescribe);
  hoist::Session session = daemon.Connect();
  const hoist::Model model = *session.DescribeModel("m");
  daemon.holds_back = true;
  auto asked = std::async(std::launch::async,
                          [&] { return session.DescribeModel("m"); });
  daemon.came.get_future().wait();
  ASSERT_TRUE(session.DoneWith(model).ok());
  EXPECT_THAT(daemon.Done(session), IsEmpty());
  daemon.go.set_value(ModelM());
  const hoist::Model again = *asked.get();
  EXPECT_THAT(daemon.Done(session), IsEmpty()) << "it is in use again";
  ASSERT_TRUE(session.DoneWith(again).ok());
  EXPECT_THAT(daemon.Done(session), ElementsAre(model.id()));
}

TEST(ModelUses, AnAnswerWithoutItIsWaitedForToo) {
  UsesDaemon daemon(IsPublish);
  hoist::Session session = daemon.Connect();
  const hoist::Model model = *session.DescribeModel("m");
  daemon.holds_back = true;
  auto asked = std::async(std::launch::async,
                          [&] { return Publish(session, "m").status(); });
  daemon.came.get_future().wait();
  ASSERT_TRUE(session.DoneWith(model).ok());
  EXPECT_THAT(daemon.Done(session), IsEmpty());
  pb::DaemonMessage refused;
  refused.set_code(8);
  daemon.go.set_value(refused);
  EXPECT_EQ(asked.get().code(), hoist::Code::kResourceExhausted);
  EXPECT_THAT(daemon.Done(session), ElementsAre(model.id()));
}

// It may wait for the very room that the other model has.
TEST(ModelUses, APublicationUnderAnotherNameIsNotWaitedFor) {
  UsesDaemon daemon(IsPublish);
  hoist::Session session = daemon.Connect();
  const hoist::Model model = *session.DescribeModel("m");
  daemon.holds_back = true;
  auto asked = std::async(std::launch::async,
                          [&] { return Publish(session, "other").status(); });
  daemon.came.get_future().wait();
  ASSERT_TRUE(session.DoneWith(model).ok());
  EXPECT_THAT(daemon.Done(session), ElementsAre(model.id()));
  pb::DaemonMessage refused;
  refused.set_code(8);
  daemon.go.set_value(refused);
  EXPECT_EQ(asked.get().code(), hoist::Code::kResourceExhausted);
}

TEST(ModelUses, AHandleOutlivesItsSession) {
  UsesDaemon daemon;
  std::optional<hoist::Session> session(daemon.Connect());
  const hoist::Model model = *session->DescribeModel("m");
  hoist::Session other = daemon.Connect();
  session.reset();
  // It is of the same hoistd, and in use by the other session as well.
  ASSERT_TRUE(other.DoneWith(model).ok());
  EXPECT_THAT(daemon.Done(other), ElementsAre(model.id()));
}

TEST(ModelUses, AHandleMayEndWhileItsSessionDoes) {
  UsesDaemon daemon;
  for (int round = 0; round < 50; ++round) {
    std::optional<hoist::Session> session(daemon.Connect());
    const hoist::Model one = *session->DescribeModel("m");
    std::optional<hoist::Model> other(*session->DescribeModel("m"));
    ASSERT_TRUE(session->DoneWith(one).ok());
    std::promise<void> go;
    std::thread thread([&, gone = go.get_future()] {
      gone.wait();
      other.reset();  // It says that the session is done with the model.
    });
    go.set_value();
    session.reset();
    thread.join();
  }
}

TEST(ModelUses, TheChildOfAForkSaysNothing) {
  UsesDaemon daemon;
  hoist::Session session = daemon.Connect();
  std::optional<hoist::Model> model(*session.DescribeModel("m"));
  ASSERT_TRUE(session.DoneWith(*model).ok());
  const hoist::Model again = *session.DescribeModel("m");
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        session.DoneWith(again).code() == hoist::Code::kFailedPrecondition;
    model.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(daemon.Done(session), ElementsAre(again.id()));
}

}  // namespace hoist_test::model_uses_test
