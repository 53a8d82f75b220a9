#include "daemon/engine/engine.h"

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/engine_rig.h"

namespace hoistd::engine_test {

using testing::Answer;
using testing::DeviceCall;
using testing::EngineRig;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
const TierAt kDevice = OnDevice(DeviceIndex(0));

GroupKey Key(const ModelPtr& model, uint32_t group) {
  return {model->id, GroupIndex(group)};
}

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(rig_.Start()); }

  EngineRig rig_;
};

TEST_F(EngineTest, StagesEveryGroupOfAModelWithItsBytes) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  ASSERT_GE(model->spec->groups.size(), 5u);
  for (uint32_t g = 0; g < model->spec->groups.size(); ++g) {
    ASSERT_OK_AND_ASSIGN(const LeaseGrant lease,
                         rig_.Stage(session, Key(model, g)));
    EXPECT_FALSE(lease.was_resident);
    rig_.ExpectRight(*model, lease);
  }
  ASSERT_OK_AND_ASSIGN(const LeaseGrant again,
                       rig_.Stage(session, Key(model, 0)));
  EXPECT_TRUE(again.was_resident);
}

TEST_F(EngineTest, ASecondWorkerAttachesWithoutAnotherRead) {
  const SessionId a = rig_.Open(), b = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr first, rig_.Register(a, "m"));
  ASSERT_OK(rig_.Stage(a, Key(first, 0)));
  ASSERT_OK_AND_ASSIGN(const ModelPtr second, rig_.Register(b, "m"));
  EXPECT_EQ(second->id, first->id);
  const uint64_t read = rig_.counters().file_read_bytes;
  ASSERT_OK_AND_ASSIGN(const LeaseGrant lease, rig_.Stage(b, Key(first, 0)));
  EXPECT_TRUE(lease.was_resident);
  EXPECT_THAT(lease.new_slabs, SizeIs(1));
  EXPECT_EQ(rig_.counters().file_read_bytes, read);
}

TEST_F(EngineTest, AReaderSeesWhatTheEngineCounts) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  ASSERT_OK(rig_.Stage(session, Key(model, 0)));
  ASSERT_FALSE(rig_.Stage(session, {model->id, GroupIndex(99)}).ok());
  const EngineStats found =
      rig_.Look([](const NodeView& view) { return view.engine; });
  EXPECT_THAT(found.links, SizeIs(1));
  EXPECT_GT(found.links[0].lease_bytes, 0u);
  EXPECT_THAT(found.waits, SizeIs(1));
  EXPECT_GT(found.events, 3u);
  EXPECT_EQ(found.refused[static_cast<size_t>(absl::StatusCode::kNotFound)],
            1u);
  EXPECT_EQ(rig_.counters().stages, 2u);
}

TEST_F(EngineTest, FilesThatAreNoModelAreRefusedByName) {
  const SessionId session = rig_.Open();
  ASSERT_OK(testing::WriteFile(rig_.dir / "x.safetensors", "not a model"));
  RegisterModelArgs args;
  args.name = "x";
  args.shards.push_back(
      {"x.safetensors",
       hoist::UniqueFd(
           open((rig_.dir / "x.safetensors").c_str(), O_RDONLY | O_CLOEXEC))});
  Answer<absl::StatusOr<ModelPtr>> answer;
  rig_.engine().Ask(session, std::move(args), answer.done());
  EXPECT_THAT(answer.Wait(), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("x.safetensors")));
}

TEST_F(EngineTest, AFileThatChangedIsNotServed) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  for (const std::string& file : model->spec->files) {
    const std::string path = rig_.dir / "m" + "/" + file;
    ASSERT_EQ(truncate(path.c_str(), 100), 0);
  }
  EXPECT_THAT(rig_.Stage(session, Key(model, 0)),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(rig_.UsedOf(kDevice), 0u);
  EXPECT_EQ(rig_.UsedOf(OnHost()), 0u);
}

