#include "daemon/core/extent_map.h"

#include <map>
#include <optional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::extent_map_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

OwnerId Owner(uint64_t number) { return OwnerId(number); }

TEST(ExtentMap, StartsFree) {
  const ExtentMap map(100);
  EXPECT_EQ(map.bytes(), 100u);
  EXPECT_EQ(map.used(), 0u);
  EXPECT_EQ(map.largest_free(), 100u);
  EXPECT_EQ(map.trailing_free(), 100u);
  EXPECT_THAT(map.OwnersFrom(0), IsEmpty());
}

TEST(ExtentMap, AnEmptyMapHoldsNothing) {
  ExtentMap map;
  EXPECT_EQ(map.Allocate(1, Owner(1)), std::nullopt);
  EXPECT_EQ(map.largest_free(), 0u);
  EXPECT_EQ(map.trailing_free(), 0u);
}

TEST(ExtentMap, TakesTheSmallestRangeThatFits) {
  ExtentMap map(100);
  map.AllocateAt(30, 10, Owner(1));  // Free: 30, then 5, then 50.
  map.AllocateAt(45, 5, Owner(2));
  EXPECT_EQ(map.Allocate(4, Owner(3)), 40u);
  EXPECT_EQ(map.Allocate(20, Owner(4)), 0u);
  EXPECT_EQ(map.Allocate(40, Owner(5)), 50u);
}

TEST(ExtentMap, FreedNeighboursMerge) {
  ExtentMap map(30);
  for (uint64_t i = 0; i < 3; ++i) map.AllocateAt(i * 10, 10, Owner(i));
  map.Free(0);
  map.Free(20);
  EXPECT_EQ(map.largest_free(), 10u);
  map.Free(10);
  EXPECT_EQ(map.largest_free(), 30u);
  EXPECT_EQ(map.used(), 0u);
  EXPECT_EQ(map.Allocate(30, Owner(9)), 0u);
}

TEST(ExtentMap, GrowAddsToTheFreeTail) {
  ExtentMap map(10);
  EXPECT_EQ(map.Allocate(20, Owner(1)), std::nullopt);
  map.Grow(10);
  EXPECT_EQ(map.trailing_free(), 20u);
  EXPECT_EQ(map.Allocate(20, Owner(1)), 0u);
  map.Grow(5);
  EXPECT_EQ(map.trailing_free(), 5u);
}

TEST(ExtentMap, ShrinkTakesFromTheFreeTail) {
  ExtentMap map(30);
  map.AllocateAt(0, 10, Owner(1));
  map.Shrink(15);
  EXPECT_EQ(map.bytes(), 15u);
  EXPECT_EQ(map.trailing_free(), 5u);
  map.Shrink(5);
  EXPECT_EQ(map.trailing_free(), 0u);
  EXPECT_DEATH(map.Shrink(1), "free >= bytes");
}

TEST(ExtentMap, AnExtentIsNeverGivenOutTwice) {
  ExtentMap map(30);
  map.AllocateAt(10, 10, Owner(1));
  EXPECT_DEATH(map.AllocateAt(15, 10, Owner(2)), "has_value");
  EXPECT_DEATH(map.AllocateAt(5, 10, Owner(2)), "bytes >=");
  EXPECT_DEATH(map.Free(0), "has_value");
}

TEST(ExtentMap, AHoleNeverReachesOverWhatCannotMove) {
  ExtentMap map(40);
  for (uint64_t i = 0; i < 4; ++i) map.AllocateAt(i * 10, 10, Owner(i));
  const auto all_but_one = [](OwnerId owner) -> std::optional<double> {
    if (owner == Owner(1)) return std::nullopt;
    return 1;
  };
  EXPECT_EQ(map.CheapestHole(30, 0, all_but_one), std::nullopt);
  const auto hole = map.CheapestHole(20, 0, all_but_one);
  ASSERT_TRUE(hole.has_value());
  EXPECT_EQ(hole->offset, 20u);
  EXPECT_THAT(hole->victims, ElementsAre(Owner(2), Owner(3)));
}

