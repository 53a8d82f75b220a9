// libhoist.so's tensors in place, against a daemon that a script drives.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist_c.h"
#include "tests/unit/client/fake_in_place.h"

namespace hoist_test::in_place_test {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr uint64_t kPiece = FakeInPlace::kPiece;
constexpr uint32_t kDevice = 0, kPlace = FakeInPlace::kInPlace;

struct Told {
  int code = HOIST_OK;
  std::string why;
};

// What a call answered.
template <typename Call>
Told Ask(const Call& call) {
  hoist_error* error = nullptr;
  Told told = {call(&error), ""};
  if (error != nullptr) told.why = hoist_error_message(error);
  hoist_error_free(error);
  return told;
}

std::vector<uint32_t> Upto(uint32_t count) {
  std::vector<uint32_t> groups(count);
  std::iota(groups.begin(), groups.end(), 0u);
  return groups;
}

struct Options {
  uint32_t units = 0;
  uint64_t budget = 0;
  const std::vector<uint32_t>* counts = nullptr;
  uint64_t first_count = 0;
  uint64_t bytes = 0;
  uint32_t device = kDevice;
  uint8_t* cold = nullptr;
  uint64_t scratch_bytes = 0;
};

class InPlace : public ::testing::Test {
 protected:
  ~InPlace() override {
    hoist_in_place_free(in_place_);
    hoist_model_free(model_);
    hoist_session_free(session_);
  }
  void Connect() {
    hoist_connect_options options = {};
    options.struct_size = sizeof(options);
    options.socket_path = daemon_.path().c_str();
    ASSERT_EQ(hoist_connect(&options, &session_, nullptr), HOIST_OK);
    ASSERT_EQ(hoist_describe_model(session_, "moe", &model_, nullptr),
              HOIST_OK);
  }
  // One tensor of these pieces.
  Told Create(const std::vector<uint32_t>& groups, const Options& with = {}) {
    if (session_ == nullptr) Connect();
    hoist_in_place_tensor tensor = {};
    tensor.struct_size = sizeof(tensor);
    tensor.groups = groups.data();
    tensor.group_count = groups.size();
    tensor.units = with.units;
    tensor.first_count = with.first_count;
    tensor.bytes = with.bytes;
    tensor.scratch_bytes = with.scratch_bytes;
    hoist_in_place_options options = {};
    options.struct_size = sizeof(options);
    options.device = with.device;
    options.hot_budget_bytes = with.budget;
    options.deadline_ms = 60'000;
    if (with.counts != nullptr) {
      options.counts = with.counts->data();
      options.count_length = with.counts->size();
    }
    options.cold = with.cold;
    return Ask([&](hoist_error** error) {
      return hoist_in_place_create(session_, model_, &tensor, 1, &options,
                                   &in_place_, error);
    });
  }
  void Made(const std::vector<uint32_t>& groups, const Options& with = {}) {
    const Told told = Create(groups, with);
    ASSERT_EQ(told.code, HOIST_OK) << told.why;
  }
  // In one pass.
  int Touch(const std::vector<uint32_t>& units, uint32_t times = 1) {
    const std::vector<uint32_t> counts(units.size(), times);
    return hoist_in_place_touch(in_place_, 0, units.data(), counts.data(),
                                units.size(), nullptr);
  }
  void TouchInPasses(const std::vector<uint32_t>& units, int passes) {
    for (int i = 0; i < passes; ++i) ASSERT_EQ(Touch(units), HOIST_OK);
  }
  int Begin() { return hoist_in_place_begin(in_place_, nullptr, nullptr); }
  int End() { return hoist_in_place_end(in_place_, nullptr); }

  // Another thread's pass, until End.
  class OtherPass {
   public:
    explicit OtherPass(InPlace& test)
        : thread_([this, &test] {
            EXPECT_EQ(test.Begin(), HOIST_OK);
            begun_.set_value();
            may_end_.get_future().wait();
            EXPECT_EQ(test.End(), HOIST_OK);
          }) {
      begun_.get_future().wait();
    }
    void End() {
      may_end_.set_value();
      thread_.join();
    }

