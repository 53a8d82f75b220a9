// What metrics count of the books is what the snapshot shows.
#include "daemon/core/node_measure.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_measure_test {

using ::testing::Each;
using ::testing::Field;
using testing::kPage;
using testing::NodeRig;
using ::testing::SizeIs;

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

NodeMeasure Measure(const NodeRig& rig, size_t models = 100,
                    int* steps = nullptr) {
  MeasureWalk walk(models);
  int count = 1;
  while (NodeMeasurer(rig.node()).Step(walk)) ++count;
  if (steps != nullptr) *steps = count;
  for (TierMeasure& tier : walk.found.tiers) {
    uint64_t held = 0;
    for (const uint64_t bytes : tier.held) held += bytes;
    EXPECT_EQ(held, tier.used_bytes) << ToString(tier.at);
    EXPECT_EQ(tier.used_bytes, rig.TierOf(tier.at).used_bytes);
    EXPECT_EQ(tier.capacity_bytes, rig.TierOf(tier.at).capacity_bytes);
  }
  return walk.found;
}

uint64_t DeviceHeld(const NodeMeasure& found, Holding by) {
  return found.tiers[0].held[static_cast<size_t>(by)];
}

TEST(NodeMeasure, EachByteIsCountedOnceByWhatHoldsIt) {
  NodeRig rig({.host_pages = 32, .device_pages = {16}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 2, 3});
  const LeaseId lease = rig.StageNow(session, Key(model, 0));
  rig.Bring(Key(model, 1), NodeRig::FirstDevice(), /*pin=*/true);
  rig.FinishAll();
  ASSERT_OK(rig.Prefetch(session, model, {2}));
  rig.Finish<FilesToHost>();
  NodeMeasure found = Measure(rig);
  EXPECT_EQ(DeviceHeld(found, Holding::kLeased), 1 * kPage);
  EXPECT_EQ(DeviceHeld(found, Holding::kPinned), 2 * kPage);
  EXPECT_EQ(DeviceHeld(found, Holding::kMoving), 3 * kPage);
  EXPECT_EQ(found.leases, 1u);
  EXPECT_EQ(found.sessions, 1u);
  rig.FinishAll();
  ASSERT_OK(rig.Release(session, lease));
  found = Measure(rig);
  EXPECT_EQ(DeviceHeld(found, Holding::kCache), 4 * kPage);
  ASSERT_THAT(found.models, SizeIs(1));
  EXPECT_EQ(found.models[0].name, "m");
  EXPECT_EQ(found.models[0].device_bytes, 6 * kPage);
  EXPECT_EQ(found.models[0].host_bytes, 6 * kPage);
}

TEST(NodeMeasure, PlansHaveTheirRingAndTheirResidents) {
  NodeRig rig({.host_pages = 32, .device_pages = {16}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2, 2, 2, 2});
  const PlanGrant grant =
      rig.PlanOf(rig.SetPlan(session, model, {0, 1, 2, 3}, 6));
  ASSERT_GT(grant.ring_bytes, 0u);
  ASSERT_GT(grant.resident_bytes, 0u);
  for (const PlannedGroup& group : grant.groups) {
    if (group.resident) {
      rig.StageNow(session, {model, group.group});
    }
  }
  rig.Hold(grant.id, {3});
  rig.FinishAll();
  const NodeMeasure found = Measure(rig);
  EXPECT_EQ(found.plans, 1u);
  EXPECT_EQ(DeviceHeld(found, Holding::kRing), grant.ring_bytes);
  EXPECT_EQ(DeviceHeld(found, Holding::kResident), grant.resident_bytes);
  EXPECT_EQ(DeviceHeld(found, Holding::kLeased), 0u);
  EXPECT_EQ(found.tiers[1].held[static_cast<size_t>(Holding::kHeld)],
            2 * kPage);
}

TEST(NodeMeasure, WhatIsHotIsOfThatWhichIsReadInPlace) {
  NodeRig rig({.host_pages = 32, .device_pages = {16}, .in_place_pages = 16});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2, 2});
  rig.StageApartNow(session, Key(model, 0), rig.in_place());
  rig.StageApartNow(session, Key(model, 1), rig.in_place());
  rig.StageApartNow(session, Key(model, 1), 0);
  const NodeMeasure found = Measure(rig);
  EXPECT_EQ(DeviceHeld(found, Holding::kHot), 2 * kPage);
  EXPECT_EQ(found.tiers[1].held[static_cast<size_t>(Holding::kLeased)],
            4 * kPage);
  EXPECT_EQ(found.models[0].in_place_bytes, 4 * kPage);
  EXPECT_EQ(found.models[0].device_bytes, 2 * kPage);
}

TEST(NodeMeasure, WhatIsPublishedAndOnNoDiskIsUnsaved) {
  NodeRig rig({.can_spill = true});
  const SessionId session = rig.Open();
  rig.Published(session, "p", "g", 3);
  NodeMeasure found = Measure(rig);
  EXPECT_EQ(found.tiers[1].held[static_cast<size_t>(Holding::kUnsaved)],
            3 * kPage);
  rig.Evict("p", OnHost());
  rig.FinishAll();
  found = Measure(rig);
  EXPECT_EQ(found.tiers[1].used_bytes, 0u);
  EXPECT_EQ(found.models[0].disk_bytes, 3 * kPage);
  EXPECT_EQ(found.tiers.back().used_bytes, 3 * kPage);
}

