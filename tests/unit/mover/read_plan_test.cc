#include "daemon/mover/read_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::byte> Memory(uint64_t bytes, uint8_t value = 0xAA) {
  return std::vector<std::byte>(bytes, std::byte{value});
}

Group GroupOf(uint64_t bytes, std::vector<SourceRun> runs) {
  Group group;
  group.image_bytes = bytes;
  group.runs = std::move(runs);
  return group;
}

TEST(PlanReads, NeighboursAreOneRead) {
  std::vector<std::byte> image = Memory(4096);
  const auto reads =
      PlanReads(GroupOf(4096, {{0, 100, 0, 50}, {0, 150, 256, 50}}), image);
  ASSERT_THAT(reads, SizeIs(1));
  EXPECT_EQ(reads[0].offset, 100u);
  ASSERT_THAT(reads[0].into, SizeIs(2));
  EXPECT_EQ(reads[0].into[0].to, image.data());
  EXPECT_EQ(reads[0].into[1].to, image.data() + 256);
}

TEST(PlanReads, SmallGapsAreReadOverAndLargeOnesAreNot) {
  std::vector<std::byte> image = Memory(4096);
  const uint64_t gap = 64 * 1024;
  auto reads =
      PlanReads(GroupOf(4096, {{0, 0, 0, 10}, {0, 10 + gap, 256, 10}}), image);
  ASSERT_THAT(reads, SizeIs(1));
  ASSERT_THAT(reads[0].into, SizeIs(3));
  EXPECT_EQ(reads[0].into[1].to, nullptr);
  EXPECT_EQ(reads[0].into[1].bytes, gap);
  reads =
      PlanReads(GroupOf(4096, {{0, 0, 0, 10}, {0, 11 + gap, 256, 10}}), image);
  EXPECT_THAT(reads, SizeIs(2));
}

TEST(PlanReads, FilesAreNeverJoined) {
  std::vector<std::byte> image = Memory(4096);
  const auto reads =
      PlanReads(GroupOf(4096, {{1, 10, 0, 10}, {0, 0, 256, 10}}), image);
  ASSERT_THAT(reads, SizeIs(2));
  EXPECT_EQ(reads[0].file, 0u);
  EXPECT_EQ(reads[1].file, 1u);
}

TEST(PlanReads, NothingIsReadForNothing) {
  std::vector<std::byte> image = Memory(4096);
  EXPECT_THAT(PlanReads(GroupOf(0, {}), {}), IsEmpty());
  EXPECT_THAT(PlanReads(GroupOf(4096, {{0, 5, 0, 0}}), image), IsEmpty());
}

// Every byte of every run is read once, to its place, in file order.
TEST(PlanReads, EveryByteOfEveryRunComesOnce) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<SourceRun> runs;
    uint64_t image_bytes = 0;
    std::vector<uint64_t> ends(3, 0);
    for (uint32_t i = 0; i < 1 + random() % 12; ++i) {
      SourceRun run;
      run.file = random() % 3;
      const uint64_t gaps[] = {0, 0, random() % 100, 60'000, 70'000};
      run.file_offset = ends[run.file] + gaps[random() % 5];
      run.bytes = random() % 300;
      ends[run.file] = run.file_offset + run.bytes;
      run.image_offset = image_bytes + random() % 256;
      image_bytes = run.image_offset + run.bytes;
      runs.push_back(run);
    }
    image_bytes = (image_bytes + 4095) / 4096 * 4096;
    std::shuffle(runs.begin(), runs.end(), random);
    std::vector<std::byte> image = Memory(image_bytes);
    // Which file byte each image byte is to have.
    std::map<const std::byte*, std::pair<uint32_t, uint64_t>> want;
    for (const SourceRun& run : runs) {
      for (uint64_t i = 0; i < run.bytes; ++i) {
        want[image.data() + run.image_offset + i] = {run.file,
                                                     run.file_offset + i};
      }
    }
    std::pair<uint32_t, uint64_t> end = {0, 0};
    for (const PlannedRead& read :
         PlanReads(GroupOf(image_bytes, runs), image)) {
      const std::pair<uint32_t, uint64_t> begin = {read.file, read.offset};
      EXPECT_GE(begin, end);
      uint64_t at = read.offset;
      for (const Scatter& part : read.into) {
        EXPECT_GT(part.bytes, 0u);
        for (uint64_t i = 0; i < part.bytes && part.to != nullptr; ++i) {
          const auto found = want.find(part.to + i);
          ASSERT_NE(found, want.end()) << "read twice, or to no run's place";
          EXPECT_EQ(found->second, std::pair(read.file, at + i));
          want.erase(found);
        }
        at += part.bytes;
      }
      end = {read.file, at};
    }
    EXPECT_THAT(want, IsEmpty());
  }
}

TEST(ZeroPadding, ZeroesWhatNoRunFillsAndNothingElse) {
  std::vector<std::byte> image = Memory(4096);
  ZeroPadding(GroupOf(4096, {{0, 0, 16, 100}, {0, 900, 256, 44}}), image);
  for (size_t i = 0; i < image.size(); ++i) {
    const bool filled = (i >= 16 && i < 116) || (i >= 256 && i < 300);
    EXPECT_EQ(image[i], filled ? std::byte{0xAA} : std::byte{0}) << i;
  }
}

TEST(ZeroPadding, AnImageWithoutRunsIsAllPadding) {
  std::vector<std::byte> image = Memory(64);
  ZeroPadding(GroupOf(64, {}), image);
  EXPECT_EQ(image, Memory(64, 0));
}

TEST(ZeroPadding, RunsThatOverlapKeepAllTheirBytes) {
  std::vector<std::byte> image = Memory(300);
  ZeroPadding(GroupOf(300, {{0, 0, 0, 200}, {0, 50, 50, 10}}), image);
  for (size_t i = 0; i < 300; ++i) {
    EXPECT_EQ(image[i], i < 200 ? std::byte{0xAA} : std::byte{0}) << i;
  }
}

}  // namespace
}  // namespace hoistd
