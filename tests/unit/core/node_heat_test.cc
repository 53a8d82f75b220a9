// What workers tell of their reads in place.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_heat_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::NodeRig;
using testing::StatusIs;

struct Heats : NodeRig {
  Heats() : NodeRig({.in_place_pages = 8}) {}
  std::vector<float> Told(SessionId session, std::vector<GroupHeat> heat) {
    const auto known = node().tenure().ReportHeat(
        session, {.model = model, .heat = std::move(heat)});
    EXPECT_OK(known.status());
    std::vector<float> by_group(3);
    if (!known.ok()) return by_group;
    for (const GroupHeat& one : *known) by_group[one.group.number()] = one.heat;
    return by_group;
  }

  SessionId ada = Open(1), bob = Open(2);
  ModelId model = AddModel(ada, "m", {2, 2, 2});
};

TEST(NodeHeat, WhoTellsNothingHearsWhatOthersTold) {
  Heats rig;
  EXPECT_EQ(rig.Told(rig.ada, {}), (std::vector<float>{0, 0, 0}));
  const GroupIndex first(0), last(2);
  EXPECT_EQ(rig.Told(rig.ada, {{first, 8}, {last, 2}}),
            (std::vector<float>{8, 0, 2}));
  // The next one counts as much as all before it.
  EXPECT_EQ(rig.Told(rig.ada, {{first, 4}}), (std::vector<float>{6, 0, 2}));
  EXPECT_EQ(rig.Told(rig.ada, {}), (std::vector<float>{6, 0, 2}));
}

TEST(NodeHeat, WhatWasTouchedIsCounted) {
  Heats rig;
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(rig.node().tenure().ReportHeat(
        rig.ada,
        {.model = rig.model, .touched_hot_bytes = 5, .touched_cold_bytes = 3}));
  }
  const Counters& counters = rig.counters();
  EXPECT_EQ(counters.touched_hot_bytes, 10u);
  EXPECT_EQ(counters.touched_cold_bytes, 6u);
}

TEST(NodeHeat, WhatCannotBeIsRefusedAndNothingOfItIsTaken) {
  Heats rig;
  EXPECT_THAT(rig.node().tenure().ReportHeat(
                  rig.ada, {.model = rig.model,
                            .heat = {{GroupIndex(1), 1}, {GroupIndex(3), 1}}}),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("it has 3")));
  for (const uint32_t device : {1u, rig.in_place()}) {
    EXPECT_THAT(
        rig.node().tenure().ReportHeat(rig.ada,
                                       {.model = rig.model,
                                        .heat = {{GroupIndex(1), 1}},
                                        .device = DeviceIndex(device)}),
        StatusIs(absl::StatusCode::kNotFound, HasSubstr("this node has 1")));
  }
  EXPECT_THAT(*rig.node().tenure().ReportHeat(rig.ada, {.model = rig.model}),
              IsEmpty());
  // Another user's model.
  EXPECT_FALSE(
      rig.node().tenure().ReportHeat(rig.bob, {.model = rig.model}).ok());
}

TEST(NodeHeat, AModelThatIsForgottenTakesItsHeatAlong) {
  Heats rig;
  rig.Told(rig.ada, {{GroupIndex(0), 8}});
  ASSERT_OK(rig.Forget(rig.ada, rig.model));
  const ModelId again = rig.AddModel(rig.ada, "m", {2, 2, 2});
  EXPECT_THAT(*rig.node().tenure().ReportHeat(rig.ada, {.model = again}),
              IsEmpty());
}

}  // namespace hoistd::node_heat_test