   private:
    std::promise<void> begun_;
    std::promise<void> may_end_;
    std::thread thread_;
  };
  Told Advance(bool wait) {
    return Ask([&](hoist_error** error) {
      return hoist_in_place_advance(in_place_, wait ? 1 : 0, error);
    });
  }
  Told Check() {
    return Ask([&](hoist_error** error) {
      return hoist_in_place_check(in_place_, error);
    });
  }
  Told CheckHot() {
    return Ask([&](hoist_error** error) {
      return hoist_in_place_check_hot(in_place_, error);
    });
  }
  hoist_in_place_stats Stats() {
    hoist_in_place_stats stats = {};
    stats.struct_size = sizeof(stats);
    EXPECT_EQ(hoist_in_place_get_stats(in_place_, &stats, nullptr), HOIST_OK);
    return stats;
  }
  const uint8_t* Data() {
    const void* data = nullptr;
    EXPECT_EQ(hoist_in_place_address(in_place_, 0, &data, nullptr), HOIST_OK);
    return static_cast<const uint8_t*>(data);
  }
  // Each page of the pieces, as they are to be.
  void ExpectBytes(const std::vector<uint32_t>& groups) {
    const uint8_t* at = Data();
    for (const uint32_t group : groups) {
      for (uint64_t page = 0; page < kPiece; page += 4096) {
        ASSERT_EQ(at[page], FakeInPlace::PieceByte(group)) << "piece " << group;
      }
      at += kPiece;
    }
  }
  // What was sent before has been dealt with.
  void Settle() {
    hoist_model* model = nullptr;
    ASSERT_EQ(hoist_describe_model(session_, "m", &model, nullptr), HOIST_OK);
    hoist_model_free(model);
  }
  void Free() { hoist_in_place_free(std::exchange(in_place_, nullptr)); }

