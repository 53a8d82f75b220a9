// Plans over a real socket, as a scripted engine answers them.
#include <sys/stat.h>

#include <vector>

#include "tests/component/session/session_fixture.h"

namespace hoistd::testing::session_plan_verbs_test {

using ::hoist::v1::ClientMessage;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kInvalid = static_cast<int>(absl::StatusCode::kInvalidArgument);
constexpr int kNotFound = static_cast<int>(absl::StatusCode::kNotFound);
constexpr int kExhausted =
    static_cast<int>(absl::StatusCode::kResourceExhausted);

ClientMessage SetPlanMessage(uint64_t request_id) {
  ClientMessage message;
  message.set_request_id(request_id);
  auto* ask = message.mutable_set_plan();
  ask->set_model_id(3);
  ask->set_budget_bytes(uint64_t{1} << 30);
  ask->add_order(4);
  ask->add_order(2);
  return message;
}

ClientMessage ClearPlanMessage(uint64_t request_id, uint64_t plan) {
  ClientMessage message;
  message.set_request_id(request_id);
  message.mutable_clear_plan()->set_plan_id(plan);
  return message;
}

// Of group 4, streamed, and group 2, resident. With a lane of two memfds.
OpenedPlan Opened(std::vector<SlabUse> slabs) {
  OpenedPlan opened;
  opened.grant.id = PlanId(8);
  opened.grant.groups = {{GroupIndex(4), false, {0, 4096}, 4096},
                         {GroupIndex(2), true, {}, 4096}};
  opened.grant.lane_order = {0};
  opened.grant.ring_offset = 1 << 20;
  opened.grant.ring_bytes = 4096;
  opened.grant.new_slabs = std::move(slabs);
  opened.lane = SealedMemfd(4096);
  opened.wake = SealedMemfd(8192);
  return opened;
}

SlabUse SlabIn(int fd) {
  SlabUse use;
  use.slab.id = SlabId(2);
  use.share.fd = fd;
  return use;
}

ino_t InodeOf(int fd) {
  struct stat info = {};
  EXPECT_EQ(fstat(fd, &info), 0);
  return info.st_ino;
}

class SessionPlans : public SessionFixture {
 protected:
  void SetUp() override {
    SessionFixture::SetUp();
    client_.emplace(path());
    ASSERT_EQ(client_->Open().message.code(), 0);
  }
  void TearDown() override {
    client_.reset();
    SessionFixture::TearDown();
  }
  RawSession& client() { return *client_; }

  std::optional<RawSession> client_;
};

TEST_F(SessionPlans, SetPlanGivesThePlanItsSlabsAndItsLane) {
  hoist::UniqueFd slab = SealedMemfd(12288);
  const ino_t slab_inode = InodeOf(slab.get());
  ASSERT_TRUE(client().Send(SetPlanMessage(8)));
  auto call = engine().verb<SetPlanArgs>().Next();
  EXPECT_EQ(call.session, SessionId(1));
  EXPECT_EQ(call.args.model, ModelId(3));
  EXPECT_EQ(call.args.budget_bytes, uint64_t{1} << 30);
  EXPECT_THAT(call.args.order, ElementsAre(GroupIndex(4), GroupIndex(2)));
  OpenedPlan opened = Opened({SlabIn(slab.get())});
  const ino_t lane_inode = InodeOf(opened.lane.get());
  const ino_t wake_inode = InodeOf(opened.wake.get());
  call.done(std::move(opened));
  // The engine's descriptor is only borrowed for the length of the callback.
  slab.reset();
  const auto reply = client().Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->message.request_id(), 8u);
  EXPECT_EQ(reply->message.code(), 0);
  const auto& plan = reply->message.plan();
  EXPECT_EQ(plan.id(), 8u);
  ASSERT_EQ(plan.groups_size(), 2);
  EXPECT_EQ(plan.groups(0).offset_bytes(), uint64_t{1} << 20);
  EXPECT_TRUE(plan.groups(1).resident());
  ASSERT_EQ(plan.slabs_size(), 1);
  ASSERT_EQ(reply->fds.size(), 3u);
  const auto inode_at = [&reply](uint32_t index) {
    return InodeOf(reply->fds.at(index).get());
  };
  EXPECT_EQ(inode_at(plan.slabs(0).fd_index()), slab_inode);
  EXPECT_EQ(inode_at(plan.lane_fd_index()), lane_inode);
  EXPECT_EQ(inode_at(plan.wake_fd_index()), wake_inode);
}

TEST_F(SessionPlans, APlanThatTheEngineRefusesLeavesTheSessionUsable) {
  engine().verb<SetPlanArgs>().Answer([](auto call) {
    call.done(absl::ResourceExhaustedError("the least is 5"));
  });
  const auto refused = client().Call(SetPlanMessage(8));
  EXPECT_EQ(refused.message.code(), kExhausted);
  EXPECT_EQ(refused.message.message(), "the least is 5");
  EXPECT_TRUE(refused.fds.empty());
  engine().verb<SetPlanArgs>().Answer([](auto call) { call.done(Opened({})); });
  EXPECT_EQ(client().Call(SetPlanMessage(9)).message.plan().id(), 8u);
}

