// What Admin's messages say of the node's books.
#include "daemon/rpc/node_reader.h"

#include <string>

#include "daemon/convert/types_convert.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/rpc/lent_books.h"

namespace hoistd::node_reader_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kPage;
using testing::LentBooks;
using testing::NodeRig;
using testing::StatusIs;

const Peer kRoot = {.uid = User(0), .admin = true};

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

pb::NodeStatus StatusOf(const LentBooks& books) {
  pb::NodeStatus status;
  NodeReader(books.view).Status(NodeFacts(), NodeNotes(), &status);
  return status;
}

TEST(NodeReader, StatusHasEachTierAndItsHolders) {
  LentBooks books;
  const SessionId session = books.rig.Open(1);
  const GroupKey key = books.rig.Published(session, "m", "a", 3);
  books.rig.StageNow(session, key);
  books.rig.StageNow(session, key);
  books.rig.Open(2);
  books.rig.Drain(true);
  const pb::NodeStatus status = StatusOf(books);
  EXPECT_TRUE(status.draining());
  ASSERT_EQ(status.tiers_size(), 3);
  EXPECT_EQ(status.tiers(0).tier(), pb::TIER_DEVICE);
  EXPECT_EQ(status.tiers(0).capacity_bytes(), 8 * kPage);
  EXPECT_EQ(status.tiers(0).leased_bytes(), 3 * kPage);
  EXPECT_EQ(status.tiers(1).tier(), pb::TIER_HOST);
  EXPECT_EQ(status.tiers(1).unsaved_bytes(), 3 * kPage);
  ASSERT_EQ(status.tiers(1).holders_size(), 1);
  EXPECT_EQ(status.tiers(1).holders(0).name(), "m/a");
  EXPECT_EQ(status.tiers(1).holders(0).bytes(), 3 * kPage);
  EXPECT_EQ(status.tiers(2).tier(), pb::TIER_DISK);
  EXPECT_EQ(status.sessions(), 2u);
  EXPECT_EQ(status.models(), 1u);
  EXPECT_EQ(status.leases(), 2u);
}

TEST(NodeReader, StatusHasWhatADeviceLacksOfItsPool) {
  LentBooks books;
  EXPECT_EQ(StatusOf(books).withheld_size(), 0);
  const TierAt device = NodeRig::FirstDevice();
  books.rig.Resize(device, 3, /*headroom_pages=*/4);
  const pb::NodeStatus status = StatusOf(books);
  ASSERT_EQ(status.withheld_size(), 1);
  EXPECT_EQ(status.withheld(0).device(), 0u);
  EXPECT_EQ(status.withheld(0).bytes(), 5 * kPage);
  EXPECT_EQ(status.withheld(0).headroom_bytes(), 4 * kPage);
  EXPECT_EQ(status.withheld(0).growth_bytes(), kPage);
  EXPECT_EQ(status.withheld(0).growth_ms(), 5000u);
  // The rest of the pool is a step of any size.
  books.rig.Resize(device, 7, /*headroom_pages=*/8);
  EXPECT_EQ(StatusOf(books).withheld(0).growth_bytes(), kPage);
}

