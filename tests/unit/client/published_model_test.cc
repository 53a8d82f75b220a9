// The model that a publication returns: what it has at once, and what it asks
// hoistd for later.
#include <atomic>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "tests/unit/client/fake_daemon.h"

namespace hoist_published_model_test {

using hoist_test::FakeDaemon;
using hoist_test::Peer;
using ::testing::HasSubstr;
namespace pb = hoist::v1;

// Its model "m" has "a" already, and gets "b".
class PublishedModel : public ::testing::Test {
 protected:
  void SetUp() override {
    hoist::ConnectOptions options;
    options.socket_path = daemon_.path();
    session_.emplace(*hoist::Session::Connect(options));
    const float value = 1;
    hoist::PublishOptions publish;
    publish.model = "m";
    publish.group = "b";
    publish.tensors = {{"y", hoist::DType::kF32, {1}, &value}};
    model_.emplace(*session_->Publish(publish));
  }

  bool Serve(Peer& peer, const pb::ClientMessage& message) {
    if (message.has_describe_model()) {
      ++described_;
      if (!other_id_) return false;
      pb::DaemonMessage reply;
      reply.set_request_id(message.request_id());
      *reply.mutable_model() = FakeDaemon::ModelMessage();
      reply.mutable_model()->set_id(8);
      peer.Send(reply);
      return true;
    }
    if (!message.has_publish()) return false;
    EXPECT_TRUE(message.publish().group_alone());
    pb::DaemonMessage reply;
    reply.set_request_id(message.request_id());
    pb::Model* model = reply.mutable_model();
    *model = FakeDaemon::ModelMessage();
    model->set_fingerprint(std::string(16, '\0'));
    model->set_group_count(2);
    model->mutable_groups()->DeleteSubrange(0, 1);
    peer.Send(reply);
    return true;
  }

  std::atomic<int> described_{0};
  std::atomic<bool> other_id_{false};
  FakeDaemon daemon_{[this](Peer& peer, const pb::ClientMessage& message,
                            const auto&) { return Serve(peer, message); }};
  std::optional<hoist::Session> session_;
  std::optional<hoist::Model> model_;
};

TEST_F(PublishedModel, ItsGroupIsUsedWithoutADescription) {
  EXPECT_EQ(*model_->FindGroup("b"), 1u);
  EXPECT_EQ(model_->group_name(1), "b");
  EXPECT_EQ(model_->tensors(1).front().name(), "y");
  EXPECT_EQ(model_->group_count(), 2u);
  EXPECT_EQ(session_->Stage(*model_, "b")->tensors().front().name(), "y");
  EXPECT_TRUE(session_->ReserveHostImage(*model_, 1).ok());
  EXPECT_TRUE(session_->Prefetch(*model_, {0, 1}).ok());
  EXPECT_EQ(described_.load(), 0);
}

TEST_F(PublishedModel, TheOthersAreDescribedOnceAtTheirFirstUse) {
  EXPECT_EQ(*model_->FindGroup("a"), 0u);
  EXPECT_EQ(model_->fingerprint(), std::string(16, 'f'));
  EXPECT_EQ(model_->group_name(0), "a");
  EXPECT_EQ(session_->Stage(*model_, "a")->tensors().front().name(), "x");
  EXPECT_EQ(model_->FindGroup("c").status().code(), hoist::Code::kNotFound);
  EXPECT_EQ(described_.load(), 1);
}

TEST_F(PublishedModel, WhoIsDoneWithItAsksForNothingAnyMore) {
  ASSERT_TRUE(session_->DoneWith(*model_).ok());
  EXPECT_EQ(model_->group_name(1), "b");
  EXPECT_THAT(std::string(model_->FindGroup("a").status().message()),
              HasSubstr("is done with it"));
  EXPECT_EQ(model_->fingerprint(), std::string(16, '\0'));
  EXPECT_EQ(described_.load(), 0);
}

TEST_F(PublishedModel, AnEndedSessionAsksForNothingAnyMore) {
  session_.reset();
  EXPECT_EQ(model_->group_name(1), "b");
  EXPECT_EQ(model_->FindGroup("a").status().code(),
            hoist::Code::kFailedPrecondition);
}

TEST_F(PublishedModel, AnotherModelOfItsNameIsNotTakenForIt) {
  other_id_ = true;
  EXPECT_THAT(std::string(model_->FindGroup("a").status().message()),
              HasSubstr("another one by now"));
}

}  // namespace hoist_published_model_test
