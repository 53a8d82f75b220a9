// Bytes of files that the last hoistd had read, and this one need not.
#include <memory>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_persisted_parts_test {

using ::testing::IsEmpty;
using testing::kPage;
using testing::NodeRig;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr uint64_t kInode = 1;

class NodePersistedParts : public ::testing::Test {
 protected:
  // A model of three blocks of four pages, of one file.
  static ModelId Blocks(NodeRig& rig, SessionId session) {
    return rig.AddGrouping(session, "m", kInode,
                           {{{0, 4}}, {{4, 4}}, {{8, 4}}});
  }
  static void Load(NodeRig& rig, ModelId model) {
    for (uint32_t g = 0; g < 3; ++g) {
      rig.Bring({model, GroupIndex(g)}, OnHost(), /*pin=*/false);
    }
    rig.FinishAll();
  }
  // Takes over what `last_` left.
  void Succeed(uint64_t ready_pages = 16) {
    next_ = std::make_unique<NodeRig>(
        testing::NodeRigOptions{.host_ready_pages = 0});
    for (const auto& [offset, part] : last_.persisted_parts()) {
      next_->LayPart(offset, part);
      ASSERT_OK(next_->node().supply().restored().AddPart(offset, part));
    }
    if (ready_pages > 0) next_->GrowHost(ready_pages);
  }
  uint64_t Used() const { return next_->TierOf(OnHost()).used_bytes / kPage; }
  uint64_t ReadBytes() const { return next_->counters().file_read_bytes; }

  NodeRig last_;
  Effects effects_;
  std::unique_ptr<NodeRig> next_;
};

TEST_F(NodePersistedParts, AreTheirsWhoRegisterTheFile) {
  Load(last_, Blocks(last_, last_.Open()));
  ASSERT_THAT(last_.persisted_parts(), SizeIs(3));
  Succeed();
  EXPECT_EQ(Used(), 12u);
  const SessionId session = next_->Open();
  const ModelId model = Blocks(*next_, session);
  next_->StageNow(session, {model, GroupIndex(2)});
  Load(*next_, model);
  EXPECT_EQ(ReadBytes(), 0u);
  EXPECT_EQ(Used(), 12u);
  // From now on they are as any.
  EXPECT_EQ(next_->Evict("m", OnHost()).groups, 3u);
  EXPECT_EQ(Used(), 0u);
  EXPECT_THAT(next_->persisted_parts(), IsEmpty());
}

TEST_F(NodePersistedParts, AreNotOtherUsersNorOtherFiles) {
  Load(last_, Blocks(last_, last_.Open(1)));
  Succeed();
  const SessionId other = next_->Open(2);
  Load(*next_, Blocks(*next_, other));
  EXPECT_EQ(ReadBytes(), 12 * kPage);
}

TEST_F(NodePersistedParts, OfTenantsAreTheTenants) {
  const User tenant = *User::Tenant("a");
  const SessionId session = last_.Open(Peer{.uid = tenant});
  Load(last_, Blocks(last_, session));
  EXPECT_EQ(last_.persisted_parts().begin()->second.owner, tenant);
  Succeed();
  Load(*next_, Blocks(*next_, next_->Open(Peer{.uid = tenant})));
  EXPECT_EQ(ReadBytes(), 0u);
}

TEST_F(NodePersistedParts, OfEveryoneServeEveryone) {
  const SessionId session = last_.Open(1);
  const auto model = last_.TryAddGrouping(session, "m", kInode, {{{0, 4}}},
                                          Readers::kEveryone);
  ASSERT_OK(model);
  last_.Bring({(*model)->id, GroupIndex(0)}, OnHost(), /*pin=*/false);
  last_.FinishAll();
  EXPECT_EQ(last_.persisted_parts().begin()->second.owner, std::nullopt);
  Succeed();
  const SessionId other = next_->Open(2);
  next_->StageNow(other, {Blocks(*next_, other), GroupIndex(0)});
  EXPECT_EQ(ReadBytes(), 0u);
}

TEST_F(NodePersistedParts, WhoWantsThemBeforeThePoolIsUpWaits) {
  Load(last_, Blocks(last_, last_.Open()));
  Succeed(/*ready_pages=*/0);
  EXPECT_EQ(Used(), 0u);
  const SessionId session = next_->Open();
  const ModelId model = Blocks(*next_, session);
  const RequestId stage = next_->Stage(session, {model, GroupIndex(1)});
  EXPECT_THAT(next_->Moving(), IsEmpty());
  EXPECT_THAT(next_->node().Forget(model, next_->now, effects_),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  next_->GrowHost(6);  // Ends in the middle of the second part.
  EXPECT_TRUE(next_->waiting(stage));
  EXPECT_EQ(Used(), 4u);
  next_->GrowHost(16);
  next_->FinishAll();
  next_->LeaseOf(stage);
  EXPECT_EQ(ReadBytes(), 0u);
}

TEST_F(NodePersistedParts, WhatNobodyUsesGoesFirst) {
  Load(last_, Blocks(last_, last_.Open()));
  Succeed();
  const SessionId session = next_->Open();
  const ModelId blocks = Blocks(*next_, session);
  next_->Bring({blocks, GroupIndex(0)}, OnHost(), /*pin=*/false);
  const ModelId other = next_->AddModel(session, "o", {10});
  next_->StageNow(session, {blocks, GroupIndex(1)});
  next_->Bring({other, GroupIndex(0)}, OnHost(), /*pin=*/false);
  next_->FinishAll();
  EXPECT_TRUE(next_->Has({other, GroupIndex(0)}, OnHost()));
  // The third, which nobody had asked for, before the others.
  EXPECT_THAT(next_->persisted_parts(), SizeIs(2));
}

TEST_F(NodePersistedParts, OnesThatCannotBeAreRefused) {
  Load(last_, Blocks(last_, last_.Open()));
  Succeed(/*ready_pages=*/0);
  const auto& [offset, part] = *last_.persisted_parts().begin();
  const auto restore = [&, &part = part](uint64_t at, auto change) {
    PersistedPart other = part;
    change(other);
    return next_->node().supply().restored().AddPart(at, other);
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(restore(offset, [](PersistedPart& p) { p.from = 64 * kPage; }),
              StatusIs(kInvalid));  // Another lies there.
  EXPECT_THAT(restore(12 * kPage, [](PersistedPart&) {}),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(
      restore(14 * kPage, [](PersistedPart& p) { p.from = 64 * kPage; }),
      StatusIs(kInvalid));  // Beyond the pool.
  EXPECT_THAT(restore(12 * kPage, [](PersistedPart& p) { p.bytes = 0; }),
              StatusIs(kInvalid));
  EXPECT_THAT(
      restore(12 * kPage, [](PersistedPart& p) { p.from = UINT64_MAX; }),
      StatusIs(kInvalid));
  EXPECT_THAT(
      restore(12 * kPage + 8, [](PersistedPart& p) { p.from = 64 * kPage; }),
      StatusIs(kInvalid));
}

}  // namespace hoistd::node_persisted_parts_test