TEST(NodeReader, StatusHasWhatTheEngineCounts) {
  LentBooks books;
  const SessionId session = books.rig.Open(1);
  books.view.counters.stages = 9;
  books.view.counters.longest_event = absl::Milliseconds(7);
  books.view.engine.links = {{.plan_bytes = 10,
                              .lease_bytes = 20,
                              .background_bytes = 30,
                              .own_bytes = 70,
                              .own_read_bytes = 80,
                              .bytes_per_second = 40,
                              .read_bytes_per_second = 60,
                              .load_max_bytes_per_second = 50}};
  books.view.permits = {{{.id = PermitId(5),
                          .session = session,
                          .share = {.weight = 4},
                          .copied_bytes = 71,
                          .read_bytes = 81,
                          .grants = 6,
                          .late = 1}}};
  const pb::NodeStatus status = StatusOf(books);
  EXPECT_EQ(status.counters().stages(), 9u);
  EXPECT_EQ(status.counters().longest_event_us(), 7000u);
  ASSERT_EQ(status.links_size(), 1);
  const pb::LinkStatus& link = status.links(0);
  EXPECT_EQ(link.plan_bytes(), 10u);
  EXPECT_EQ(link.lease_bytes(), 20u);
  EXPECT_EQ(link.background_bytes(), 30u);
  EXPECT_EQ(link.bytes_per_second(), 40u);
  EXPECT_EQ(link.load_max_bytes_per_second(), 50u);
  EXPECT_EQ(link.read_bytes_per_second(), 60u);
  EXPECT_EQ(link.own_bytes(), 70u);
  EXPECT_EQ(link.own_read_bytes(), 80u);
  ASSERT_EQ(link.permits_size(), 1);
  const pb::PermitStatus& permit = link.permits(0);
  EXPECT_EQ(permit.id(), 5u);
  EXPECT_EQ(permit.session_id(), session.number());
  EXPECT_EQ(permit.client_name(), "worker1");
  EXPECT_EQ(permit.share().weight(), 4u);
  EXPECT_EQ(permit.copied_bytes(), 71u);
  EXPECT_EQ(permit.read_bytes(), 81u);
  EXPECT_EQ(permit.grants(), 6u);
  EXPECT_EQ(permit.late_grants(), 1u);
}

TEST(NodeReader, AModelIsSummedOverItsGroupsAndTiers) {
  LentBooks books({.can_spill = true});
  const SessionId session = books.rig.Open(5);
  const ModelId files = books.rig.AddModel(session, "f", {2, 1});
  books.rig.StageNow(session, Key(files, 0));
  books.rig.Published(session, "p", "a", 3);
  books.rig.Evict("5:p");
  books.rig.FinishAll();
  pb::ListModelsResponse models;
  NodeReader(books.view).Models(&models);
  ASSERT_EQ(models.models_size(), 2);
  const pb::ModelSummary& f = models.models(0);
  EXPECT_EQ(f.id(), files.number());
  EXPECT_EQ(f.name(), "f");
  EXPECT_EQ(f.owner_uid(), 5u);
  EXPECT_EQ(f.groups(), 2u);
  EXPECT_FALSE(f.published());
  EXPECT_EQ(f.image_bytes(), 3 * kPage);
  EXPECT_EQ(f.device_bytes(), 2 * kPage);
  EXPECT_EQ(f.host_bytes(), 2 * kPage);
  EXPECT_EQ(f.disk_bytes(), 0u);
  const pb::ModelSummary& p = models.models(1);
  EXPECT_TRUE(p.published());
  EXPECT_EQ(p.source(), "published");
  EXPECT_EQ(p.host_bytes(), 0u);
  EXPECT_EQ(p.disk_bytes(), 3 * kPage);
}

TEST(NodeReader, WhatIsInPageableMemoryIsCountedApart) {
  LentBooks books({.host_pages = 4,
                   .pageable_pages = 4,
                   .can_spill = true,
                   .saves_at_once = true});
  const SessionId session = books.rig.Open(5);
  for (const char* group : {"a", "b", "c"}) {
    books.rig.Publish(session, "p", group, 2);
    books.rig.FinishAll();
    books.rig.Advance(absl::Seconds(1));
  }
  pb::ListModelsResponse models;
  NodeReader(books.view).Models(&models);
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).host_bytes(), 4 * kPage);
  EXPECT_EQ(models.models(0).pageable_bytes(), 2 * kPage);
  EXPECT_EQ(models.models(0).disk_bytes(), 6 * kPage);
}

