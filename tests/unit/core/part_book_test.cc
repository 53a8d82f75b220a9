#include "daemon/core/part_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace hoistd::part_book_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kG = PartBook::kGranule;
constexpr uint64_t kPage = 4096;

GroupKey Key(uint32_t model, uint32_t group) {
  return {ModelId(model), GroupIndex(group)};
}

SheetKey File(uint64_t inode, uint64_t readers = 0) {
  return {{.inode = inode}, readers};
}

// Runs in granules, one behind the other in the image.
struct Granules {
  uint64_t from = 0;
  uint64_t count = 0;
  uint32_t file = 0;
};
Group GroupOf(const std::vector<Granules>& runs) {
  Group group;
  for (const Granules& run : runs) {
    group.runs.push_back(
        {{run.file, run.from * kG, run.count * kG}, group.image_bytes});
    group.image_bytes += run.count * kG;
  }
  return group;
}

// The book with space that never ends.
struct Rig {
  PartBook book;
  std::map<GroupKey, Group> groups;
  std::set<uint64_t> extents;  // Their offsets.
  uint64_t last_owner = 0;
  uint64_t next_offset = 0;

  // Joins and gives what is missing space; how many granules that was.
  uint64_t Bring(GroupKey key, const std::vector<Granules>& runs,
                 uint64_t transfer,
                 const std::vector<SheetKey>& files = {File(1), File(2)}) {
    groups[key] = GroupOf(runs);
    uint64_t missing = 0;
    for (const SheetRange& span : book.Join(key, groups[key], files)) {
      const SheetRead read = {span, next_offset, OwnerId(++last_owner)};
      book.Add(key, read, TransferId(transfer));
      extents.insert(next_offset);
      next_offset += span.bytes + 7 * kG;  // Neighbours never touch.
      missing += span.bytes / kG;
    }
    book.Check();
    return missing;
  }
  std::vector<GroupKey> Filled(uint64_t transfer) {
    std::vector<uint64_t> freed;
    auto users = book.Filled(TransferId(transfer), freed);
    Free(freed);
    return users;
  }
  std::vector<GroupKey> Failed(uint64_t transfer) {
    std::vector<uint64_t> freed;
    auto users = book.Failed(TransferId(transfer), freed);
    Free(freed);
    return users;
  }
  size_t Leave(GroupKey key) {
    std::vector<uint64_t> freed;
    book.Leave(key, freed);
    Free(freed);
    book.Check();
    return freed.size();
  }
  void Free(const std::vector<uint64_t>& freed) {
    for (const uint64_t offset : freed) ASSERT_EQ(extents.erase(offset), 1u);
  }
  ImageRanges Ranges(GroupKey key) {
    return book.RangesOf(key, groups.at(key));
  }
};

TEST(PartBook, SpansAreWholeGranulesJoinedWhereTheyTouch) {
  Group group;
  group.runs = {{{0, 1000, 100}, 0}, {{0, 300, 20}, 256}, {{1, 1024, 1}, 512}};
  EXPECT_THAT(PartBook::SpansOf(group),
              ElementsAre(SheetRange{0, 256, 256}, SheetRange{0, 768, 512},
                          SheetRange{1, 1024, 256}));
  group.runs = {{{0, 256, 10}, 0}, {{0, 511, 2}, 256}};
  EXPECT_THAT(PartBook::SpansOf(group), ElementsAre(SheetRange{0, 256, 512}));
}

TEST(PartBook, WhatIsReachedOverIsOneSpanHoweverManyRunsItHas) {
  Group group;
  group.runs = {
      {{0, 300, 100}, 0}, {{0, 9300, 100}, 100}, {{0, 18300, 100}, 200}};
  group.reaches = {{0, 300, 18100}};
  EXPECT_THAT(PartBook::SpansOf(group), ElementsAre(SheetRange{0, 256, 18176}));
}

TEST(PartBook, NestedGroupingsInFileOrderCostOnceAndAreOneRangeEach) {
  Rig rig;
  EXPECT_EQ(rig.Bring(Key(1, 0), {{0, 12}}, 1), 12u);
  rig.Filled(1);
  for (uint32_t leaf = 0; leaf < 4; ++leaf) {
    EXPECT_EQ(rig.Bring(Key(2, leaf), {{leaf * 3, 3}}, 9), 0u);
    EXPECT_THAT(rig.Ranges(Key(2, leaf)),
                ElementsAre(ImageRange{leaf * 3 * kG, 0, 3 * kG}));
  }
  EXPECT_EQ(rig.extents.size(), 1u);
  EXPECT_EQ(rig.Leave(Key(1, 0)), 0u) << "the leaves use it";
  for (uint32_t leaf = 0; leaf < 4; ++leaf) {
    EXPECT_EQ(rig.Leave(Key(2, leaf)), leaf == 3 ? 1u : 0u);
  }
  EXPECT_THAT(rig.extents, IsEmpty());
}