TEST_F(EngineTest, PublishedBytesComeBackFromTheSpillStore) {
  const SessionId session = rig_.Open();
  ASSERT_OK(rig_.Publish(session, "p", "a"));
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Publish(session, "p", "b"));
  ASSERT_OK(rig_.Publish(session, "p", "a"));  // Again: attaches.
  EXPECT_THAT(model->spec->groups, SizeIs(2));
  ASSERT_OK(rig_.Evict("p"));
  ASSERT_TRUE(rig_.Empties(OnHost()));
  ASSERT_OK_AND_ASSIGN(const LeaseGrant lease,
                       rig_.Stage(session, Key(model, 1)));
  rig_.ExpectRight(*model, lease);
  EXPECT_EQ(rig_.counters().spill_read_bytes, lease.bytes);
}

TEST_F(EngineTest, SpilledGroupsAreThereAfterARestart) {
  const SessionId before = rig_.Open();
  ASSERT_OK(rig_.Publish(before, "p", "a"));
  ASSERT_OK(rig_.Evict("p"));
  ASSERT_TRUE(rig_.Empties(OnHost()));
  rig_.Stop();
  ASSERT_OK(rig_.Start());
  const SessionId session = rig_.Open(), other = rig_.Open(/*uid=*/2);
  Answer<absl::StatusOr<ModelPtr>> found, hidden;
  rig_.engine().Ask(session, DescribeModelArgs{"p"}, found.done());
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, found.Wait());
  ASSERT_OK_AND_ASSIGN(const LeaseGrant lease,
                       rig_.Stage(session, Key(model, 0)));
  rig_.ExpectRight(*model, lease);
  rig_.engine().Ask(other, DescribeModelArgs{"p"}, hidden.done());
  EXPECT_THAT(hidden.Wait(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(EngineTest, ClosingASessionAnswersWhatItWaitsFor) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  rig_.faulty_device->HoldCopies();
  Answer<absl::StatusOr<LeaseGrant>> answer;
  rig_.engine().Ask(
      session, StageArgs{Key(model, 0), DeviceIndex(0), absl::Seconds(100)},
      answer.done());
  rig_.faulty_device->WaitForCopies(1);
  rig_.engine().CloseSession(session);
  EXPECT_THAT(answer.Wait(), StatusIs(absl::StatusCode::kCancelled));
  rig_.faulty_device->LetCopiesGo();
  rig_.engine().CloseSession(session);  // Again: nothing happens.
  ASSERT_OK(rig_.Stage(rig_.Open(), Key(model, 0)));
}

TEST_F(EngineTest, ClosingAnUnknownSessionDisturbsNoAdmin) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  rig_.faulty_device->HoldCopies();
  Answer<absl::StatusOr<LoadProgress>> answer;
  rig_.engine().Ask(LoadArgs{model->id, kDevice, [](const LoadProgress&) {}},
                    answer.done());
  rig_.engine().CloseSession(SessionId());
  rig_.engine().CloseSession(SessionId(12345));
  rig_.faulty_device->LetCopiesGo();
  ASSERT_OK_AND_ASSIGN(const LoadProgress progress, answer.Wait());
  EXPECT_EQ(progress.done_groups, progress.total_groups);
}

TEST_F(EngineTest, LoadPinUnpinAndEvict) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  ASSERT_OK_AND_ASSIGN(const LoadProgress loaded,
                       rig_.Load(model->id, OnHost()));
  EXPECT_EQ(loaded.done_bytes, model->spec->image_bytes);
  EXPECT_EQ(loaded.left_out_groups, 0u);
  Answer<absl::StatusOr<CopyTotals>> pin, unpin;
  rig_.engine().Ask(PinArgs{{"m", "", kDevice, rig_.kAdmin}, absl::Seconds(10)},
                    pin.done());
  EXPECT_EQ(pin.Wait()->groups, model->spec->groups.size());
  ASSERT_OK_AND_ASSIGN(const CopyTotals kept, rig_.Evict("m"));
  EXPECT_EQ(kept.kept, model->spec->groups.size());
  rig_.engine().Ask(UnpinArgs{{"m", "", {}, rig_.kAdmin}}, unpin.done());
  EXPECT_EQ(unpin.Wait()->groups, model->spec->groups.size());
  ASSERT_OK(rig_.Evict("m"));
  EXPECT_EQ(rig_.UsedOf(kDevice), 0u);
  ASSERT_OK(rig_.Evict("m", /*forget=*/true));
  EXPECT_THAT(rig_.Load(model->id, OnHost()),
              StatusIs(absl::StatusCode::kNotFound));
}

