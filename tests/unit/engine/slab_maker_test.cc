// Slabs are made beside the engine, and go when it does.
#include "daemon/mover/slab_maker.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/engine_rig.h"
#include "tests/support/fake_device.h"

namespace hoistd::slab_maker_test {

using testing::Answer;
using testing::DeviceCall;
using ::testing::ElementsAre;
using testing::EngineRig;
using testing::FakeDevice;
using testing::FaultyDevice;
using testing::IsOk;
using testing::StatusIs;
using testing::Until;

// One that does what is posted when a test says so.
struct ByHand {
  struct Queue final : Executor {
    explicit Queue(ByHand& of) : threads(of) {}
    ~Queue() override { threads.RunAll(); }
    void Post(Task task) override { threads.tasks.push_back(std::move(task)); }
    ByHand& threads;
  };
  void RunAll() {
    while (!tasks.empty()) {
      Executor::Task task = std::move(tasks.front());
      tasks.pop_front();
      task();
    }
  }
  std::unique_ptr<Executor> Make() { return std::make_unique<Queue>(*this); }

  std::deque<Executor::Task> tasks;
};

class SlabMakerTest : public ::testing::Test {
 protected:
  SlabMakerTest() {
    SlabMakerEvents events;
    events.made = [this](SlabId id, const absl::StatusOr<SlabShare>& made) {
      told_.push_back(
          absl::StrCat(made.ok() ? "made " : "refused ", id.number()));
    };
    events.zeroed = [this](SlabId id, const absl::Status& zeroed) {
      told_.push_back(
          absl::StrCat(zeroed.ok() ? "zeroed " : "not zeroed ", id.number()));
    };
    events.not_destroyed = [this](SlabId id, const absl::Status&) {
      told_.push_back(absl::StrCat("left ", id.number()));
    };
    maker_.emplace(faulty_, threads_.Make(), std::move(events));
  }
  void Make(uint64_t id, uint64_t bytes = 64) {
    maker_->Do({SlabWork::Kind::kMake,
                DeviceIndex(0),
                {SlabId(id), id * 64 % 256, bytes, Backing::kMemfd}});
  }
  void Destroy(uint64_t id) {
    maker_->Do({SlabWork::Kind::kDestroy, DeviceIndex(0), {SlabId(id)}});
  }

  void Zero(uint64_t id) {
    maker_->Do({SlabWork::Kind::kZero, DeviceIndex(0), {SlabId(id)}});
  }