TEST(PartBook, WhatIsBetweenPartsIsBroughtAndTheGroupHasSeveralRanges) {
  Rig rig;
  rig.Bring(Key(1, 0), {{2, 2}}, 1);
  rig.Bring(Key(1, 1), {{6, 2}}, 2);
  rig.Filled(1);
  rig.Filled(2);
  EXPECT_EQ(rig.Bring(Key(2, 0), {{0, 10}}, 3), 6u);
  EXPECT_THAT(rig.book.FillersOf(Key(2, 0)), ElementsAre(TransferId(3)));
  rig.Filled(3);
  EXPECT_THAT(rig.book.FillersOf(Key(2, 0)), IsEmpty());
  EXPECT_THAT(rig.Ranges(Key(2, 0)), SizeIs(5));
  EXPECT_EQ(rig.book.OwnSpace(Key(2, 0)), 3 * kPage);
  EXPECT_EQ(rig.book.OwnSpace(Key(1, 0)), kPage);
}

TEST(PartBook, ACopyWaitsForAllThatFillItsParts) {
  Rig rig;
  rig.Bring(Key(1, 0), {{0, 4}}, 1);
  rig.Bring(Key(2, 0), {{2, 4}}, 2);
  EXPECT_THAT(rig.book.FillersOf(Key(2, 0)),
              ElementsAre(TransferId(1), TransferId(2)));
  EXPECT_THAT(rig.Filled(1), ElementsAre(Key(1, 0), Key(2, 0)));
  EXPECT_THAT(rig.book.FillersOf(Key(2, 0)), ElementsAre(TransferId(2)));
  EXPECT_THAT(rig.Filled(2), ElementsAre(Key(2, 0)));
}

// With O_DIRECT memory is read and written by pages, whoever it belongs to.
TEST(PartBook, PartsTakeWholePages) {
  EXPECT_EQ(PartSpace(256), kPage);
  EXPECT_EQ(PartSpace(kPage), kPage);
  EXPECT_EQ(PartSpace(kPage + 256), 2 * kPage);
  Rig rig;
  rig.Bring(Key(1, 0), {{0, 16}}, 1);
  EXPECT_EQ(rig.book.EndBefore(File(1), 16 * kG), 16 * kG);
  rig.Bring(Key(1, 1), {{16, 3}}, 2);
  EXPECT_EQ(rig.book.EndBefore(File(1), 19 * kG), std::nullopt);
}

TEST(PartBook, WhatFailedIsNotJoinedAnyMore) {
  Rig rig;
  rig.Bring(Key(1, 0), {{0, 4}}, 1);
  rig.Bring(Key(2, 0), {{0, 8}}, 2);
  EXPECT_THAT(rig.Failed(1), ElementsAre(Key(1, 0), Key(2, 0)));
  std::vector<uint64_t> freed;
  rig.book.Leave(Key(1, 0), freed);
  rig.Free(freed);
  EXPECT_EQ(rig.Leave(Key(2, 0)), 1u) << "its own part is still being filled";
  EXPECT_EQ(rig.book.UnusedSpace(), kPage);
  // A new user takes over what is under way.
  EXPECT_EQ(rig.Bring(Key(3, 0), {{0, 8}}, 3), 4u);
  EXPECT_EQ(rig.book.UnusedSpace(), 0u);
  EXPECT_THAT(rig.Filled(2), ElementsAre(Key(3, 0)));
  EXPECT_THAT(rig.Filled(3), ElementsAre(Key(3, 0)));
}

TEST(PartBook, APartThatNobodyWantsAnyMoreGoesWhenItIsFilled) {
  Rig rig;
  rig.Bring(Key(1, 0), {{0, 4}}, 1);
  EXPECT_EQ(rig.Leave(Key(1, 0)), 0u) << "bytes are still on their way to it";
  EXPECT_THAT(rig.extents, SizeIs(1));
  EXPECT_THAT(rig.Filled(1), IsEmpty());
  EXPECT_THAT(rig.extents, IsEmpty());
}

