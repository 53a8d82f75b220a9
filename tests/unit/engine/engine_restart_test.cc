// An engine, and the next one, which goes on with what it left.
#include <string>
#include <string_view>
#include <vector>

#include "daemon/engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/engine_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::engine_restart_test {

using testing::Answer;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::EngineRig;
using ::testing::Field;
using ::testing::IsEmpty;
using testing::StatusIs;

class EngineRestart : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(rig_.Start()); }
  // The next one begins without this image, as after a death in the middle of
  // forgetting its model.
  void RestartWithout(const std::string& model, const std::string& group) {
    rig_.on_found = [&](FoundOnHost& found) {
      EXPECT_EQ(std::erase_if(found.images,
                              [&](const FoundImage& image) {
                                return image.meta.model == model &&
                                       image.meta.group.name == group;
                              }),
                1u);
    };
    Restart();
    rig_.on_found = [](FoundOnHost&) {};
  }
  void Restart() {
    rig_.Stop();
    ASSERT_OK(rig_.Start());
  }
  // The lease is there yet, with its session.
  void ExpectGoesOn(SessionId session, const LeaseGrant& lease) {
    const std::vector<ResumedSession> resumed = rig_.engine().TakeResumed();
    ASSERT_EQ(resumed.size(), 1u);
    EXPECT_EQ(resumed[0].id, session);
    EXPECT_OK(resumed[0].ended) << notes();
    Answer<absl::StatusOr<Resumed>> answer;
    rig_.engine().Resume(session, {.leases = {lease.id}}, nullptr,
                         answer.done());
    const absl::StatusOr<Resumed> lost = answer.Wait();
    ASSERT_OK(lost);
    EXPECT_THAT(lost->lost_leases, IsEmpty());
    EXPECT_OK(rig_.Release(session, lease.id));
  }
  // Root's model of this name, which must exist.
  static const ModelEntry& ModelOf(const NodeView& view,
                                   const std::string& name) {
    for (const auto& [id, entry] : view.node.copies().models()) {
      if (entry->model->spec->name == name) return *entry;
    }
    HOIST_CHECK(false);
  }
  ModelId IdOf(const std::string& model) {
    return rig_.Look(
        [&](const NodeView& view) { return ModelOf(view, model).model->id; });
  }
  uint32_t Missing(const std::string& model) {
    return rig_.Look(
        [&](const NodeView& view) { return ModelOf(view, model).missing(); });
  }
  // Those whose bytes are somewhere.
  std::vector<std::string> GroupsOf(const std::string& model) {
    return rig_.Look([&](const NodeView& view) {
      std::vector<std::string> names;
      for (const GroupEntry& group : ModelOf(view, model).groups) {
        if (!IsMissing(*group.group)) names.push_back(group.group->name);
      }
      return names;
    });
  }
  std::string notes() {
    std::string all;
    for (const std::string& note : rig_.engine().notes().notes) {
      all += note + "\n";
    }
    return all;
  }

  EngineRig rig_{{.spills = false, .keeps = true}};
};

TEST_F(EngineRestart, AModelUnderANewNumberDoesNotTakeAnothers) {
  const SessionId session = rig_.Open();
  ASSERT_OK(rig_.Publish(session, "z", "first"));
  ASSERT_OK(rig_.Publish(session, "z", "second"));
  // Put back before z; the number behind its own is the next model's.
  const auto published = rig_.Publish(session, "a", "only");
  ASSERT_OK(published);
  const auto files = rig_.Register(session, "m");
  ASSERT_OK(files);
  ASSERT_EQ((*files)->id.number(), (*published)->id.number() + 1);
  const auto lease = rig_.Stage(session, {(*files)->id, GroupIndex(0)});
  ASSERT_OK(lease);
  RestartWithout("z", "first");
  ExpectGoesOn(session, *lease);
  EXPECT_THAT(GroupsOf("z"), ElementsAre("second"));
}

TEST_F(EngineRestart, WhatLostItsNumberIsDroppedFromDevicesAlone) {
  const SessionId session = rig_.Open();
  ASSERT_OK(rig_.Publish(session, "z", "first"));
  const auto published = rig_.Publish(session, "z", "second");
  ASSERT_OK(published);
  const auto idle = rig_.Stage(session, {(*published)->id, GroupIndex(1)});
  ASSERT_OK(idle);
  ASSERT_OK(rig_.Release(session, idle->id));
  const auto files = rig_.Register(session, "m");
  ASSERT_OK(files);
  const auto lease = rig_.Stage(session, {(*files)->id, GroupIndex(0)});
  ASSERT_OK(lease);
  RestartWithout("z", "first");
  ExpectGoesOn(session, *lease);
  EXPECT_THAT(GroupsOf("z"), ElementsAre("second"));
  EXPECT_THAT(rig_.Look([](const NodeView& view) {
    std::vector<Place> places;
    for (const auto& [place, copy] : ModelOf(view, "z").groups[1].copies) {
      if (copy.state != Residency::kAbsent) places.push_back(place);
    }
    return places;
  }),
              ElementsAre(kHost));
  // Nor does the next one find what lies there by then of any model.
  const SessionId later = rig_.Open();
  const auto again = rig_.Stage(later, {IdOf("z"), GroupIndex(1)});
  ASSERT_OK(again);
  ASSERT_OK(rig_.Release(later, again->id));
  Restart();
  EXPECT_OK(rig_.engine().TakeResumed().at(0).ended) << notes();
}

// The places that its workers know are those that outlive hoistd.
TEST_F(EngineRestart, WhatIsLeasedOfACompletedModelGoesOn) {
  const SessionId session = rig_.Open();
  for (const char* group : {"a", "b", "c"}) {
    ASSERT_OK(rig_.Publish(session, "z", group));
  }
  rig_.engine().CloseSession(session);
  RestartWithout("z", "b");
  EXPECT_EQ(Missing("z"), 1u);
  // One place after the other: what is not there yet is no loss of this life.
  const SessionId later = rig_.Open();
  const auto staged = [&](uint32_t group) {
    return rig_.Stage(later, {IdOf("z"), GroupIndex(group)});
  };
  EXPECT_THAT(staged(1), StatusIs(absl::StatusCode::kDataLoss));
  const auto lacking = staged(2);
  ASSERT_OK(lacking);
  Restart();
  ExpectGoesOn(later, *lacking);
  ASSERT_OK(rig_.Publish(later, "z", "b"));
  EXPECT_EQ(Missing("z"), 0u);
  EXPECT_THAT(GroupsOf("z"), ElementsAre("a", "b", "c"));
  const auto whole = staged(1);
  ASSERT_OK(whole);
  Restart();
  ExpectGoesOn(later, *whole);
}

}  // namespace hoistd::engine_restart_test
