// Plans over a real socket and a real engine on the emulated device: what a
// client gets, and what it must not do to others or to itself.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/session/session_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/shared/mapping.h"
#include "tests/support/engine_rig.h"
#include "tests/support/lane_client.h"
#include "tests/support/raw_session.h"

namespace hoistd::testing::session_plan_test {

using ::hoist::v1::ClientMessage;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kInvalid = static_cast<int>(absl::StatusCode::kInvalidArgument);
constexpr int kNotFound = static_cast<int>(absl::StatusCode::kNotFound);
constexpr int kExhausted =
    static_cast<int>(absl::StatusCode::kResourceExhausted);

constexpr uint32_t kGroups = 4;
constexpr uint64_t kGroupBytes = 64 * 4096;

std::string GroupName(uint32_t group) { return absl::StrCat("g", group); }

// A published model of kGroups groups, kGroupBytes each.
class SessionPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(rig_.Start());
    publisher_ = rig_.Open(getuid());
    for (uint32_t g = 0; g < kGroups; ++g) {
      ASSERT_OK_AND_ASSIGN(const ModelPtr model,
                           rig_.Publish(publisher_, "m", GroupName(g)));
      model_ = model->id;
    }
    SessionServerOptions options;
    options.socket.path = rig_.dir / "hoistd.sock";
    ASSERT_OK_AND_ASSIGN(
        server_, SessionServer::Create(std::move(options), rig_.engine()));
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown();
    rig_.Stop();
  }

  std::unique_ptr<RawSession> Connect() {
    auto client = std::make_unique<RawSession>(rig_.dir / "hoistd.sock");
    EXPECT_EQ(client->Open().message.code(), 0);
    return client;
  }

  // In a budget of so many groups; every group in order, unless `order` says.
  ClientMessage SetPlan(uint64_t groups, std::vector<uint32_t> order = {}) {
    if (order.empty()) {
      order.resize(kGroups);
      std::iota(order.begin(), order.end(), 0);
    }
    ClientMessage message;
    message.set_request_id(++last_request_);
    auto* ask = message.mutable_set_plan();
    ask->set_model_id(model_.number());
    ask->set_budget_bytes(groups * kGroupBytes);
    for (const uint32_t group : order) ask->add_order(group);
    return message;
  }
  ClientMessage ClearPlan(uint64_t plan) {
    ClientMessage message;
    message.set_request_id(++last_request_);
    message.mutable_clear_plan()->set_plan_id(plan);
    return message;
  }
  ClientMessage Stage(uint32_t group) {
    ClientMessage message;
    message.set_request_id(++last_request_);
    message.mutable_stage()->set_model_id(model_.number());
    message.mutable_stage()->set_group(group);
    return message;
  }

  // The plan stands: it can be cleared, and once only.
  void ExpectStands(RawSession& client, uint64_t plan) {
    EXPECT_EQ(client.Call(ClearPlan(plan)).message.code(), 0);
    EXPECT_EQ(client.Call(ClearPlan(plan)).message.code(), kNotFound);
  }

  uint64_t last_request_ = 100;
  EngineRig rig_;
  SessionId publisher_;
  ModelId model_;
  std::unique_ptr<SessionServer> server_;
};

// A plan's reply as a client uses it: its slabs mapped, its lane at hand.
class OpenPlan {
 public:
  explicit OpenPlan(RawSession::Answer answer)
      : plan_(answer.message.plan()),
        lane_(Share(answer), LaneOrder(answer.message.plan())) {
    for (const auto& slab : plan_.slabs()) {
      slabs_.emplace(
          slab.offset_bytes(),
          hoist::Mapping::OfFd(answer.fds.at(slab.fd_index()).get(),
                               slab.size_bytes(), hoist::Mapping::Access::kRead)
              .value());
    }
  }

  LaneClient& lane() { return lane_; }
  // Of the lane's groups, which are in order of their first use.
  const hoist::v1::Plan::PlannedGroup& group(uint32_t lane_group) const {
    for (const auto& group : plan_.groups()) {
      if (!group.resident() && lane_group-- == 0) return group;
    }
    ADD_FAILURE() << "no such group in the lane";
    return plan_.groups(0);
  }
  std::string BytesAt(uint64_t offset, uint64_t bytes) const {
    auto slab = slabs_.upper_bound(offset);
    if (slab == slabs_.begin()) return "in no slab";
    --slab;
    const uint64_t within = offset - slab->first;
    if (within + bytes > slab->second.size()) return "in no slab";
    return std::string(
        reinterpret_cast<const char*>(slab->second.data()) + within, bytes);
  }