// Whoever brings the file may use what everyone may read; the other way round
// would tell everyone what one user has.
TEST(PartBook, WhatEveryoneMayReadServesAll) {
  Rig rig;
  constexpr uint64_t kAll = Zone::kEveryone;
  EXPECT_EQ(rig.Bring(Key(1, 0), {{0, 4}}, 1, {File(1, 7)}), 4u);
  EXPECT_EQ(rig.Bring(Key(2, 0), {{2, 6}}, 2, {File(1, kAll)}), 6u);
  EXPECT_EQ(rig.Bring(Key(3, 0), {{2, 8}}, 3, {File(1, 8)}), 2u);
  // Of both, where they overlap.
  EXPECT_EQ(rig.Bring(Key(4, 0), {{0, 10}}, 4, {File(1, 7)}), 2u);
  for (uint64_t transfer = 1; transfer <= 4; ++transfer) rig.Filled(transfer);
  EXPECT_THAT(rig.Ranges(Key(4, 0)), SizeIs(3));
  rig.Leave(Key(2, 0));
  rig.Leave(Key(1, 0));
  EXPECT_THAT(rig.Ranges(Key(4, 0)), SizeIs(3));
}

TEST(PartBook, OtherReadersShareNothing) {
  Rig rig;
  EXPECT_EQ(rig.Bring(Key(1, 0), {{0, 4}}, 1, {File(1, 7)}), 4u);
  EXPECT_EQ(rig.Bring(Key(2, 0), {{0, 4}}, 2, {File(1, 8)}), 4u);
  EXPECT_EQ(rig.Bring(Key(3, 0), {{0, 4}}, 3, {File(1, 7)}), 0u);
  EXPECT_EQ(rig.Bring(Key(4, 0), {{0, 4}}, 4, {File(3, 7)}), 4u);
}

// The same bytes used twice by one group, as a joined tensor may.
TEST(PartBook, AGroupMayUseBytesTwice) {
  Rig rig;
  EXPECT_EQ(rig.Bring(Key(1, 0), {{4, 2}, {0, 6}, {4, 2}}, 1), 6u);
  rig.Filled(1);
  EXPECT_THAT(
      rig.Ranges(Key(1, 0)),
      ElementsAre(ImageRange{4 * kG, 0, 2 * kG}, ImageRange{0, 2 * kG, 6 * kG},
                  ImageRange{4 * kG, 8 * kG, 2 * kG}));
  EXPECT_EQ(rig.Leave(Key(1, 0)), 1u);
}

// Held against a model that knows each granule: what is missing is what no
// copy has, and each range has the granules that the image is to have.
TEST(PartBook, RandomGroupingsHoldEachGranuleOnce) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Rig rig;
    std::map<GroupKey, std::vector<uint64_t>> images;  // Granules.
    std::set<uint64_t> filling;                        // Transfers.
    std::set<GroupKey> users;
    for (uint64_t step = 1; step <= 200; ++step) {
      const GroupKey key = Key(1, static_cast<uint32_t>(random() % 12));
      if (users.contains(key)) {
        rig.Leave(key);
        users.erase(key);
        images.erase(key);
      } else {
        std::vector<Granules> runs;
        std::vector<uint64_t>& image = images[key];
        for (uint32_t r = 0; r < 1 + random() % 4; ++r) {
          const Granules run = {random() % 40, 1 + random() % 10};
          runs.push_back(run);
          for (uint64_t g = 0; g < run.count; ++g)
            image.push_back(run.from + g);
        }
        rig.Bring(key, runs, step);
        users.insert(key);
        filling.insert(step);
      }
      while (!filling.empty() && random() % 3 != 0) {
        rig.Filled(*filling.begin());
        filling.erase(filling.begin());
        rig.book.Check();
      }
      std::map<uint64_t, uint64_t> place;  // Of a granule on the host.
      for (const GroupKey user : users) {
        if (!rig.book.FillersOf(user).empty()) continue;
        uint64_t at = 0;
        for (const ImageRange& range : rig.Ranges(user)) {
          ASSERT_EQ(range.image_offset, at * kG);
          for (uint64_t g = 0; g < range.bytes / kG; ++g) {
            const uint64_t here = range.host_offset / kG + g;
            const auto [it, is_new] = place.emplace(images[user][at], here);
            EXPECT_EQ(it->second, here) << "a granule lies in two places";
            ++at;
          }
        }
        EXPECT_EQ(at, images[user].size());
      }
    }
    for (const uint64_t transfer : filling) rig.Filled(transfer);
    for (const GroupKey user : users) rig.Leave(user);
    EXPECT_THAT(rig.extents, IsEmpty());
  }
}

}  // namespace hoistd::part_book_test