  FakeInPlace daemon_;
  hoist_session* session_ = nullptr;
  hoist_model* model_ = nullptr;
  hoist_in_place* in_place_ = nullptr;
};

// --- What is refused ---------------------------------------------------------

TEST_F(InPlace, PiecesInTheMiddleAreWholePages) {
  for (const uint32_t odd : {FakeInPlace::kTail, FakeInPlace::kCrumb}) {
    const Told told = Create({0, odd, 1});
    EXPECT_EQ(told.code, HOIST_INVALID_ARGUMENT);
    EXPECT_THAT(told.why, HasSubstr("multiples of 2 MiB"));
  }
  EXPECT_EQ(daemon_.stages(kPlace), 0u);
  // The last may be of any size.
  Made({0, FakeInPlace::kTail});
  EXPECT_EQ(Data()[kPiece], FakeInPlace::PieceByte(FakeInPlace::kTail));
  EXPECT_EQ(Stats().bytes, 2 * kPiece + 4096);
  Free();
  Made({FakeInPlace::kCrumb});
  EXPECT_EQ(Data()[4095], FakeInPlace::PieceByte(FakeInPlace::kCrumb));
}

TEST_F(InPlace, PiecesInTheMiddleAreFull) {
  const Told told = Create({0, FakeInPlace::kShort, 1});
  EXPECT_EQ(told.code, HOIST_INVALID_ARGUMENT);
  EXPECT_THAT(told.why, AllOf(HasSubstr("\"p102\" ends in a gap"),
                              HasSubstr("2097088 bytes of its 2097152")));
  for (const auto& groups : {std::vector{FakeInPlace::kHoled, 1u},
                             std::vector{0u, FakeInPlace::kHoled}}) {
    const Told holed = Create(groups);
    EXPECT_EQ(holed.code, HOIST_INVALID_ARGUMENT);
    EXPECT_THAT(holed.why, HasSubstr("gaps between its tensors"));
  }
  EXPECT_EQ(daemon_.stages(kPlace), 0u);
  // The last may end in a gap, which is no part of the tensor.
  Made({0, FakeInPlace::kShort});
  EXPECT_EQ(Stats().bytes, 2 * kPiece - 64);
}

TEST_F(InPlace, PiecesHaveTheBytesThatTheirTensorHas) {
  const Told told = Create({0, 1}, {.bytes = 2 * kPiece - 1});
  EXPECT_EQ(told.code, HOIST_INVALID_ARGUMENT);
  EXPECT_THAT(told.why, HasSubstr("tensor 0 has 4194303 bytes, and its pieces "
                                  "4194304"));
  EXPECT_EQ(daemon_.stages(kPlace), 0u);
  Made({0, 1}, {.bytes = 2 * kPiece});
}

TEST_F(InPlace, ArgumentsAreLookedAt) {
  EXPECT_EQ(Create({0, FakeInPlace::kGroups}).code, HOIST_OUT_OF_RANGE);
  EXPECT_EQ(Create({}).code, HOIST_INVALID_ARGUMENT);
  const Told device = Create({0}, {.device = kPlace});
  EXPECT_EQ(device.code, HOIST_INVALID_ARGUMENT);
  EXPECT_THAT(device.why, HasSubstr("no device 1"));
  const std::vector<uint32_t> counts(4);
  for (const auto& [units, first] :
       {std::pair{5u, uint64_t{0}}, std::pair{4u, uint64_t{1}},
        std::pair{1u, uint64_t{5}}, std::pair{1u, UINT64_MAX}}) {
    EXPECT_EQ(
        Create({0}, {.units = units, .counts = &counts, .first_count = first})
            .code,
        HOIST_INVALID_ARGUMENT)
        << units << " from " << first;
  }
  hoist_in_place_tensor unsized = {};
  EXPECT_EQ(hoist_in_place_create(session_, model_, &unsized, 1, nullptr,
                                  &in_place_, nullptr),
            HOIST_INVALID_ARGUMENT);
  EXPECT_EQ(hoist_in_place_create(session_, model_, nullptr, 0, nullptr,
                                  &in_place_, nullptr),
            HOIST_INVALID_ARGUMENT);
  EXPECT_EQ(hoist_in_place_check(nullptr, nullptr), HOIST_INVALID_ARGUMENT);
  hoist_in_place_free(nullptr);
  EXPECT_EQ(daemon_.stages(kPlace), 0u);
}

TEST_F(InPlace, UnitsAndTensorsThatAreNotThereAreOutOfRange) {
  Made(Upto(4), {.units = 8});
  EXPECT_EQ(Touch({0, 7}), HOIST_OK);
  EXPECT_EQ(Touch({8}), HOIST_OUT_OF_RANGE);
  const uint32_t zero = 0;
  EXPECT_EQ(hoist_in_place_touch(in_place_, 1, &zero, &zero, 1, nullptr),
            HOIST_OUT_OF_RANGE);
  const void* data = nullptr;
  EXPECT_EQ(hoist_in_place_address(in_place_, 1, &data, nullptr),
            HOIST_OUT_OF_RANGE);
}

TEST_F(InPlace, WithoutMemoryInPlaceTheReasonIsTold) {
  daemon_.SetNoInPlace("host.in_place in hoistd.toml gives it no memory");
  const Told told = Create({0});
  EXPECT_EQ(told.code, HOIST_UNIMPLEMENTED);
  EXPECT_THAT(told.why, AllOf(HasSubstr("nothing that is read in place"),
                              HasSubstr("host.in_place")));
}

TEST_F(InPlace, WithoutRoomForAllNothingIsKept) {
  daemon_.SetRoom(kPlace, 3);
  const Told told = Create(Upto(8));
  EXPECT_EQ(told.code, HOIST_RESOURCE_EXHAUSTED);
  EXPECT_THAT(told.why, HasSubstr("no room for it"));
  daemon_.AwaitLeased(kPlace, {});
  EXPECT_EQ(in_place_, nullptr);
}

TEST_F(InPlace, ASlabOfAnotherSizeIsNotMapped) {
  Connect();
  daemon_.SendAnOddSlab();
  EXPECT_EQ(Create({0, 1}).code, HOIST_INTERNAL);
  daemon_.AwaitLeased(kPlace, {});
}

// --- Hot and cold ------------------------------------------------------------

TEST_F(InPlace, AllIsColdWithoutABudgetAndShowsItsBytes) {
  Made(Upto(8), {.units = 8});
  ExpectBytes(Upto(8));
  EXPECT_EQ(Touch({1, 2}, 5), HOIST_OK);
  EXPECT_EQ(Advance(true).code, HOIST_OK);
  EXPECT_EQ(daemon_.stages(kDevice), 0u);
  const hoist_in_place_stats stats = Stats();
  EXPECT_EQ(stats.bytes, 8 * kPiece);
  EXPECT_EQ(stats.piece_count, 8u);
  EXPECT_EQ(stats.hot_piece_count, 0u);
  EXPECT_EQ(stats.touched_cold_bytes, 10 * kPiece);
  EXPECT_EQ(stats.touched_hot_bytes, 0u);
  EXPECT_TRUE(daemon_.stage(kPlace, 0).apart());
  EXPECT_FALSE(daemon_.stage(kPlace, 0).background());
}

TEST_F(InPlace, TheMostTouchedBecomeHotWithinTheBudget) {
  Made(Upto(8), {.units = 8});
  TouchInPasses({6, 3}, 9);
  EXPECT_EQ(Touch({5}, 100), HOIST_OK);  // A pass reads it once.
  ASSERT_EQ(hoist_in_place_set_budget(in_place_, 2 * kPiece + 1, nullptr),
            HOIST_OK);
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  EXPECT_THAT(daemon_.leased(kDevice), ElementsAre(3, 6));
  EXPECT_TRUE(daemon_.stage(kDevice, 0).background());
  ExpectBytes(Upto(8));
  EXPECT_EQ(Stats().hot_bytes, 2 * kPiece);
  EXPECT_EQ(Stats().moves, 2u);
  // What is hot now counts as such.
  const uint64_t cold = Stats().touched_cold_bytes;
  EXPECT_EQ(Touch({3}, 7), HOIST_OK);
  EXPECT_EQ(Stats().touched_hot_bytes, 7 * kPiece);
  EXPECT_EQ(Stats().touched_cold_bytes, cold);
  // Cold ones stay leased where they lie: they are where hot ones go back to.
  EXPECT_THAT(daemon_.leased(kPlace), SizeIs(8));
}

TEST_F(InPlace, OthersTakeTheirPlaceWhenTheyAreTouchedMore) {
  Made(Upto(8), {.units = 8, .budget = 2 * kPiece});
  TouchInPasses({0, 1}, 10);
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  daemon_.AwaitLeased(kDevice, {0, 1});
  TouchInPasses({4, 5}, 20);
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  daemon_.AwaitLeased(kDevice, {4, 5});
  ExpectBytes(Upto(8));
  // What came waited for what left.
  EXPECT_EQ(daemon_.most_leased(kDevice), 2u);
}

TEST_F(InPlace, ASmallerBudgetGivesBackBetweenPasses) {
  Made(Upto(8), {.units = 8, .budget = 4 * kPiece});
  EXPECT_EQ(Touch({0, 1}, 100), HOIST_OK);
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  ASSERT_EQ(hoist_in_place_set_budget(in_place_, 2 * kPiece, nullptr),
            HOIST_OK);
  EXPECT_EQ(Stats().hot_budget_bytes, 2 * kPiece);
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  daemon_.AwaitLeased(kDevice, {0, 1});
  ASSERT_EQ(hoist_in_place_set_budget(in_place_, 0, nullptr), HOIST_OK);
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  daemon_.AwaitLeased(kDevice, {});
  ExpectBytes(Upto(8));
  EXPECT_EQ(Stats().hot_bytes, 0u);
  EXPECT_EQ(daemon_.most_leased(kDevice), 4u);
}

TEST_F(InPlace, WhatTheDeviceHasNoRoomForStaysCold) {
  daemon_.SetRoom(kDevice, 2);
  Made(Upto(8), {.units = 8, .budget = 8 * kPiece});
  ASSERT_EQ(Advance(true).code, HOIST_OK);  // It does not wait for more.
  EXPECT_LE(daemon_.leased(kDevice).size(), 2u);
  ExpectBytes(Upto(8));
  EXPECT_EQ(Check().code, HOIST_OK);
  EXPECT_EQ(CheckHot().code, HOIST_RESOURCE_EXHAUSTED);
  ASSERT_EQ(hoist_in_place_set_budget(in_place_, kPiece, nullptr), HOIST_OK);
  EXPECT_EQ(CheckHot().code, HOIST_OK);
}

TEST_F(InPlace, AHotSlabOfAnotherSizeIsGivenBack) {
  Made(Upto(2), {.units = 2});
  daemon_.SendAnOddSlab();
  ASSERT_EQ(hoist_in_place_set_budget(in_place_, kPiece, nullptr), HOIST_OK);
  daemon_.AwaitStages(kDevice, 1);
  daemon_.AwaitLeased(kDevice, {});
  ExpectBytes(Upto(2));
}

TEST_F(InPlace, WhatOthersToldIsHotFromTheStart) {
  pb::Heat heat;
  for (const uint32_t group : {6u, 2u}) {
    heat.add_groups(group);
    heat.add_heat(1000);
  }
  daemon_.SetHeat(heat);
  Made(Upto(8), {.units = 8, .budget = 2 * kPiece});
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  daemon_.AwaitLeased(kDevice, {2, 6});
}

TEST_F(InPlace, HeatThatIsNoNumberIsNoReply) {
  for (const float bad : {NAN, INFINITY, -1.0f}) {
    pb::Heat heat;
    heat.add_groups(1);
    heat.add_heat(bad);
    daemon_.SetHeat(heat);
    hoist_session_free(std::exchange(session_, nullptr));
    hoist_model_free(std::exchange(model_, nullptr));
    Create(Upto(8), {.units = 8, .budget = 2 * kPiece});
    EXPECT_EQ(hoist_session_check(session_, nullptr), HOIST_INTERNAL) << bad;
    Free();
  }
}

TEST_F(InPlace, NothingChangesPlacesBeforeAdvance) {
  Made(Upto(4), {.units = 4, .budget = 2 * kPiece});
  EXPECT_EQ(Touch({1, 2}, 10), HOIST_OK);
  daemon_.AwaitStages(kDevice, 2);
  Settle();
  EXPECT_EQ(Stats().moves, 0u);
  EXPECT_EQ(Stats().hot_bytes, 0u);
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  EXPECT_EQ(Stats().hot_bytes, 2 * kPiece);
}

TEST_F(InPlace, AdvanceWaitsOnlyIfItIsTold) {
  daemon_.Hold(kDevice, true);
  Made(Upto(4), {.units = 4, .budget = kPiece});
  EXPECT_EQ(Touch({2}), HOIST_OK);
  daemon_.AwaitStages(kDevice, 1);
  ASSERT_EQ(Advance(false).code, HOIST_OK);
  EXPECT_EQ(Stats().hot_bytes, 0u);
  std::thread waits([&] { EXPECT_EQ(Advance(true).code, HOIST_OK); });
  daemon_.Hold(kDevice, false);
  daemon_.LetAllCome();
  waits.join();
  EXPECT_EQ(Stats().hot_bytes, kPiece);
}

TEST_F(InPlace, CountersBeginAnywhereAndWrap) {
  std::vector<uint32_t> counts(8, UINT32_MAX);
  counts[5] = 7'000'000;  // Before.
  Made(Upto(4), {.units = 4, .counts = &counts, .first_count = 4});
  std::atomic_ref<uint32_t>(counts[6]).fetch_add(50);
  while (Stats().touched_cold_bytes == 0) std::this_thread::yield();
  ASSERT_EQ(hoist_in_place_set_budget(in_place_, kPiece, nullptr), HOIST_OK);
  daemon_.AwaitLeased(kDevice, {2});
  while (Stats().hot_bytes == 0) ASSERT_EQ(Begin(), HOIST_OK);
  EXPECT_EQ(Stats().touched_hot_bytes + Stats().touched_cold_bytes,
            50 * kPiece);
  ExpectBytes(Upto(4));
  Free();  // Before what it counts with.
}

// --- Passes ------------------------------------------------------------------

// Pieces move between passes that never pause, by themselves.
TEST_F(InPlace, PassesReadTheRightBytesWhilePiecesMove) {
  Made(Upto(16), {.units = 16, .budget = 4 * kPiece});
  const uint8_t* const data = Data();
  uint32_t pass = 0;
  while (Stats().moves < 60) {
    ASSERT_EQ(Begin(), HOIST_OK);
    for (uint32_t piece = 0; piece < 16; ++piece) {
      for (uint64_t at = 0; at < kPiece; at += kPiece / 4) {
        ASSERT_EQ(data[piece * kPiece + at], FakeInPlace::PieceByte(piece));
      }
    }
    ASSERT_EQ(End(), HOIST_OK);
    // Others each time.
    const uint32_t first = ++pass / 50 * 4;
    ASSERT_EQ(Touch({first % 16, (first + 1) % 16, (first + 2) % 16}, 1000),
              HOIST_OK);
  }
  EXPECT_LE(daemon_.most_leased(kDevice), 4u);
  EXPECT_EQ(Check().code, HOIST_OK);
}

TEST_F(InPlace, ABudgetThatShrinksBetweenPassesIsKept) {
  Made(Upto(8), {.units = 8, .budget = 4 * kPiece});
  daemon_.AwaitStages(kDevice, 4);
  ASSERT_EQ(hoist_in_place_set_budget(in_place_, kPiece, nullptr), HOIST_OK);
  while (Stats().hot_piece_count != 1) {
    ASSERT_EQ(Begin(), HOIST_OK);
    ASSERT_EQ(End(), HOIST_OK);
  }
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  ExpectBytes(Upto(8));
}

TEST_F(InPlace, NothingMovesWhileAnotherThreadLaunchesAPass) {
  daemon_.Hold(kDevice, true);
  Made(Upto(4), {.units = 4, .budget = kPiece});
  OtherPass other(*this);
  daemon_.Hold(kDevice, false);
  daemon_.LetAllCome();
  while (hoist_in_place_pending(in_place_) == 0) std::this_thread::yield();
  EXPECT_EQ(Begin(), HOIST_OK);
  EXPECT_EQ(End(), HOIST_OK);
  EXPECT_EQ(Advance(false).code, HOIST_OK);
  EXPECT_EQ(Stats().moves, 0u);
  other.End();
  EXPECT_EQ(Begin(), HOIST_OK);
  EXPECT_EQ(Stats().moves, 1u);
  ExpectBytes(Upto(4));
}

TEST_F(InPlace, AThreadThatEndsInAPassLaunchesItNoMore) {
  daemon_.Hold(kDevice, true);
  Made(Upto(4), {.units = 4, .budget = kPiece});
  std::thread([&] { EXPECT_EQ(Begin(), HOIST_OK); }).join();
  daemon_.Hold(kDevice, false);
  daemon_.LetAllCome();
  while (hoist_in_place_pending(in_place_) == 0) std::this_thread::yield();
  EXPECT_EQ(Begin(), HOIST_OK);
  EXPECT_EQ(Stats().moves, 1u);
}

// --- The end -----------------------------------------------------------------

TEST_F(InPlace, WhatIsOnItsWayAtTheEndGoesBack) {
  daemon_.Hold(kDevice, true);
  Made(Upto(20), {.units = 20, .budget = 16 * kPiece});
  daemon_.AwaitStages(kDevice, 16);
  Free();
  daemon_.LetAllCome();
  daemon_.AwaitLeased(kDevice, {});
  daemon_.AwaitLeased(kPlace, {});
}

// It may be stopped: the next worker begins as hot as it knows then.
TEST_F(InPlace, TheEndTellsWhatIsHotAndWaitsForNoAnswer) {
  Made(Upto(4), {.units = 4});
  daemon_.AwaitHeats(1);
  daemon_.SetHeatSilent();
  EXPECT_EQ(Touch({3}, 9), HOIST_OK);
  Free();
  daemon_.AwaitHeats(2);
  daemon_.AwaitLeased(kPlace, {});
}

TEST_F(InPlace, TheSessionsEndIsToldAndWhatIsMappedStays) {
  Made(Upto(8), {.units = 8, .budget = 2 * kPiece});
  EXPECT_EQ(Touch({0, 1}), HOIST_OK);
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  daemon_.HangUp();
  const Told told = Check();
  EXPECT_EQ(told.code, HOIST_UNAVAILABLE);
  EXPECT_THAT(told.why, HasSubstr("connect again"));
  ExpectBytes(Upto(8));
  // Nothing new can come, and nobody waits for it.
  TouchInPasses({6, 7}, 20);
  EXPECT_EQ(Advance(true).code, HOIST_UNAVAILABLE);
  EXPECT_EQ(Advance(false).code, HOIST_OK);
  ExpectBytes(Upto(8));
}

TEST_F(InPlace, AClosedSessionIsNamed) {
  Made(Upto(2));
  hoist_session_close(session_);
  EXPECT_EQ(Check().code, HOIST_FAILED_PRECONDITION);
  Free();
}

// --- Copies of cold units ----------------------------------------------------

TEST_F(InPlace, TensorsShareTheirScratchBehindTheirPieces) {
  Connect();
  const std::vector<uint32_t> groups[] = {{0, 1}, {2, FakeInPlace::kTail}};
  hoist_in_place_tensor tensors[2] = {};
  for (size_t t = 0; t < 2; ++t) {
    tensors[t].struct_size = sizeof(tensors[t]);
    tensors[t].groups = groups[t].data();
    tensors[t].group_count = groups[t].size();
    tensors[t].scratch_bytes = kPiece;
  }
  hoist_in_place_options options = {};
  options.struct_size = sizeof(options);
  options.deadline_ms = 60'000;
  options.hot_budget_bytes = 2 * kPiece;
  const auto create = [&] {
    return hoist_in_place_create(session_, model_, tensors, 2, &options,
                                 &in_place_, nullptr);
  };
  tensors[1].scratch_bytes = 2 * kPiece;
  EXPECT_EQ(create(), HOIST_INVALID_ARGUMENT);
  tensors[0].scratch_bytes = tensors[1].scratch_bytes = kPiece + 4096;
  EXPECT_EQ(create(), HOIST_INVALID_ARGUMENT);
  tensors[0].scratch_bytes = tensors[1].scratch_bytes = kPiece;
  ASSERT_EQ(create(), HOIST_OK);
  const void* data[2] = {};
  for (size_t t = 0; t < 2; ++t) {
    ASSERT_EQ(hoist_in_place_address(in_place_, t, &data[t], nullptr),
              HOIST_OK);
  }
  // The second's last piece has two slabs' bytes.
  auto* first = static_cast<uint8_t*>(const_cast<void*>(data[0])) + 2 * kPiece;
  const auto* second = static_cast<const uint8_t*>(data[1]) + 3 * kPiece;
  first[0] = 7;
  first[kPiece - 1] = 8;
  EXPECT_EQ(second[0], 7);
  EXPECT_EQ(second[kPiece - 1], 8);
  // It is part of the hot budget.
  EXPECT_EQ(Advance(true).code, HOIST_OK);
  EXPECT_EQ(Stats().hot_bytes, kPiece);
}

TEST_F(InPlace, ABudgetBelowItGivesTheScratchBack) {
  std::vector<uint32_t> counts(4);
  std::vector<uint8_t> cold(4, 2);
  Made(Upto(4), {.units = 4,
                 .budget = 2 * kPiece,
                 .counts = &counts,
                 .cold = cold.data(),
                 .scratch_bytes = kPiece});
  auto* const scratch = const_cast<uint8_t*>(Data()) + 4 * kPiece;
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  EXPECT_THAT(cold, Not(Each(0)));
  scratch[0] = 7;
  OtherPass other(*this);
  EXPECT_EQ(hoist_in_place_set_budget(in_place_, kPiece - 1, nullptr),
            HOIST_OK);
  EXPECT_EQ(scratch[0], 7);  // That pass may be using it.
  other.End();
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  EXPECT_THAT(cold, Each(0));  // Nothing is worth a copy.
  ASSERT_EQ(hoist_in_place_set_budget(in_place_, kPiece, nullptr), HOIST_OK);
  EXPECT_THAT(cold, Each(1));
  EXPECT_EQ(scratch[0], 0);  // Other memory.
  Free();
}

TEST_F(InPlace, WhichUnitsAreColdIsWrittenAsPiecesMove) {
  std::vector<uint32_t> counts(9);
  std::vector<uint8_t> cold(9, 2);
  // Two units a piece, from the second count on.
  Made(Upto(4), {.units = 8,
                 .budget = 2 * kPiece,
                 .counts = &counts,
                 .first_count = 1,
                 .cold = cold.data()});
  EXPECT_THAT(cold, ElementsAre(0, 1, 1, 1, 1, 1, 1, 1, 1));
  for (int i = 0; i < 10; ++i) ASSERT_EQ(Touch({0, 1, 6}), HOIST_OK);
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  EXPECT_THAT(cold, ElementsAre(0, 0, 0, 1, 1, 1, 1, 0, 0));
  ASSERT_EQ(hoist_in_place_set_budget(in_place_, 0, nullptr), HOIST_OK);
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  EXPECT_THAT(cold, ElementsAre(0, 1, 1, 1, 1, 1, 1, 1, 1));
  Free();  // It reads and writes these vectors.
}

TEST_F(InPlace, AUnitIsColdIfAnyPartOfItIs) {
  std::vector<uint32_t> counts(2);
  std::vector<uint8_t> cold(2, 2);
  Made(Upto(4), {.units = 2,
                 .budget = 3 * kPiece,
                 .counts = &counts,
                 .cold = cold.data()});
  ASSERT_EQ(Touch({1}), HOIST_OK);
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  EXPECT_EQ(Stats().hot_bytes, 3 * kPiece);
  EXPECT_THAT(cold, ElementsAre(1, 0));
  Free();
}

TEST_F(InPlace, InTheChildOfAForkItIsTheParents) {
  Made(Upto(4), {.units = 4, .budget = kPiece});
  ASSERT_EQ(Advance(true).code, HOIST_OK);
  const pid_t child = fork();
  if (child == 0) {
    // Each bit is a call that did not answer so.
    const uint32_t unit = 0;
    const void* data = nullptr;
    hoist_in_place_stats stats = {};
    stats.struct_size = sizeof(stats);
    const int answers[] = {
        hoist_in_place_begin(in_place_, nullptr, nullptr),
        hoist_in_place_end(in_place_, nullptr),
        hoist_in_place_touch(in_place_, 0, &unit, &unit, 1, nullptr),
        hoist_in_place_advance(in_place_, 1, nullptr),
        hoist_in_place_set_budget(in_place_, 0, nullptr),
        hoist_in_place_check(in_place_, nullptr),
        hoist_in_place_check_hot(in_place_, nullptr),
        hoist_in_place_address(in_place_, 0, &data, nullptr),
        hoist_in_place_get_stats(in_place_, &stats, nullptr)};
    int wrong = 0;
    for (size_t i = 0; i < std::size(answers); ++i) {
      if (answers[i] != HOIST_FAILED_PRECONDITION) wrong |= 1 << i;
    }
    hoist_in_place_free(in_place_);
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  // The parent's goes on.
  ExpectBytes(Upto(4));
  EXPECT_EQ(Check().code, HOIST_OK);
  EXPECT_EQ(Touch({1}, 100), HOIST_OK);
  EXPECT_EQ(Advance(true).code, HOIST_OK);
  EXPECT_THAT(daemon_.leased(kPlace), SizeIs(4));
}

}  // namespace hoist_test::in_place_test