 private:
  static LaneShare Share(RawSession::Answer& answer) {
    LaneShare share;
    share.memory =
        std::move(answer.fds.at(answer.message.plan().lane_fd_index()));
    share.wake =
        std::move(answer.fds.at(answer.message.plan().wake_fd_index()));
    return share;
  }
  // Each group once, as SetPlan's own order has it.
  static std::vector<uint32_t> LaneOrder(const hoist::v1::Plan& plan) {
    std::vector<uint32_t> order;
    for (const auto& group : plan.groups()) {
      if (!group.resident()) order.push_back(order.size());
    }
    return order;
  }

  const hoist::v1::Plan plan_;
  LaneClient lane_;
  std::map<uint64_t, hoist::Mapping> slabs_;  // By offset in the span.
};

TEST_F(SessionPlan, StreamedGroupsComeIntoTheirSlotsOverTheLane) {
  const auto client = Connect();
  auto answer = client->Call(SetPlan(2));
  ASSERT_EQ(answer.message.code(), 0) << answer.message.message();
  const auto plan = answer.message.plan();
  EXPECT_EQ(plan.budget_bytes(), 2 * kGroupBytes);
  ASSERT_EQ(plan.groups_size(), static_cast<int>(kGroups));
  EXPECT_EQ(answer.fds.size(), static_cast<size_t>(plan.slabs_size()) + 2);
  OpenPlan open(std::move(answer));
  EXPECT_EQ(open.lane().header().magic, hoist::lane::kMagic);
  ASSERT_GT(open.lane().header().groups, 0u);
  for (uint64_t p = 0; p < 3 * open.lane().header().order_length; ++p) {
    ASSERT_OK(open.lane().Stage(p));
    const auto& group = open.group(open.lane().GroupAt(p));
    EXPECT_EQ(group.slot_bytes(), kGroupBytes);
    EXPECT_TRUE(
        open.BytesAt(group.offset_bytes(), kGroupBytes) ==
        EngineRig::PublishedBytes(GroupName(group.group()), kGroupBytes))
        << "position " << p;
    open.lane().Done(p);
  }
  ExpectStands(*client, plan.id());
}

