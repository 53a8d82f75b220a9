// Which loads a lane is given, and which words may be written.
#include "daemon/plan/lane_schedule.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/shared/lane_layout.h"
#include "tests/support/status_matchers.h"

namespace hoistd {

bool operator==(const LaneSchedule::Load& a, const LaneSchedule::Load& b) {
  return a.group == b.group && a.position == b.position;
}
void PrintTo(const LaneSchedule::Load& load, std::ostream* os) {
  *os << "group " << load.group << " for " << load.position;
}

namespace {

using hoist::lane::Reached;
using hoist::lane::WordOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;
using Load = LaneSchedule::Load;

// 0 and 2 share a place, 1 and 3 another.
const std::vector<Slot> kTwoPlaces = {{0, 10}, {10, 10}, {0, 10}, {10, 10}};
// 0 and 1 share a place; 2 lies alone.
const std::vector<Slot> kOneAlone = {{0, 10}, {0, 10}, {10, 10}};

// The schedule with a host that has everything, and its last answers.
struct Rig {
  explicit Rig(std::vector<Slot> slots, std::vector<uint32_t> order,
               uint64_t first = 0)
      : schedule(slots, std::move(order), first) {
    for (LaneGroup g = 0; g < slots.size(); ++g) schedule.SetHostReady(g, true);
  }
  std::optional<Load> Next() {
    served.clear();
    stale.clear();
    schedule.TakeStale(stale);
    return schedule.NextLoad(served);
  }
  // Takes the next load to its end; its position.
  uint64_t LoadOne() {
    const auto load = Next();
    EXPECT_TRUE(load.has_value());
    if (!load) return 0;
    schedule.Loaded(*load);
    return load->position;
  }
  void Done(uint64_t position) {
    schedule.SawDone(schedule.GroupAt(position), WordOf(position));
  }