TEST(ExtentMap, AHoleMayReachIntoTheTailThatCouldBeGrown) {
  ExtentMap map(20);
  map.AllocateAt(0, 10, Owner(0));
  map.AllocateAt(10, 10, Owner(1));
  const auto worth = [](OwnerId) { return std::optional<double>(1); };
  EXPECT_EQ(map.CheapestHole(30, 5, worth), std::nullopt);
  const auto hole = map.CheapestHole(15, 5, worth);
  ASSERT_TRUE(hole.has_value());
  EXPECT_EQ(hole->offset, 10u);
  EXPECT_THAT(hole->victims, ElementsAre(Owner(1)));
}

TEST(ExtentMap, RoomIsMadeOfWhatIsWorthLeastAByte) {
  ExtentMap map(50);
  map.AllocateAt(0, 10, Owner(0));
  map.AllocateAt(10, 20, Owner(1));
  map.AllocateAt(35, 5, Owner(2));  // Free: 5, then 10.
  const std::map<OwnerId, double> worth = {
      {Owner(0), 4}, {Owner(1), 6}, {Owner(2), 3}};
  const auto room = [&](uint64_t bytes) {
    return map.CheapestRoom(
        bytes, [&](OwnerId o) { return std::optional(worth.at(o)); });
  };
  EXPECT_THAT(room(15), Optional(IsEmpty()));
  EXPECT_THAT(room(16), Optional(ElementsAre(Owner(1))));
  EXPECT_THAT(room(36), Optional(ElementsAre(Owner(1), Owner(0))));
  EXPECT_THAT(room(50), Optional(ElementsAre(Owner(1), Owner(0), Owner(2))));
  EXPECT_EQ(room(51), std::nullopt);
}

TEST(ExtentMap, RoomIsNotMadeOfWhatCannotMove) {
  ExtentMap map(30);
  for (uint64_t i = 0; i < 3; ++i) map.AllocateAt(i * 10, 10, Owner(i));
  const auto all_but_one = [](OwnerId owner) -> std::optional<double> {
    if (owner == Owner(1)) return std::nullopt;
    return 1;
  };
  EXPECT_THAT(map.CheapestRoom(20, all_but_one),
              Optional(ElementsAre(Owner(0), Owner(2))));
  EXPECT_EQ(map.CheapestRoom(21, all_but_one), std::nullopt);
}

TEST(ExtentMap, WorthDecidesNotNumber) {
  ExtentMap map(30);
  map.AllocateAt(0, 10, Owner(0));
  map.AllocateAt(10, 10, Owner(1));
  map.AllocateAt(20, 10, Owner(2));
  const std::map<OwnerId, double> worth = {
      {Owner(0), 1}, {Owner(1), 1}, {Owner(2), 5}};
  const auto hole = map.CheapestHole(
      11, 0, [&](OwnerId o) { return std::optional(worth.at(o)); });
  ASSERT_TRUE(hole.has_value());
  EXPECT_THAT(hole->victims, ElementsAre(Owner(0), Owner(1)));
  EXPECT_EQ(hole->value, 2);
}

// --- Against a map of single bytes -------------------------------------------

struct Model {
  std::vector<std::optional<OwnerId>> bytes;
  std::map<OwnerId, std::optional<double>> worth;