TEST(NodeMeasure, OfManyModelsThoseThatUseMostAreNamedAndNothingIsLost) {
  NodeRig rig({.host_pages = 64, .device_pages = {64}});
  const SessionId session = rig.Open();
  uint64_t all = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    const ModelId model =
        rig.AddModel(session, absl::StrCat("m", i), {i % 7 + 1});
    if (i % 50 == 3) {
      rig.StageNow(session, Key(model, 0));
      all += i % 7 + 1;
    }
  }
  const NodeMeasure found = Measure(rig, 4);
  ASSERT_THAT(found.models, SizeIs(4));
  EXPECT_THAT(found.models,
              Each(Field(&ModelMeasure::device_bytes, ::testing::Gt(0u))));
  EXPECT_GT(found.other_models.device_bytes, 0u);
  uint64_t sum = found.other_models.device_bytes;
  for (const ModelMeasure& model : found.models) sum += model.device_bytes;
  EXPECT_EQ(sum, all * kPage);
  EXPECT_EQ(found.model_count, 300u);
  EXPECT_THAT(Measure(rig, 0).models, SizeIs(0));
}

TEST(NodeMeasure, StepsAreBoundedAndTogetherCountAll) {
  NodeRig rig({.host_pages = 8, .device_pages = {8}});
  const SessionId session = rig.Open();
  // Across a model's end, and within one that is larger than a step.
  const size_t step = MeasureWalk::kGroupsAStep;
  rig.AddModel(session, "a", std::vector<uint64_t>(step / 2, 1));
  const ModelId big =
      rig.AddModel(session, "b", std::vector<uint64_t>(3 * step, 1));
  rig.StageNow(session, Key(big, 0));
  rig.StageNow(session, Key(big, static_cast<uint32_t>(3 * step - 1)));
  int steps = 0;
  const NodeMeasure found = Measure(rig, 10, &steps);
  EXPECT_GE(steps, 4);
  ASSERT_THAT(found.models, SizeIs(2));
  EXPECT_EQ(found.models[1].device_bytes, 2 * kPage);
}

TEST(NodeMeasure, AModelThatGoesBetweenStepsIsSkipped) {
  NodeRig rig({.host_pages = 8, .device_pages = {8}});
  const SessionId session = rig.Open();
  const ModelId big = rig.AddModel(
      session, "b", std::vector<uint64_t>(2 * MeasureWalk::kGroupsAStep, 1));
  rig.AddModel(session, "c", {1});
  MeasureWalk walk(10);
  ASSERT_TRUE(NodeMeasurer(rig.node()).Step(walk));
  ASSERT_OK(rig.Forget(big));
  while (NodeMeasurer(rig.node()).Step(walk)) {
  }
  ASSERT_THAT(walk.found.models, SizeIs(1));
  EXPECT_EQ(walk.found.models[0].name, "c");
}

TEST(NodeMeasure, StagesAreTimedByWhereTheirBytesWere) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 1});
  const RequestId read = rig.Stage(session, Key(model, 0));
  rig.Advance(absl::Seconds(2));
  rig.FinishAll();
  ASSERT_OK(rig.Release(session, rig.LeaseOf(read)));
  rig.StageNow(session, Key(model, 0));  // A hit.
  rig.Bring(Key(model, 1), OnHost(), /*pin=*/false);
  rig.FinishAll();
  rig.StageNow(session, Key(model, 1));  // From the host.
  const auto& times = Measure(rig).counters.stage_times;
  for (const Tier from : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    EXPECT_EQ(times[static_cast<size_t>(from)].total, 1u);
  }
  EXPECT_EQ(times[static_cast<size_t>(Tier::kDisk)].seconds, 2);
  EXPECT_EQ(times[static_cast<size_t>(Tier::kDevice)].seconds, 0);
}

TEST(NodeMeasure, WhatAdminsEvictIsToldApart) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1});
  ASSERT_OK(rig.Release(session, rig.StageNow(session, Key(model, 0))));
  rig.Evict("m");
  const Counters counters = Measure(rig).counters;
  EXPECT_EQ(counters.device_evictions_by_admins, 1u);
  EXPECT_EQ(counters.host_evictions_by_admins, 1u);
  EXPECT_EQ(counters.device_evictions, 0u);
}

TEST(NodeMeasure, WhatAnAdminEvictsOnceItIsWrittenIsTheAdmins) {
  NodeRig rig({.can_spill = true});
  rig.Published(rig.Open(), "p", "g", 1);
  rig.Evict("p", OnHost());
  rig.FinishAll();
  const Counters counters = Measure(rig).counters;
  EXPECT_EQ(counters.host_evictions_by_admins, 1u);
  EXPECT_EQ(counters.host_evictions, 0u);
}

}  // namespace hoistd::node_measure_test