  LaneSchedule schedule;
  std::vector<LaneSchedule::Serve> served;
  std::vector<LaneSchedule::Refresh> stale;
};

TEST(LaneSchedule, LoadsStartInOrderAsFarAsSlotsAreFree) {
  Rig rig(kTwoPlaces, {0, 1, 2, 3});
  EXPECT_EQ(rig.Next(), (Load{0, 0}));
  EXPECT_EQ(rig.Next(), (Load{1, 1}));
  EXPECT_EQ(rig.Next(), std::nullopt);
  EXPECT_EQ(rig.schedule.head(), 2u);
  rig.schedule.Loaded({0, 0});
  EXPECT_EQ(rig.Next(), std::nullopt);
  rig.Done(0);
  EXPECT_EQ(rig.Next(), (Load{2, 2}));
  EXPECT_FALSE(rig.schedule.present(0));
}

TEST(LaneSchedule, TheNextPassIsLoadedWhileThisOneEnds) {
  Rig rig(kTwoPlaces, {0, 1, 2, 3});
  for (uint64_t at = 0; at < 100; ++at) {
    EXPECT_EQ(rig.LoadOne(), at);
    if (at > 0) rig.Done(at - 1);
  }
}

TEST(LaneSchedule, SlotInUseIsNeverRefilled) {
  Rig rig(kTwoPlaces, {0, 1, 2, 3});
  rig.LoadOne();
  rig.LoadOne();
  // 1 is done, but 2 comes first and takes the place of 0.
  rig.Done(1);
  EXPECT_EQ(rig.Next(), std::nullopt);
  rig.schedule.SawDone(0, WordOf(0) - 1);
  EXPECT_EQ(rig.Next(), std::nullopt);
  EXPECT_TRUE(rig.schedule.in_use(0));
  rig.Done(0);
  EXPECT_EQ(rig.Next(), (Load{2, 2}));
  EXPECT_EQ(rig.Next(), (Load{3, 3}));
}

TEST(LaneSchedule, WhatLiesInItsSlotIsServedWithoutACopyOnceItIsDone) {
  Rig rig(kOneAlone, {2, 0, 2, 1});
  rig.LoadOne();
  rig.LoadOne();
  EXPECT_EQ(rig.Next(), std::nullopt);
  EXPECT_THAT(rig.served, IsEmpty());
  rig.Done(0);
  rig.Done(1);
  EXPECT_EQ(rig.Next(), (Load{1, 3}));
  EXPECT_THAT(rig.served, ElementsAre(Load{2, 2}));
  EXPECT_EQ(rig.schedule.last_position(2), 2u);
}

TEST(LaneSchedule, NoWordIsWrittenByTheCpuWhileACopyIsAboutToWriteIt) {
  Rig rig(kOneAlone, {2, 0, 2, 1});
  const auto load = rig.Next();
  rig.LoadOne();
  // Its position is skipped and its next one comes round before it ends.
  EXPECT_OK(rig.schedule.Skip(0, 2));
  EXPECT_FALSE(rig.schedule.in_use(2));
  EXPECT_EQ(rig.Next(), std::nullopt);
  EXPECT_THAT(rig.served, IsEmpty());
  EXPECT_TRUE(rig.schedule.loading(2));
  rig.schedule.Loaded(*load);
  EXPECT_EQ(rig.Next(), (Load{1, 3}));
  EXPECT_THAT(rig.served, ElementsAre(Load{2, 2}));
}

TEST(LaneSchedule, TheCopyOfASkippedPositionStillHasToEnd) {
  Rig rig(kOneAlone, {0, 1, 2});
  const auto load = rig.Next();
  EXPECT_OK(rig.schedule.Skip(0, 1));
  EXPECT_EQ(rig.Next(), std::nullopt);
  rig.schedule.Loaded(*load);
  EXPECT_EQ(rig.Next(), (Load{1, 1}));
}

TEST(LaneSchedule, AKernelMayBeDoneBeforeTheEndOfItsLoadIsKnown) {
  Rig rig(kOneAlone, {0, 1, 2});
  const auto load = rig.Next();
  rig.Done(0);
  EXPECT_EQ(rig.Next(), std::nullopt);
  rig.schedule.Loaded(*load);
  EXPECT_EQ(rig.Next(), (Load{1, 1}));
}

TEST(LaneSchedule, ASkipFreesWhatWasLoadedAhead) {
  Rig rig(kTwoPlaces, {0, 1, 2, 3});
  rig.LoadOne();
  rig.LoadOne();
  EXPECT_OK(rig.schedule.Skip(0, 1));
  EXPECT_EQ(rig.Next(), (Load{2, 2}));
  EXPECT_TRUE(rig.schedule.in_use(1));
}

TEST(LaneSchedule, AJumpMovesTheHead) {
  Rig rig(kTwoPlaces, {0, 1, 2, 3});
  rig.LoadOne();
  EXPECT_OK(rig.schedule.Skip(0, 3));
  EXPECT_EQ(rig.schedule.head(), 3u);
  EXPECT_EQ(rig.Next(), (Load{3, 3}));
  // 0 still lies where it was.
  EXPECT_EQ(rig.Next(), std::nullopt);
  EXPECT_THAT(rig.served, ElementsAre(Load{0, 4}));
}

TEST(LaneSchedule, WhatWasStagedBeforeASkipIsStillServed) {
  Rig rig(kTwoPlaces, {0, 1, 2, 3});
  rig.LoadOne();
  rig.LoadOne();
  // The client is ahead: it has staged 2, which waits for 0's place.
  EXPECT_OK(rig.schedule.Skip(3, 4));
  EXPECT_OK(rig.schedule.Skip(5, 7));
  EXPECT_EQ(rig.schedule.head(), 2u);
  rig.Done(0);
  EXPECT_EQ(rig.LoadOne(), 2u);
  EXPECT_EQ(rig.schedule.head(), 4u);
  rig.Done(1);
  rig.Done(2);
  EXPECT_EQ(rig.LoadOne(), 4u);
  EXPECT_THAT(rig.served, IsEmpty());
  // 5 and 6 are passed over without a copy.
  EXPECT_EQ(rig.schedule.head(), 7u);
}

TEST(LaneSchedule, SkipsThatMakeNoSenseAreRefusedAndChangeNothing) {
  using absl::StatusCode;
  Rig rig(kTwoPlaces, {0, 1, 2, 3});
  EXPECT_OK(rig.schedule.Skip(1, 3));
  const auto refused = StatusIs(StatusCode::kInvalidArgument);
  EXPECT_THAT(rig.schedule.Skip(2, 4), refused);
  EXPECT_THAT(rig.schedule.Skip(5, 4), refused);
  EXPECT_THAT(rig.schedule.Skip(5, 10), refused);
  EXPECT_THAT(rig.schedule.Skip(3, UINT64_MAX), refused);
  EXPECT_THAT(rig.schedule.Skip(UINT64_MAX, UINT64_MAX), refused);
  EXPECT_THAT(rig.schedule.Skip(uint64_t{1} << 40, (uint64_t{1} << 40) + 1),
              refused);
  EXPECT_OK(rig.schedule.Skip(5, 9));
  EXPECT_EQ(rig.schedule.head(), 0u);
}

TEST(LaneSchedule, OnlySoManySkipsWaitAndOneMoreIsTakenOnceThereIsRoom) {
  Rig rig({{0, 10}}, {0});
  uint64_t at = 1;
  for (size_t i = 0; i < LaneSchedule::kMaxSkipsAhead; ++i, at += 2) {
    ASSERT_OK(rig.schedule.Skip(at, at + 1));
  }
  EXPECT_THAT(rig.schedule.Skip(at, at + 1),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(rig.LoadOne(), 0u);
  EXPECT_EQ(rig.schedule.head(), 2u);
  EXPECT_OK(rig.schedule.Skip(at, at + 1));
}

TEST(LaneSchedule, OnlyAMissingHostIsCalledThat) {
  Rig rig(kOneAlone, {0, 1, 2});
  rig.schedule.SetHostReady(0, false);
  rig.schedule.SetHostReady(1, false);
  EXPECT_EQ(rig.Next(), std::nullopt);
  EXPECT_EQ(rig.schedule.blocked_on_host(), 0u);
  rig.schedule.SetHostReady(0, true);
  EXPECT_EQ(rig.schedule.blocked_on_host(), std::nullopt);
  EXPECT_EQ(rig.LoadOne(), 0u);
  // 1 lacks its place as well.
  EXPECT_EQ(rig.Next(), std::nullopt);
  EXPECT_EQ(rig.schedule.blocked_on_host(), std::nullopt);
  rig.Done(0);
  EXPECT_EQ(rig.Next(), std::nullopt);
  EXPECT_EQ(rig.schedule.blocked_on_host(), 1u);
  // What it would overwrite stays till then.
  EXPECT_TRUE(rig.schedule.present(0));
}

TEST(LaneSchedule, TheCapturedFormEndsAUseByAFlag) {
  Rig rig(kOneAlone, {0, 1, 2});
  rig.LoadOne();
  rig.schedule.SawDoneFlag(0);
  EXPECT_EQ(rig.Next(), (Load{1, 1}));
}

// A pass as long as may be, so that few jumps come round a word's 32 bits.
std::vector<uint32_t> LongOrder() {
  std::vector<uint32_t> order(LaneSchedule::kMaxOrder, 2);
  order[0] = 0;
  order[1] = 1;
  return order;
}

// A client that jumps from pass to pass and stages only group 2; what it and
// the GPU see of group 0 is kept beside.
struct LongRun {
  LongRun() : rig(kOneAlone, LongOrder()) {
    EXPECT_OK(rig.schedule.Skip(1, cursor));
  }

  void Apply() {
    for (const LaneSchedule::Refresh& refresh : rig.stale) {
      if (refresh.group == 0 && refresh.ready) ready = refresh.word;
      if (refresh.group == 0 && refresh.done) done = refresh.word;
    }
  }
  void JumpAPass() {
    const uint64_t to = cursor + LaneSchedule::kMaxOrder;
    ASSERT_OK(rig.schedule.Skip(cursor, to));
    const auto load = rig.Next();
    Apply();
    if (load) rig.schedule.Loaded(*load);
    cursor = to + 1;
    rig.schedule.SawDone(2, WordOf(to));
  }

  Rig rig;
  uint64_t cursor = 2;
  uint32_t ready = 0;
  uint32_t done = 0;
};

TEST(LaneSchedule, WordsOfAGroupPassedOverNeverSeemAhead) {
  LongRun run;
  run.rig.LoadOne();
  run.ready = run.done = WordOf(0);
  run.rig.Done(0);
  for (int i = 0; i < 3 * 4096; ++i) {
    run.JumpAPass();
    const uint64_t next =
        (run.cursor / LaneSchedule::kMaxOrder + 1) * LaneSchedule::kMaxOrder;
    ASSERT_FALSE(Reached(run.ready, WordOf(next))) << "after jump " << i;
    ASSERT_FALSE(Reached(run.done, WordOf(next))) << "after jump " << i;
  }
}

TEST(LaneSchedule, AWordsNextWriteIsNeverAnticipatedByARefresh) {
  LongRun run;
  run.rig.LoadOne();
  run.ready = WordOf(0);
  // Group 0 stays held; its done word is the client's until it is done.
  for (int i = 0; i < 2 * 4096; ++i) {
    run.JumpAPass();
    ASSERT_EQ(run.done, 0u) << "after jump " << i;
    ASSERT_TRUE(run.rig.schedule.in_use(0));
    const uint64_t next = run.cursor + LaneSchedule::kMaxOrder;
    ASSERT_FALSE(Reached(run.ready, WordOf(next))) << "after jump " << i;
  }
  run.rig.Done(0);
  EXPECT_FALSE(run.rig.schedule.in_use(0));
  const uint64_t head = run.rig.schedule.head();
  run.rig.Next();
  run.Apply();
  EXPECT_EQ(run.done, WordOf(head - 1));
}

TEST(LaneSchedule, WhoJumpsOnWhileACopyDragsIsHeldBackInTime) {
  LongRun run;
  const auto load = run.rig.Next();
  absl::Status status;
  uint64_t jumps = 0;
  for (; status.ok() && jumps < 8192; ++jumps) {
    const uint64_t to = run.cursor + LaneSchedule::kMaxOrder;
    status = run.rig.schedule.Skip(run.cursor, to);
    if (const auto other = run.rig.Next()) run.rig.schedule.Loaded(*other);
    for (const auto& refresh : run.rig.stale) {
      EXPECT_FALSE(refresh.group == 0 && refresh.ready);
    }
    if (status.ok()) run.cursor = to;
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_GT(jumps, 256u);
  EXPECT_LT(run.rig.schedule.head(), uint64_t{5} << 28);
  run.rig.schedule.Loaded(*load);
  run.rig.Next();
  EXPECT_THAT(run.rig.stale, ::testing::Not(IsEmpty()));
  EXPECT_OK(run.rig.schedule.Skip(run.cursor, run.cursor + 1));
}

// Of what lies in its slots a client stages and skips any number while a copy
// drags: position 0 is not served yet when its hoistd dies.
TEST(LaneSchedule, WhatWasServedPassesAheadIsNotOverwrittenByTheNextHoistd) {
  Rig rig(kOneAlone, {2, 0, 1});
  rig.schedule.ResumeWords(0, WordOf(13), WordOf(10));
  rig.schedule.Resumed();
  const Load alone{2, 0};
  const std::optional<Load> first = rig.Next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(*first, alone);
  EXPECT_EQ(rig.Next(), std::nullopt) << "1 lies where 0 is in use";
  rig.Done(13);
  const std::optional<Load> second = rig.Next();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->group, 1u);
}

TEST(LaneSchedule, AHostileClientOnlyHurtsItself) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Rig rig(kTwoPlaces, {0, 1, 2, 3, 1});
    for (LaneGroup group = 0; seed % 2 == 0 && group < 4; ++group) {
      rig.schedule.ResumeWords(group, static_cast<uint32_t>(random()),
                               static_cast<uint32_t>(random()));
    }
    rig.schedule.Resumed();
    std::vector<Load> under_way;
    for (int i = 0; i < 500; ++i) {
      const LaneGroup group = random() % 4;
      const uint64_t from = rig.schedule.head() + random() % 20 - 10;
      switch (random() % 4) {
        case 0:
          rig.schedule.SawDone(group, static_cast<uint32_t>(random()));
          break;
        case 1:
          // Any answer will do.
          rig.schedule.Skip(from, from + random() % 8).IgnoreError();
          rig.schedule.Skip(random(), random()).IgnoreError();
          break;
        case 2:
          if (const auto load = rig.Next()) {
            for (const Load& other : under_way) {
              ASSERT_FALSE(
                  kTwoPlaces[load->group].Overlaps(kTwoPlaces[other.group]));
            }
            under_way.push_back(*load);
          }
          break;
        case 3:
          if (under_way.empty()) break;
          rig.schedule.Loaded(under_way.front());
          under_way.erase(under_way.begin());
          break;
      }
    }
  }
}

}  // namespace
}  // namespace hoistd