// More groups than are brought up at once, one after the other.
class EngineWithManyGroups : public ::testing::Test {
 protected:
  static constexpr int kLayers = 150;

  void SetUp() override {
    ASSERT_OK(rig_.Start());
    Answer<absl::StatusOr<ModelPtr>> answer;
    rig_.engine().Ask(rig_.Open(), rig_.Files("many", kLayers), answer.done());
    ASSERT_OK_AND_ASSIGN(model_, answer.Wait());
    ASSERT_GT(model_->spec->groups.size(), static_cast<size_t>(kLayers));
  }

  EngineRig rig_{
      {.host_bytes = uint64_t{64} << 20, .device_bytes = uint64_t{64} << 20}};
  ModelPtr model_;
};

TEST_F(EngineWithManyGroups, AreAllLoadedAndEachIsTold) {
  std::vector<uint32_t> told;  // The engine's thread's until it is done.
  Answer<absl::StatusOr<LoadProgress>> answer;
  rig_.engine().Ask(
      LoadArgs{model_->id, kDevice,
               [&](const LoadProgress& at) { told.push_back(at.done_groups); }},
      answer.done());
  ASSERT_OK_AND_ASSIGN(const LoadProgress done, answer.Wait());
  EXPECT_EQ(done.done_groups, model_->spec->groups.size());
  EXPECT_EQ(done.done_bytes, model_->spec->image_bytes);
  EXPECT_EQ(done.left_out_groups, 0u);
  ASSERT_THAT(told, SizeIs(done.done_groups));
  EXPECT_EQ(told.back(), done.done_groups);
  // Those that are there already are told as well.
  ASSERT_OK_AND_ASSIGN(const LoadProgress again,
                       rig_.Load(model_->id, kDevice));
  EXPECT_EQ(again.done_groups, done.done_groups);
}

TEST_F(EngineWithManyGroups, AreToldOnceOfAStop) {
  std::atomic<int> answers = 0;
  rig_.engine().Ask(
      LoadArgs{model_->id, kDevice, [](const LoadProgress&) {}},
      [&](absl::StatusOr<LoadProgress> done) {
        ++answers;
        EXPECT_TRUE(done.ok() || absl::IsUnavailable(done.status()))
            << done.status();
      });
  rig_.Stop();
  EXPECT_EQ(answers, 1);
}

TEST_F(EngineTest, AnEventThatHoldsUpOthersIsCounted) {
  rig_.Open();
  EXPECT_EQ(rig_.counters().slow_events, 0u);
  Answer<absl::StatusOr<uint64_t>> subscribed;
  rig_.engine().Ask(SubscribeArgs{[&](const NodeEvent&) {
                      rig_.clock.Advance(/*seconds=*/2);
                    }},
                    subscribed.done());
  ASSERT_OK(subscribed.Wait());
  rig_.Open();
  const Counters counters = rig_.counters();
  EXPECT_EQ(counters.slow_events, 1u);
  EXPECT_EQ(counters.longest_event, absl::Seconds(2));
}