TEST_F(SessionPlan, WhatAShareChangeDoesNotNameStays) {
  const auto client = Connect();
  ClientMessage wish = SetPlan(2);
  wish.mutable_set_plan()->mutable_share()->set_weight(7);
  wish.mutable_set_plan()->mutable_share()->set_max_bytes_per_second(1 << 30);
  const auto answer = client->Call(wish);
  ASSERT_EQ(answer.message.code(), 0) << answer.message.message();
  const PlanId plan(answer.message.plan().id());
  const auto change = [&](ShareOf of, const ShareChange& what) {
    Answer<absl::StatusOr<ShareChanged>> changed;
    rig_.engine().Ask(SetShareArgs{of, what}, changed.done());
    return changed.Wait();
  };
  ASSERT_OK(change(plan, {.priority = 5}).status());
  ASSERT_OK_AND_ASSIGN(const ShareChanged changed, change(plan, {.weight = 3}));
  EXPECT_EQ(changed.before.weight, 7u);
  EXPECT_EQ(changed.before.priority, 5);
  EXPECT_EQ(changed.after.weight, 3u);
  EXPECT_EQ(changed.after.priority, 5);
  EXPECT_EQ(changed.after.max_bytes_per_second, 1u << 30);
  // The streamer hears of it on its own thread.
  EXPECT_TRUE(testing::Until([&] {
    const ShareOptions share =
        rig_.Look([](const NodeView& view) { return view.lanes.at(0).share; });
    return share.weight == 3 && share.priority == 5 &&
           share.max_bytes_per_second == 1u << 30;
  }));
  EXPECT_THAT(change(PlanId(99), {.weight = 3}),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SessionPlan, WhatIsLoadedToADeviceCanBeCapped) {
  const auto change = [&](uint32_t device, const ShareChange& what) {
    Answer<absl::StatusOr<ShareChanged>> changed;
    rig_.engine().Ask(SetShareArgs{DeviceIndex(device), what}, changed.done());
    return changed.Wait();
  };
  ASSERT_OK_AND_ASSIGN(const ShareChanged changed,
                       change(0, {.max_bytes_per_second = 5}));
  EXPECT_EQ(changed.before.max_bytes_per_second, 0u);
  EXPECT_EQ(changed.after.max_bytes_per_second, 5u);
  EXPECT_EQ(rig_.Look([](const NodeView& view) {
    return view.engine.links.at(0).load_max_bytes_per_second;
  }),
            5u);
  EXPECT_THAT(change(1, {.max_bytes_per_second = 5}),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(change(0, {.weight = 3}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(change(0, {.priority = 3}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(SessionPlan, APlanThatFitsWholeHasNoLane) {
  const auto client = Connect();
  const auto answer = client->Call(SetPlan(kGroups));
  ASSERT_EQ(answer.message.code(), 0) << answer.message.message();
  EXPECT_TRUE(answer.fds.empty());
  for (const auto& group : answer.message.plan().groups()) {
    EXPECT_TRUE(group.resident());
  }
  ExpectStands(*client, answer.message.plan().id());
}

TEST_F(SessionPlan, AnotherSessionsPlanCanBeNeitherReplacedNorCleared) {
  const auto owner = Connect(), thief = Connect();
  auto answer = owner->Call(SetPlan(2));
  ASSERT_EQ(answer.message.code(), 0) << answer.message.message();
  const uint64_t plan = answer.message.plan().id();
  OpenPlan open(std::move(answer));
  ClientMessage replace = SetPlan(2);
  replace.mutable_set_plan()->set_replaces(plan);
  const auto refused = thief->Call(replace);
  EXPECT_EQ(refused.message.code(), kNotFound);
  EXPECT_THAT(refused.message.message(), HasSubstr(absl::StrCat(plan)));
  EXPECT_TRUE(refused.fds.empty());
  EXPECT_EQ(thief->Call(ClearPlan(plan)).message.code(), kNotFound);
  // It goes on as if nothing had been.
  for (uint64_t p = 0; p < 6; ++p) {
    ASSERT_OK(open.lane().Stage(p));
    open.lane().Done(p);
  }
  ExpectStands(*owner, plan);
}

TEST_F(SessionPlan, APlanThatNeverWasCanBeNeitherReplacedNorCleared) {
  const auto client = Connect();
  for (const uint64_t plan : {uint64_t{0}, uint64_t{77}, UINT64_MAX}) {
    EXPECT_EQ(client->Call(ClearPlan(plan)).message.code(), kNotFound) << plan;
    if (plan == 0) continue;  // In SetPlan: replaces none.
    ClientMessage replace = SetPlan(2);
    replace.mutable_set_plan()->set_replaces(plan);
    EXPECT_EQ(client->Call(replace).message.code(), kNotFound) << plan;
  }
}

TEST_F(SessionPlan, OrdersOfGroupsThatAreNotThereAreRefused) {
  const auto client = Connect();
  for (const uint32_t group : {kGroups, UINT32_MAX}) {
    const auto reply = client->Call(SetPlan(2, {0, 1, group})).message;
    EXPECT_EQ(reply.code(), kInvalid);
    EXPECT_THAT(reply.message(),
                AllOf(HasSubstr(absl::StrCat("group ", group)),
                      HasSubstr(absl::StrCat("has ", kGroups))));
  }
  ClientMessage empty = SetPlan(2);
  empty.mutable_set_plan()->clear_order();
  const auto reply = client->Call(empty).message;
  EXPECT_EQ(reply.code(), kInvalid);
  EXPECT_THAT(reply.message(), HasSubstr("order is empty"));
}

TEST_F(SessionPlan, ModelsAndDevicesThatAreNotThereAreRefused) {
  const auto client = Connect();
  ClientMessage message = SetPlan(2);
  message.mutable_set_plan()->set_model_id(UINT64_MAX);
  EXPECT_EQ(client->Call(message).message.code(), kNotFound);
  message = SetPlan(2);
  message.mutable_set_plan()->set_device(UINT32_MAX);
  const auto reply = client->Call(message).message;
  EXPECT_EQ(reply.code(), kInvalid);
  EXPECT_THAT(reply.message(), HasSubstr("no device 4294967295"));
}

TEST_F(SessionPlan, ABudgetThatIsTooSmallNamesTheLeastThatDoes) {
  const auto client = Connect();
  ClientMessage message = SetPlan(1);
  message.mutable_set_plan()->set_budget_bytes(kGroupBytes - 1);
  const auto reply = client->Call(message).message;
  EXPECT_EQ(reply.code(), kExhausted);
  EXPECT_THAT(reply.message(), HasSubstr(absl::StrCat(kGroupBytes, " bytes")));
  const auto least = client->Call(SetPlan(1)).message;
  EXPECT_EQ(least.code(), 0) << least.message();
}

TEST_F(SessionPlan, ABudgetIsWhatMayBeUsedAndNotWhatIsTaken) {
  const auto client = Connect();
  ClientMessage message = SetPlan(2);
  message.mutable_set_plan()->set_budget_bytes(UINT64_MAX);
  const auto reply = client->Call(message).message;
  ASSERT_EQ(reply.code(), 0) << reply.message();
  EXPECT_EQ(reply.plan().ring_bytes(), 0u);
  EXPECT_EQ(reply.plan().resident_bytes(), kGroups * kGroupBytes);
}

TEST_F(SessionPlan, ARefusedReplacementLeavesTheOldPlanStanding) {
  const auto client = Connect();
  auto answer = client->Call(SetPlan(2));
  ASSERT_EQ(answer.message.code(), 0) << answer.message.message();
  const uint64_t old = answer.message.plan().id();
  OpenPlan open(std::move(answer));
  ClientMessage too_small = SetPlan(1);
  too_small.mutable_set_plan()->set_budget_bytes(1);
  too_small.mutable_set_plan()->set_replaces(old);
  EXPECT_EQ(client->Call(too_small).message.code(), kExhausted);
  ClientMessage wrong = SetPlan(2, {kGroups});
  wrong.mutable_set_plan()->set_replaces(old);
  EXPECT_EQ(client->Call(wrong).message.code(), kInvalid);
  ASSERT_OK(open.lane().Stage(0));
  open.lane().Done(0);
  ClientMessage right = SetPlan(3);
  right.mutable_set_plan()->set_replaces(old);
  const auto reply = client->Call(right).message;
  ASSERT_EQ(reply.code(), 0) << reply.message();
  EXPECT_NE(reply.plan().id(), old);
  EXPECT_EQ(client->Call(ClearPlan(old)).message.code(), kNotFound);
  ExpectStands(*client, reply.plan().id());
}

TEST_F(SessionPlan, ASessionsPlansEndWithItsConnection) {
  auto client = Connect();
  ASSERT_EQ(client->Call(SetPlan(2)).message.code(), 0);
  ASSERT_EQ(client->Call(SetPlan(2)).message.code(), 0);
  const auto plans = [&] {
    return rig_.Look([](const NodeView& view) {
      return view.node.tenure().plans().standing().size();
    });
  };
  ASSERT_EQ(plans(), 2u);
  client.reset();
  // The streamer lets go on its own.
  EXPECT_TRUE(testing::Until([&] { return plans() == 0; }));
  EXPECT_EQ(rig_.sessions(), 1u);  // The publisher's.
}

// A session imports slabs as replies come, so what lies in a slab must not be
// told of before the slab is: not while the lane of the plan that is to bring
// it is still being opened either.
TEST_F(SessionPlan, ASlabIsGivenBeforeWhatLiesInIt) {
  // The image lies on the device already; its stage needs no copy.
  ASSERT_OK_AND_ASSIGN(const LeaseGrant kept,
                       rig_.Stage(publisher_, {model_, GroupIndex(3)}));
  for (int round = 0; round < 20; ++round) {
    const auto client = Connect();
    ClientMessage set_plan = SetPlan(2, {0, 1, 2});
    set_plan.mutable_set_plan()->set_deadline_ms(1000);
    const ClientMessage stage = Stage(3);
    ASSERT_TRUE(client->Send(set_plan));
    ASSERT_TRUE(client->Send(stage));
    std::vector<hoist::v1::Slab> given;
    for (int i = 0; i < 2; ++i) {
      const auto answer = client->Receive();
      ASSERT_TRUE(answer.has_value());
      ASSERT_EQ(answer->message.code(), 0) << answer->message.message();
      const auto& slabs = answer->message.has_plan()
                              ? answer->message.plan().slabs()
                              : answer->message.lease().slabs();
      given.insert(given.end(), slabs.begin(), slabs.end());
      if (!answer->message.has_lease()) continue;
      const uint64_t at = answer->message.lease().offset_bytes();
      EXPECT_TRUE(std::any_of(given.begin(), given.end(),
                              [at](const auto& s) {
                                return s.offset_bytes() <= at &&
                                       at + kGroupBytes <=
                                           s.offset_bytes() + s.size_bytes();
                              }))
          << "round " << round
          << ": the lease is in a slab that was not given yet";
    }
  }
}

}  // namespace hoistd::testing::session_plan_test
