// Images that a real mover carries between the pool, pageable memory and a real
// spill store.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/engine_rig.h"

namespace hoistd::engine_pageable_test {

using ::testing::AllOf;
using testing::Answer;
using ::testing::Each;
using testing::EngineRig;
using ::testing::Eq;
using ::testing::Field;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::SizeIs;

// Of 256 KiB each: four fit into the pool, and two into pageable memory.
constexpr char kGroups[] = "abcdef";

class EnginePageable : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(rig_.Start()); }

  void PublishAll(SessionId session) {
    for (const char group : std::string(kGroups)) {
      absl::StatusOr<ModelPtr> model =
          rig_.Publish(session, "p", std::string(1, group));
      ASSERT_OK(model);
      model_ = *std::move(model);
      ASSERT_TRUE(testing::Until([&] { return Unsaved() == 0; }));
    }
  }
  uint64_t Unsaved() {
    return rig_.Look([](const NodeView& view) {
      return view.node.picture().UseOf(OnHost(), view.now).unsaved_bytes;
    });
  }
  // Each group by turns, and its bytes are right.
  void ReadAll(SessionId session) {
    for (uint32_t g = 0; g < model_->spec->groups.size(); ++g) {
      SCOPED_TRACE(g);
      const GroupKey key = {model_->id, GroupIndex(g)};
      ASSERT_OK_AND_ASSIGN(const LeaseGrant lease, rig_.Stage(session, key));
      EngineRig::ExpectRight(*model_->spec->groups[g], rig_.BytesOf(lease));
      ASSERT_OK(rig_.Release(session, lease.id));
      // Else it is read from the device.
      ASSERT_OK(rig_.Evict("p", /*forget=*/false, OnDevice(DeviceIndex(0))));
    }
  }

  EngineRig rig_{{.host_bytes = 1 << 20,
                  .pageable_bytes = 1 << 19,
                  .saves_at_once = true}};
  ModelPtr model_;
};

TEST_F(EnginePageable, BytesGoThereAndComeBackRight) {
  const SessionId session = rig_.Open();
  PublishAll(session);
  for (int turn = 0; turn < 3; ++turn) ReadAll(session);
  const Counters moved = rig_.counters();
  EXPECT_GT(moved.pageable_written_bytes, 0u);
  EXPECT_GT(moved.pageable_read_bytes, 0u);
  EXPECT_LE(rig_.UsedOf(OnPageable()), 1u << 19);
  ASSERT_OK(rig_.Evict("p", /*forget=*/true));
  EXPECT_EQ(rig_.UsedOf(OnPageable()), 0u);
}

TEST_F(EnginePageable, BitsThatFlippedThereAreFoundAndTheDiskServes) {
  const SessionId session = rig_.Open();
  PublishAll(session);
  const uint64_t images = rig_.UsedOf(OnPageable()) / (1 << 18);
  ASSERT_GT(images, 0u);
  const auto check = [&] {
    return rig_.Ask(CheckArgs{EngineRig::kAdmin, /*model=*/"",
                              /*repair=*/false, [](const CheckProgress&) {}});
  };
  ASSERT_OK_AND_ASSIGN(const CheckProgress right, check());
  EXPECT_THAT(right.findings, IsEmpty());
  for (size_t at = 100; at < rig_.pageable().size(); at += 4096) {
    rig_.pageable()[at] ^= std::byte{1};
  }
  ASSERT_OK_AND_ASSIGN(const CheckProgress wrong, check());
  EXPECT_EQ(wrong.read_bytes, right.read_bytes);
  EXPECT_THAT(
      wrong.findings,
      AllOf(SizeIs(images), Each(Field(&CheckFinding::at, Eq(OnPageable())))));
  EXPECT_EQ(rig_.UsedOf(OnPageable()), 0u);
  ReadAll(session);
}

TEST_F(EnginePageable, WithoutMemoryForItTheDiskServes) {
  rig_.memory_is_short = true;
  const SessionId session = rig_.Open();
  PublishAll(session);
  for (int turn = 0; turn < 2; ++turn) ReadAll(session);
  const Counters moved = rig_.counters();
  EXPECT_EQ(moved.pageable_written_bytes, 0u);
  EXPECT_GT(moved.spill_read_bytes, 0u);
  EXPECT_EQ(rig_.UsedOf(OnPageable()), 0u);
}

}  // namespace hoistd::engine_pageable_test