  // Tries every window there is.
  std::optional<double> Cheapest(uint64_t size, uint64_t tail) const {
    std::vector<std::optional<OwnerId>> all = bytes;
    all.resize(all.size() + tail);
    std::optional<double> best;
    for (size_t begin = 0; begin + size <= all.size(); ++begin) {
      double sum = 0;
      bool wall = false;
      std::optional<OwnerId> last;
      for (size_t i = begin; i < begin + size; ++i) {
        if (!all[i].has_value() || all[i] == last) continue;
        last = all[i];
        wall = wall || !worth.at(*last).has_value();
        sum += worth.at(*last).value_or(0);
      }
      if (!wall && (!best.has_value() || sum < *best)) best = sum;
    }
    return best;
  }
  uint64_t LongestFree() const {
    uint64_t longest = 0, run = 0;
    for (const auto& byte : bytes) {
      run = byte.has_value() ? 0 : run + 1;
      longest = std::max(longest, run);
    }
    return longest;
  }
};

void RunRandom(uint32_t seed) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  const uint64_t size = 8 + below(17);
  ExtentMap map(size);
  Model model;
  model.bytes.resize(size);
  std::map<OwnerId, uint64_t> offsets;
  uint64_t last = 0;
  for (int step = 0; step < 40; ++step) {
    if (!offsets.empty() && below(3) == 0) {
      auto it = offsets.begin();
      std::advance(it, below(offsets.size()));
      map.Free(it->second);
      for (auto& byte : model.bytes) {
        if (byte == it->first) byte.reset();
      }
      offsets.erase(it);
    } else {
      const OwnerId owner(++last);
      const uint64_t bytes = 1 + below(6);
      const bool fits = model.LongestFree() >= bytes;
      const auto at = map.Allocate(bytes, owner);
      ASSERT_EQ(at.has_value(), fits);
      if (!fits) continue;
      for (uint64_t i = *at; i < *at + bytes; ++i) {
        ASSERT_FALSE(model.bytes.at(i).has_value());
        model.bytes[i] = owner;
      }
      offsets[owner] = *at;
      if (below(4) == 0) {
        model.worth[owner] = std::nullopt;
      } else {
        model.worth[owner] = static_cast<double>(below(10));
      }
    }
    ASSERT_EQ(map.largest_free(), model.LongestFree());
    const uint64_t want = 1 + below(size);
    const uint64_t tail = below(5);
    const auto hole =
        map.CheapestHole(want, tail, [&](OwnerId o) { return model.worth[o]; });
    const auto best = model.Cheapest(want, tail);
    ASSERT_EQ(hole.has_value(), best.has_value()) << want << " of " << size;
    if (!hole.has_value()) continue;
    ASSERT_DOUBLE_EQ(hole->value, *best);
    // The place is free once the victims are gone.
    for (uint64_t i = hole->offset; i < hole->offset + want; ++i) {
      if (i >= size) {
        ASSERT_LT(i, size + tail);
      } else if (model.bytes[i].has_value()) {
        ASSERT_THAT(hole->victims, ::testing::Contains(*model.bytes[i]));
      }
    }
  }
}

TEST(ExtentMap, FindsTheCheapestHoleThatThereIs) {
  for (uint32_t seed = 1; seed <= 300 && !::testing::Test::HasFatalFailure();
       ++seed) {
    RunRandom(seed);
  }
}

TEST(ExtentMap, TellsWhoseExtentsReachBeyondAPlace) {
  ExtentMap map(100);
  map.AllocateAt(0, 30, OwnerId(1));
  map.AllocateAt(30, 20, OwnerId(2));
  map.AllocateAt(60, 40, OwnerId(3));
  EXPECT_THAT(map.OwnersFrom(0),
              ElementsAre(OwnerId(1), OwnerId(2), OwnerId(3)));
  EXPECT_THAT(map.OwnersFrom(29),
              ElementsAre(OwnerId(1), OwnerId(2), OwnerId(3)));
  EXPECT_THAT(map.OwnersFrom(30), ElementsAre(OwnerId(2), OwnerId(3)));
  EXPECT_THAT(map.OwnersFrom(50), ElementsAre(OwnerId(3)));
  EXPECT_THAT(map.OwnersFrom(100), IsEmpty());
}

}  // namespace hoistd::extent_map_test