TEST_F(EngineTest, PrefetchedGroupsAreResidentWhenTheyAreStaged) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  Answer<absl::Status> order, prefetch;
  rig_.engine().Ask(session,
                    SetOrderArgs{model->id, {GroupIndex(0), GroupIndex(1)}},
                    order.done());
  ASSERT_OK(order.Wait());
  rig_.engine().Ask(
      session, PrefetchArgs{model->id, {GroupIndex(1), GroupIndex(2)}, kDevice},
      prefetch.done());
  ASSERT_OK(prefetch.Wait());
  ASSERT_OK_AND_ASSIGN(const LeaseGrant lease,
                       rig_.Stage(session, Key(model, 2)));
  rig_.ExpectRight(*model, lease);
  EXPECT_EQ(rig_.Look([&](const NodeView& view) {
    return view.node.tenure().sessions().At(session).leases.size();
  }),
            1u);
}

TEST_F(EngineTest, DrainingRefusesAndResumes) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  Answer<absl::Status> on, off;
  rig_.engine().Ask(SetDrainingArgs{true}, on.done());
  ASSERT_OK(on.Wait());
  EXPECT_OK(rig_.Stage(session, Key(model, 0)));  // Who uses it goes on.
  EXPECT_THAT(rig_.Register(session, "n"), StatusIs(kUnavailable));
  EXPECT_EQ(rig_.Open(), SessionId());
  rig_.engine().Ask(SetDrainingArgs{false}, off.done());
  ASSERT_OK(off.Wait());
  EXPECT_OK(rig_.Stage(session, Key(model, 0)));
}

TEST_F(EngineTest, WatchersAreToldUntilTheyUnsubscribe) {
  std::vector<std::string> kinds;  // The engine's thread's until unsubscribed.
  Answer<absl::StatusOr<uint64_t>> subscribed;
  rig_.engine().Ask(SubscribeArgs{[&](const NodeEvent& event) {
                      kinds.push_back(ToString(event.kind));
                    }},
                    subscribed.done());
  ASSERT_OK_AND_ASSIGN(const uint64_t id, subscribed.Wait());
  const SessionId session = rig_.Open();
  ASSERT_OK(rig_.Register(session, "m"));
  Answer<absl::Status> unsubscribed, again;
  rig_.engine().Ask(UnsubscribeArgs{id}, unsubscribed.done());
  ASSERT_OK(unsubscribed.Wait());
  rig_.engine().CloseSession(session);
  rig_.counters();
  EXPECT_THAT(kinds, ::testing::ElementsAre("session-opened", "model-added"));
  rig_.engine().Ask(UnsubscribeArgs{id}, again.done());
  EXPECT_THAT(again.Wait(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(EngineTest, FactsSayWhatRuns) {
  const NodeFacts facts = rig_.engine().facts();
  EXPECT_EQ(facts.version, "test");
  EXPECT_EQ(facts.io.engine, "threads");
  EXPECT_THAT(facts.devices, SizeIs(1));
}

TEST(NoteRing, KeepsThoseOfTheStartAndTheNewest) {
  NoteRing ring({"of the start"});
  EXPECT_EQ(ring.All().dropped, 0u);
  for (int i = 0; i < 300; ++i) ring.Add(absl::StrCat("plan ", i, " ended"));
  const NodeNotes all = ring.All();
  ASSERT_THAT(all.notes, SizeIs(1 + NoteRing::kMost));
  EXPECT_EQ(all.notes.front(), "of the start");
  EXPECT_EQ(all.notes[1],
            absl::StrCat("plan ", 300 - NoteRing::kMost, " ended"));
  EXPECT_EQ(all.notes.back(), "plan 299 ended");
  EXPECT_EQ(all.dropped, 300 - NoteRing::kMost);
}

TEST_F(EngineTest, NotesAreBoundedAndNoPartOfTheFacts) {
  for (int i = 0; i < 300; ++i) rig_.engine().AddNote("look here");
  const NodeNotes notes = rig_.engine().notes();
  EXPECT_THAT(notes.notes, SizeIs(NoteRing::kMost));
  EXPECT_EQ(notes.notes.back(), "look here");
  EXPECT_EQ(notes.dropped, 300 - NoteRing::kMost);
}

// RESOURCE_EXHAUSTED tells a worker that its old plan stands: it would go on to
// compute with a ring that others have by now.
TEST(Engine, ARefusalAfterTheOldPlanEndedSaysThatItEnded) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  EngineRig rig;
  ASSERT_OK(rig.Start());
  const SessionId ada = rig.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig.Register(ada, "m"));
  SetPlanArgs args;
  args.model = model->id;
  for (uint32_t g = 0; g < model->spec->groups.size(); ++g) {
    args.order.push_back(GroupIndex(g));
  }
  args.budget_bytes = 5 * kMiB / 8;
  const auto set = [&] {
    testing::Answer<absl::StatusOr<OpenedPlan>> answer;
    rig.engine().Ask(ada, args, answer.done());
    return answer.Wait();
  };
  ASSERT_OK_AND_ASSIGN(const OpenedPlan old, set());
  // Another session takes what is left of the slab, and the device has no
  // memory for more, which is known only when it is asked.
  const SessionId bob = rig.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr other, rig.Register(bob, "n"));
  for (uint32_t g = 0; g < other->spec->groups.size(); ++g) {
    ASSERT_OK(rig.Stage(bob, {other->id, GroupIndex(g)}));
  }
  rig.faulty_device->FailAll(DeviceCall::kCreateSlab,
                             absl::ResourceExhaustedError("no memory"));
  args.replaces = old.grant.id;
  args.budget_bytes = 9 * kMiB / 8;
  EXPECT_THAT(set(), StatusIs(absl::StatusCode::kAborted));
  testing::Answer<absl::Status> cleared;
  rig.engine().Ask(ada, ClearPlanArgs{old.grant.id}, cleared.done());
  EXPECT_THAT(cleared.Wait(), StatusIs(absl::StatusCode::kNotFound));
}