TEST_F(SessionPlans, APlanInAsManySlabsAsAMessageCarriesArrives) {
  const hoist::UniqueFd slab = DevNull();
  engine().verb<SetPlanArgs>().Answer([&slab](auto call) {
    // Two places are the lane's.
    call.done(Opened(
        std::vector<SlabUse>(kMaxSlabFdsPerLease - 2, SlabIn(slab.get()))));
  });
  const auto reply = client().Call(SetPlanMessage(8));
  ASSERT_EQ(reply.message.code(), 0);
  EXPECT_EQ(reply.fds.size(), kMaxSlabFdsPerLease);
  EXPECT_EQ(reply.message.plan().wake_fd_index(), kMaxSlabFdsPerLease - 1);
}

TEST_F(SessionPlans, APlanInMoreSlabsThanAMessageCarriesEndsTheSession) {
  const hoist::UniqueFd slab = DevNull();
  engine().verb<SetPlanArgs>().Answer([&slab](auto call) {
    call.done(Opened(
        std::vector<SlabUse>(kMaxSlabFdsPerLease - 1, SlabIn(slab.get()))));
  });
  const auto reply = client().Call(SetPlanMessage(8)).message;
  EXPECT_EQ(reply.code(), kExhausted);
  EXPECT_THAT(reply.message(), HasSubstr("larger slabs"));
  EXPECT_EQ(client().Receive(), std::nullopt);
  client().Close();
  engine().WaitUntilClosed(SessionId(1));  // Which ends the plan.
}

TEST_F(SessionPlans, ClearPlanIsAnsweredAsTheEngineSays) {
  engine().verb<ClearPlanArgs>().Answer([](auto call) {
    EXPECT_EQ(call.session, SessionId(1));
    call.done(call.args.plan == PlanId(8)
                  ? absl::OkStatus()
                  : absl::NotFoundError("this session has no plan"));
  });
  const auto cleared = client().Call(ClearPlanMessage(5, 8)).message;
  EXPECT_EQ(cleared.request_id(), 5u);
  EXPECT_EQ(cleared.code(), 0);
  EXPECT_EQ(cleared.body_case(), hoist::v1::DaemonMessage::BODY_NOT_SET);
  EXPECT_EQ(client().Call(ClearPlanMessage(6, 9)).message.code(), kNotFound);
}

TEST_F(SessionPlans, DescriptorsWithAPlanVerbAreRefusedAndClosed) {
  Barrier(client());
  const size_t before = OpenFdCount();
  for (const ClientMessage& message :
       {SetPlanMessage(5), ClearPlanMessage(6, 8)}) {
    const hoist::UniqueFd fd = DevNull();
    const auto reply =
        client().Call(message, std::vector<int>{fd.get()}).message;
    EXPECT_EQ(reply.request_id(), message.request_id());
    EXPECT_EQ(reply.code(), kInvalid);
    EXPECT_THAT(reply.message(), HasSubstr("takes none"));
  }
  Barrier(client());
  EXPECT_EQ(OpenFdCount(), before);
  EXPECT_EQ(engine().verb<SetPlanArgs>().calls() +
                engine().verb<ClearPlanArgs>().calls(),
            0u);
}

TEST_F(SessionPlans, WhatSetPlanMustNotSayDoesNotReachTheEngine) {
  ClientMessage message = SetPlanMessage(5);
  for (int i = 0; i < 65'536; ++i) message.mutable_set_plan()->add_order(4);
  const auto too_long = client().Call(message).message;
  EXPECT_EQ(too_long.code(), kInvalid);
  EXPECT_THAT(too_long.message(), HasSubstr("at most 65536"));
  message = SetPlanMessage(6);
  message.mutable_set_plan()->mutable_share()->set_weight(1001);
  const auto too_heavy = client().Call(message).message;
  EXPECT_EQ(too_heavy.code(), kInvalid);
  EXPECT_THAT(too_heavy.message(), HasSubstr("1 to 1000"));
  EXPECT_EQ(engine().verb<SetPlanArgs>().calls(), 0u);
}

// A client that leaves while its plan is being made: what the engine hands
// over later is closed.
TEST_F(SessionPlans, APlanForAClientThatLeftIsDropped) {
  const hoist::UniqueFd slab = DevNull();
  ASSERT_TRUE(client().Send(SetPlanMessage(5)));
  auto call = engine().verb<SetPlanArgs>().Next();
  client_.reset();
  engine().WaitUntilClosed(SessionId(1));
  // TearDown counts what is open.
  call.done(Opened({SlabIn(slab.get())}));
  Settle();
}

}  // namespace hoistd::testing::session_plan_verbs_test