  FakeDevice device_{
      {.span_bytes = 256, .granularity = 16, .memory_bytes = 128}};
  FaultyDevice faulty_{device_};
  ByHand threads_;
  std::vector<std::string> told_;
  std::optional<SlabMaker> maker_;
};

TEST_F(SlabMakerTest, WhatIsDestroyedFirstGivesItsMemory) {
  Make(1);
  Make(2);
  Make(3);  // There is no memory for it.
  Destroy(1);
  Make(5);                         // Where 1 was.
  EXPECT_EQ(device_.bytes(), 0u);  // Not by who asks.
  threads_.RunAll();
  EXPECT_THAT(told_, ElementsAre("made 1", "made 2", "refused 3", "made 5"));
  EXPECT_EQ(device_.bytes(), 128u);
}

TEST_F(SlabMakerTest, WhatCannotBeDestroyedIsTriedAgainBeforeTheNext) {
  Make(1);
  faulty_.FailNth(DeviceCall::kDestroySlab, 1, absl::InternalError("not now"));
  Destroy(1);
  threads_.RunAll();
  EXPECT_EQ(device_.bytes(), 64u);
  Make(5, 128);
  threads_.RunAll();
  EXPECT_THAT(told_, ElementsAre("made 1", "left 1", "made 5"));
  EXPECT_EQ(device_.bytes(), 128u);
}

TEST_F(SlabMakerTest, WhatIsToGoIsNotZeroedFirst) {
  Make(1);
  Make(2);
  threads_.RunAll();
  Zero(1);
  Zero(2);
  Destroy(1);
  threads_.RunAll();
  EXPECT_THAT(told_, ElementsAre("made 1", "made 2", "zeroed 2"));
  EXPECT_EQ(faulty_.calls(DeviceCall::kZeroSlab), 1);
  EXPECT_EQ(device_.bytes(), 64u);
}

TEST_F(SlabMakerTest, WhatCannotBeZeroedIsDestroyedOnce) {
  Make(1);
  faulty_.FailNth(DeviceCall::kZeroSlab, 1, absl::InternalError("a bad page"));
  Zero(1);
  threads_.RunAll();
  Destroy(1);  // It was asked for before that was known.
  threads_.RunAll();
  EXPECT_THAT(told_, ElementsAre("made 1", "not zeroed 1"));
  EXPECT_EQ(device_.bytes(), 0u);
}

TEST_F(SlabMakerTest, ASlabThatCannotBeSharedIsRefusedAndGoes) {
  faulty_.FailNth(DeviceCall::kShare, 1, absl::InternalError("no handle"));
  Make(1);
  threads_.RunAll();
  EXPECT_THAT(told_, ElementsAre("refused 1"));
  EXPECT_EQ(device_.bytes(), 0u);
}

TEST_F(SlabMakerTest, AtTheEndAllIsDestroyedOnceAndNothingMoreIsMade) {
  Make(1);
  threads_.RunAll();
  faulty_.FailNth(DeviceCall::kDestroySlab, 1, absl::InternalError("not now"));
  Destroy(1);
  Make(2);
  threads_.RunAll();
  Make(3);
  const int creates = device_.creates();
  maker_.reset();
  EXPECT_EQ(device_.creates(), creates);
  EXPECT_EQ(device_.bytes(), 0u);
  // The one that failed and was done again, and the other.
  EXPECT_EQ(faulty_.calls(DeviceCall::kDestroySlab), 3);
}

TEST_F(SlabMakerTest, WhatWasAdoptedAndIsDroppedGivesItsMemory) {
  for (const uint64_t id : {1, 2}) {
    const SlabSpec slab = {SlabId(id), id * 64 % 256, 64, Backing::kMemfd};
    ASSERT_OK(maker_->Adopt(slab, hoist::UniqueFd()));
  }
  EXPECT_EQ(device_.bytes(), 128u);
  maker_->Drop();
  EXPECT_EQ(device_.bytes(), 0u);
  Make(1, 128);
  threads_.RunAll();
  EXPECT_THAT(told_, ElementsAre("made 1"));
}

// --- In the engine ----------------------------------------------------------

TEST(EngineSlabs, ASessionsResidentIsAnsweredWhileASlabIsMade) {
  EngineRig rig;
  ASSERT_OK(rig.Start());
  const SessionId ada = rig.Open(1);
  const SessionId bob = rig.Open(2);
  ASSERT_OK_AND_ASSIGN(const ModelPtr adas, rig.Register(ada, "m"));
  ASSERT_OK_AND_ASSIGN(const ModelPtr bobs, rig.Register(bob, "n"));
  const GroupKey resident = {adas->id, GroupIndex(0)};
  ASSERT_OK_AND_ASSIGN(const LeaseGrant first, rig.Stage(ada, resident));
  ASSERT_OK(rig.Release(ada, first.id));

  rig.faulty_device->HoldSlabs();
  const int before = rig.faulty_device->calls(DeviceCall::kCreateSlab);
  Answer<absl::StatusOr<LeaseGrant>> waits;
  rig.engine().Ask(
      bob,
      StageArgs{
          {bobs->id, GroupIndex(0)}, DeviceIndex(0), absl::ZeroDuration()},
      waits.done());
  ASSERT_TRUE(Until([&] {
    return rig.faulty_device->calls(DeviceCall::kCreateSlab) > before;
  }));
  // The device is busy with Bob's slab, and cannot end before this is over.
  ASSERT_OK_AND_ASSIGN(const LeaseGrant second, rig.Stage(ada, resident));
  rig.ExpectRight(*adas, second);
  EXPECT_EQ(rig.sessions(), 2u);
  rig.faulty_device->LetSlabsGo();
  const absl::StatusOr<LeaseGrant> lease = waits.Wait();
  ASSERT_OK(lease);
  rig.ExpectRight(*bobs, *lease);
}

TEST(EngineSlabs, StoppingWaitsForTheSlabAndDestroysAllOnce) {
  EngineRig rig;
  ASSERT_OK(rig.Start());
  const SessionId ada = rig.Open(1);
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig.Register(ada, "m"));
  ASSERT_OK(rig.Stage(ada, {model->id, GroupIndex(0)}));
  const SessionId bob = rig.Open(2);
  ASSERT_OK_AND_ASSIGN(const ModelPtr bobs, rig.Register(bob, "n"));
  rig.faulty_device->HoldSlabs();
  const int before = rig.faulty_device->calls(DeviceCall::kCreateSlab);
  Answer<absl::StatusOr<LeaseGrant>> waits;
  rig.engine().Ask(
      bob,
      StageArgs{
          {bobs->id, GroupIndex(0)}, DeviceIndex(0), absl::ZeroDuration()},
      waits.done());
  ASSERT_TRUE(Until([&] {
    return rig.faulty_device->calls(DeviceCall::kCreateSlab) > before;
  }));
  std::thread stops([&] { rig.Stop(); });
  EXPECT_THAT(waits.Wait(), StatusIs(absl::StatusCode::kUnavailable));
  rig.faulty_device->LetSlabsGo();
  stops.join();
  EXPECT_EQ(rig.faulty_device->calls(DeviceCall::kDestroySlab),
            rig.faulty_device->calls(DeviceCall::kCreateSlab));
}

}  // namespace hoistd::slab_maker_test
