#include "daemon/device/slab_table.h"

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace hoistd::slab_table_test {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr uint64_t kUnit = 16;
constexpr uint64_t kSpan = 160;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

SlabSpec Slab(uint64_t id, uint64_t offset, uint64_t bytes,
              Backing backing = Backing::kVmm) {
  return {SlabId(id), offset, bytes, backing};
}

class SlabTableTest : public ::testing::Test {
 protected:
  // [16, 48) and [48, 64) side by side, [96, 128) alone.
  SlabTableTest() : table_(kUnit, kSpan) {
    table_.Add(Slab(1, 16, 32));
    table_.Add(Slab(2, 48, 16));
    table_.Add(Slab(3, 96, 32));
  }
  SlabTable table_;
};

TEST_F(SlabTableTest, EveryFreePlaceIsTakenAndNoOther) {
  for (uint64_t at = 0; at < kSpan; at += kUnit) {
    for (uint64_t bytes = kUnit; at + bytes <= kSpan; bytes += kUnit) {
      bool free = true;
      for (const auto& [offset, slab] : table_.by_offset()) {
        if (at < offset + slab.bytes && offset < at + bytes) free = false;
      }
      EXPECT_EQ(table_.CheckNew(Slab(9, at, bytes)).ok(), free)
          << at << " + " << bytes;
    }
  }
}

TEST_F(SlabTableTest, OddPlacesAndTakenIdsAreRefused) {
  EXPECT_THAT(table_.CheckNew(Slab(1, 0, 16)),
              StatusIs(kInvalid, HasSubstr("id is taken")));
  for (const SlabSpec& bad :
       {Slab(9, 1, 16), Slab(9, 0, 15), Slab(9, 0, 0), Slab(9, kSpan, 16),
        Slab(9, UINT64_MAX - 15, 16), Slab(9, 128, UINT64_MAX - 15)}) {
    EXPECT_THAT(table_.CheckNew(bad), StatusIs(kInvalid));
  }
}

TEST_F(SlabTableTest, ARangeIsGoodWhereEveryByteIsInASlab) {
  for (uint64_t at = 0; at < kSpan; ++at) {
    for (uint64_t bytes = 1; at + bytes <= kSpan; ++bytes) {
      const bool first = at >= 16 && at + bytes <= 64;
      const bool second = at >= 96 && at + bytes <= 128;
      EXPECT_EQ(table_.CheckRange(at, bytes).ok(), first || second)
          << at << " + " << bytes;
    }
  }
  EXPECT_THAT(table_.CheckRange(16, UINT64_MAX), StatusIs(kInvalid));
  EXPECT_THAT(table_.CheckRange(UINT64_MAX, 1), StatusIs(kInvalid));
}

TEST_F(SlabTableTest, ARangeMayNotCrossIntoOrOutOfAnIpcSlab) {
  table_.Add(Slab(4, 64, 16, Backing::kIpc));
  table_.Add(Slab(5, 80, 16, Backing::kVmm));
  EXPECT_THAT(table_.CheckRange(64, 16), IsOk());
  EXPECT_THAT(table_.CheckRange(63, 2), StatusIs(kInvalid));
  EXPECT_THAT(table_.CheckRange(79, 2), StatusIs(kInvalid));
  EXPECT_THAT(table_.CheckRange(48, 40), StatusIs(kInvalid));
  EXPECT_THAT(table_.CheckRange(80, 48), IsOk());
}

TEST_F(SlabTableTest, RemovingGivesPlaceAndTotalBack) {
  EXPECT_EQ(table_.total_bytes(), 80u);
  table_.Remove(SlabId(2));
  EXPECT_EQ(table_.total_bytes(), 64u);
  EXPECT_THAT(table_.Find(SlabId(2)), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(table_.CheckNew(Slab(2, 48, 48)), IsOk());
  EXPECT_EQ(table_.At(127).id, SlabId(3));
}

}  // namespace hoistd::slab_table_test