TEST(NodeReader, AGroupHasItsCopies) {
  LentBooks books({.can_spill = true, .saves_at_once = true});
  const SessionId session = books.rig.Open(5);
  const GroupKey key = books.rig.Published(session, "p", "a", 3);
  books.rig.FinishAll();
  books.rig.StageNow(session, key);
  pb::ListGroupsResponse groups;
  ASSERT_OK(NodeReader(books.view).Groups(kRoot, "5:p", &groups));
  ASSERT_EQ(groups.groups_size(), 1);
  EXPECT_EQ(groups.groups(0).name(), "a");
  EXPECT_EQ(groups.groups(0).image_bytes(), 3 * kPage);
  std::vector<pb::Tier> tiers;
  for (const auto& copy : groups.groups(0).copies()) {
    tiers.push_back(copy.tier());
    EXPECT_EQ(copy.residency(), pb::RESIDENCY_PRESENT);
    EXPECT_EQ(copy.leases(), copy.tier() == pb::TIER_DEVICE ? 1u : 0u);
  }
  EXPECT_THAT(tiers, ::testing::UnorderedElementsAre(
                         pb::TIER_DEVICE, pb::TIER_HOST, pb::TIER_DISK));
}

TEST(NodeReader, AnothersModelMustBeNamedWithItsOwner) {
  LentBooks books;
  for (const uint32_t uid : {1000u, 1001u}) {
    books.rig.Published(books.rig.Open(uid), "m", "of " + std::to_string(uid),
                        1);
  }
  const NodeReader reader(books.view);
  pb::ListGroupsResponse groups;
  EXPECT_THAT(reader.Groups(kRoot, "m", &groups),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("UID:NAME")));
  ASSERT_OK(reader.Groups(kRoot, "1001:m", &groups));
  EXPECT_EQ(groups.groups(0).name(), "of 1001");
  EXPECT_THAT(reader.Groups(kRoot, "x", &groups),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(NodeReader, ASessionHasItsHoldings) {
  LentBooks books({.in_place_pages = 4});
  const SessionId session = books.rig.Open(1, /*budget_pages=*/6);
  const ModelId model = books.rig.AddModel(session, "m", {2, 1});
  books.rig.StageNow(session, Key(model, 0));
  books.rig.Stage(session, Key(model, 1));
  books.rig.ArenaOf(books.rig.OpenArena(session, 3));
  books.view.now = books.rig.now + absl::Seconds(90);
  pb::SessionStatus status;
  NodeReader(books.view).Session(session, &status);
  EXPECT_EQ(status.id(), session.number());
  EXPECT_EQ(status.client_name(), "worker1");
  EXPECT_EQ(status.uid(), 1u);
  EXPECT_EQ(status.age_ms(), 90'000u);
  EXPECT_EQ(status.leases(), 1u);
  EXPECT_EQ(status.leased_bytes(), 2 * kPage);
  EXPECT_EQ(status.device_budget_bytes(), 6 * kPage);
  EXPECT_EQ(status.waiting(), 1u);
  EXPECT_EQ(status.plans(), 0u);
  EXPECT_EQ(status.arenas(), 1u);
  EXPECT_EQ(status.arena_bytes(), 3 * kPage);
}

TEST(NodeReader, EachUserSeesTheirOwnSessionsAndPlans) {
  LentBooks books;
  std::vector<uint64_t> sessions, plans;
  for (const uint32_t uid : {1u, 2u, 1u}) {
    const SessionId session = books.rig.Open(uid);
    const ModelId model = books.rig.AddModel(
        session, "m" + std::to_string(session.number()), {1});
    const PlanGrant plan =
        books.rig.PlanOf(books.rig.SetPlan(session, model, {0}, 1));
    if (uid != 1) continue;
    sessions.push_back(session.number());
    plans.push_back(plan.id.number());
  }
  const NodeReader reader(books.view);
  pb::ListSessionsResponse seen;
  reader.Sessions({.uid = User(1)}, &seen);
  ASSERT_EQ(seen.sessions_size(), 2);
  EXPECT_EQ(seen.sessions(0).id(), sessions[0]);
  EXPECT_EQ(seen.sessions(1).id(), sessions[1]);
  pb::ListPlansResponse of;
  reader.Plans({.uid = User(1)}, &of);
  ASSERT_EQ(of.plans_size(), 2);
  EXPECT_EQ(of.plans(0).id(), plans[0]);
  EXPECT_EQ(of.plans(1).id(), plans[1]);
  pb::ListPlansResponse all;
  reader.Plans(kRoot, &all);
  EXPECT_EQ(all.plans_size(), 3);
}

TEST(NodeReader, APlanSaysAllThatIsKnownOfIt) {
  LentBooks books({.device_pages = {8, 8}});
  NodeRig& rig = books.rig;
  const SessionId session = rig.Open(1);
  const ModelId model = rig.AddModel(session, "m", {2, 2, 2, 2});
  const PlanGrant grant = rig.PlanOf(rig.SetPlan(
      session, model, {0, 1, 2, 3}, 6, absl::Seconds(10), {}, /*device=*/1));
  rig.Hold(grant.id, {1});
  rig.FinishAll();
  LaneStats lane;
  lane.plan = grant.id;
  lane.share.weight = 7;
  lane.share.priority = -3;
  lane.share.max_bytes_per_second = 108;
  lane.copied_bytes = 109;
  lane.bytes_per_second = 110;
  lane.loads = 111;
  lane.served_in_place = 112;
  lane.skipped = 113;
  lane.wasted_loads = 114;
  lane.host_waits = 115;
  lane.captured = true;
  books.view.lanes = {lane};
  pb::PlanStatus want;
  want.set_id(grant.id.number());
  want.set_session_id(session.number());
  want.set_client_name("worker1");
  want.set_model("m");
  want.set_device(1);
  want.set_budget_bytes(6 * kPage);
  want.set_resident_bytes(grant.resident_bytes);
  want.set_ring_bytes(grant.ring_bytes);
  want.set_streamed_bytes(grant.streamed_bytes);
  want.set_held_bytes(2 * kPage);
  want.set_groups(4);
  want.set_streamed_groups(
      static_cast<uint32_t>(4 - grant.resident_bytes / (2 * kPage)));
  want.set_lead(grant.lead);
  want.mutable_share()->set_weight(7);
  want.mutable_share()->set_priority(-3);
  want.mutable_share()->set_max_bytes_per_second(108);
  want.set_copied_bytes(109);
  want.set_bytes_per_second(110);
  want.set_loads(111);
  want.set_served_in_place(112);
  want.set_skipped(113);
  want.set_wasted_loads(114);
  want.set_host_waits(115);
  want.set_captured(true);
  pb::ListPlansResponse plans;
  NodeReader(books.view).Plans(kRoot, &plans);
  ASSERT_EQ(plans.plans_size(), 1);
  EXPECT_EQ(plans.plans(0).DebugString(), want.DebugString());
  const auto* type = pb::PlanStatus::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    EXPECT_TRUE(want.GetReflection()->HasField(want, type->field(i)))
        << type->field(i)->name() << " is new, and is not looked at here";
  }
}

// Nothing is streamed, so it has no lane.
TEST(NodeReader, AResidentPlanHasTheUsualShare) {
  LentBooks books;
  const SessionId session = books.rig.Open(1);
  const ModelId model = books.rig.AddModel(session, "m", {1});
  books.rig.SetPlan(session, model, {0}, 1);
  pb::ListPlansResponse plans;
  NodeReader(books.view).Plans(kRoot, &plans);
  ASSERT_EQ(plans.plans_size(), 1);
  EXPECT_EQ(plans.plans(0).share().weight(), ShareOptions().weight);
  EXPECT_EQ(plans.plans(0).streamed_groups(), 0u);
  EXPECT_FALSE(plans.plans(0).captured());
}

}  // namespace hoistd::node_reader_test
