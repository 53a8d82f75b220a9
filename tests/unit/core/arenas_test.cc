#include "daemon/core/arenas.h"

#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/core/space_rig.h"

namespace hoistd::arenas_test {

using namespace space_rig;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::SizeIs;
using testing::StatusIs;

const SessionId kJob(11);
const ArenaId kArena(21);

// Over a Space of four pages in place.
class ArenasTest : public SpaceRig {
 protected:
  ArenasTest() : SpaceRig(DeviceKind::kInPlace) {
    OpenSessionArgs args;
    args.peer.uid = kAnn;
    tenure_.sessions().Open(kJob, args, kStart);
  }

  absl::Status Open(ArenaId id, uint64_t pages) {
    absl::Status opens =
        arenas_.Open(RequestId(id.number()), id, kJob,
                     {pages * kPage, absl::Seconds(10)}, kStart);
    arenas_.Advance(kStart, effects_);
    return opens;
  }
  // Of this kind, all that is asked for is done.
  size_t Do(SlabWork::Kind kind) {
    size_t done = 0;
    for (const SlabWork& work : space_.TakeWork().slabs) {
      if (work.kind != kind) continue;
      ++done;
      if (kind == SlabWork::Kind::kMake) {
        const auto made = space_.SlabMade(kDevice, work.slab.id, SlabShare());
        arenas_.PieceMade(made.piece.value(), absl::OkStatus(), effects_);
      } else {
        space_.SlabZeroed(kDevice, work.slab.id, absl::OkStatus());
      }
    }
    return done;
  }

  const DeviceNames names_{devices_};
  Counters counters_;
  Tenure tenure_{options_, devices_, names_, copies_,  models_,
                 quota_,   space_,   kept_,  counters_};
  Arenas arenas_{options_, devices_, copies_, models_,  quota_,
                 space_,   tenure_,  kept_,   counters_};
  Effects effects_;
};

TEST_F(ArenasTest, IsGrantedOnceAllItsMemoryIsThere) {
  ASSERT_THAT(Open(kArena, 2), IsOk());
  EXPECT_THAT(effects_.answers, IsEmpty());
  EXPECT_EQ(Do(SlabWork::Kind::kMake), 2u);
  ASSERT_THAT(effects_.answers, SizeIs(1));
  EXPECT_THAT(effects_.answers[0].status, IsOk());
  EXPECT_THAT(effects_.answers[0].arena->slabs, SizeIs(2));
  EXPECT_EQ(counters_.arena_made_bytes, 2 * kPage);
}

TEST_F(ArenasTest, TheUsersNextHasItsMemoryZeroed) {
  ASSERT_THAT(Open(kArena, 2), IsOk());
  ASSERT_EQ(Do(SlabWork::Kind::kMake), 2u);
  EXPECT_THAT(arenas_.Close(SessionId(99), kArena, effects_),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(arenas_.Close(kJob, kArena, effects_), IsOk());
  EXPECT_EQ(Do(SlabWork::Kind::kZero), 2u);
  ASSERT_THAT(Open(ArenaId(22), 2), IsOk());
  EXPECT_EQ(Do(SlabWork::Kind::kMake), 0u);
  EXPECT_EQ(counters_.arena_reused_bytes, 2 * kPage);
  EXPECT_THAT(effects_.answers, SizeIs(2));
}

TEST_F(ArenasTest, OneWhoseMemoryCannotBeMadeGivesAllOfItBack) {
  ASSERT_THAT(Open(kArena, 2), IsOk());
  const std::vector<SlabWork> slabs = space_.TakeWork().slabs;
  ASSERT_THAT(slabs, SizeIs(2));
  const absl::Status none = absl::ResourceExhaustedError("none");
  const auto made = space_.SlabMade(kDevice, slabs[0].slab.id, none);
  arenas_.PieceMade(made.piece.value(), none, effects_);
  ASSERT_THAT(effects_.answers, SizeIs(1));
  EXPECT_THAT(effects_.answers[0].status,
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(space_.device(kDevice).used(), 0u);
  EXPECT_THAT(arenas_.book().all(), IsEmpty());
}

TEST_F(ArenasTest, WhatCouldNeverBeGrantedIsRefusedAtOnce) {
  EXPECT_THAT(Open(kArena, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Open(kArena, 5), StatusIs(absl::StatusCode::kResourceExhausted));
  tenure_.SetDraining(true);
  EXPECT_THAT(Open(kArena, 1), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(arenas_.book().all(), IsEmpty());
}

}  // namespace hoistd::arenas_test