// Whatever is under way, each caller is told once, and nothing hangs.
TEST_F(EngineTest, StoppingAnswersEverybodyOnce) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  Engine& engine = rig_.engine();
  std::atomic<int> asked = 0, answered = 0, unavailable = 0;
  const auto told = [&](const absl::Status& status) {
    ++answered;
    if (absl::IsUnavailable(status)) ++unavailable;
  };
  // One that waits for space that the next eight megabytes of pins take.
  rig_.faulty_device->FailAll(DeviceCall::kCreateSlab,
                              absl::ResourceExhaustedError("no memory"));
  ++asked;
  engine.Ask(
      session, StageArgs{Key(model, 0), DeviceIndex(0), absl::Hours(1)},
      [&](absl::StatusOr<LeaseGrant> lease) {
        told(lease.status());
        // Whoever is told may ask for something else.
        ++asked;
        engine.Ask(session, DescribeModelArgs{"m"},
                   [&](absl::StatusOr<ModelPtr> m) { told(m.status()); });
        ++asked;
        engine.Ask(session, rig_.Files("m"),
                   [&](absl::StatusOr<ModelPtr> m) { told(m.status()); });
      });
  for (int i = 0; i < 4; ++i) {
    ++asked;
    engine.Ask(session, rig_.Files(absl::StrCat("n", i)),
               [&](absl::StatusOr<ModelPtr> m) { told(m.status()); });
  }
  asked += 2;
  engine.Ask(LoadArgs{model->id, OnHost(), [](const LoadProgress&) {}},
             [&](absl::StatusOr<LoadProgress> p) { told(p.status()); });
  engine.Ask(session, EngineRig::Image("p", "a"),
             [&](absl::StatusOr<ModelPtr> m) { told(m.status()); });
  rig_.Stop();
  EXPECT_EQ(answered, asked);
  EXPECT_GE(unavailable, 1);
}

TEST(Engine, ADeviceWithoutStreamsIsNotStartedWith) {
  EngineRig rig;
  rig.faulty_device->FailNth(DeviceCall::kCreateStream, 1,
                             absl::InternalError("no stream"));
  EXPECT_THAT(rig.Start(), StatusIs(absl::StatusCode::kInternal));
}

}  // namespace hoistd::engine_test
