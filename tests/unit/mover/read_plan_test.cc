#include "daemon/mover/read_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::read_plan_test {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::byte> Memory(uint64_t bytes, uint8_t value = 0xAA) {
  return std::vector<std::byte>(bytes, std::byte{value});
}

TEST(PlanReads, NeighboursAreOneRead) {
  std::vector<std::byte> memory = Memory(4096);
  const std::span<std::byte> all(memory);
  const auto reads =
      PlanReads({{0, 100, all.subspan(0, 50)}, {0, 150, all.subspan(256, 50)}});
  ASSERT_THAT(reads, SizeIs(1));
  EXPECT_EQ(reads[0].offset, 100u);
  ASSERT_THAT(reads[0].into, SizeIs(2));
  EXPECT_EQ(reads[0].into[0].to, memory.data());
  EXPECT_EQ(reads[0].into[1].to, memory.data() + 256);
}

TEST(PlanReads, SmallGapsAreReadOverAndLargeOnesAreNot) {
  std::vector<std::byte> memory = Memory(4096);
  const std::span<std::byte> all(memory);
  const uint64_t gap = 64 * 1024;
  auto reads = PlanReads(
      {{0, 0, all.subspan(0, 10)}, {0, 10 + gap, all.subspan(256, 10)}});
  ASSERT_THAT(reads, SizeIs(1));
  ASSERT_THAT(reads[0].into, SizeIs(3));
  EXPECT_EQ(reads[0].into[1].to, nullptr);
  EXPECT_EQ(reads[0].into[1].bytes, gap);
  reads = PlanReads(
      {{0, 0, all.subspan(0, 10)}, {0, 11 + gap, all.subspan(256, 10)}});
  EXPECT_THAT(reads, SizeIs(2));
}

TEST(PlanReads, FilesAreNeverJoined) {
  std::vector<std::byte> memory = Memory(4096);
  const std::span<std::byte> all(memory);
  const auto reads =
      PlanReads({{1, 10, all.subspan(0, 10)}, {0, 0, all.subspan(256, 10)}});
  ASSERT_THAT(reads, SizeIs(2));
  EXPECT_EQ(reads[0].file, 0u);
  EXPECT_EQ(reads[1].file, 1u);
}

TEST(PlanReads, NothingIsReadForNothing) {
  EXPECT_THAT(PlanReads({}), IsEmpty());
  EXPECT_THAT(PlanReads({{0, 5, {}}}), IsEmpty());
}

// Every byte of every run is read once, to its place, in file order.
TEST(PlanReads, EveryByteOfEveryRunComesOnce) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<std::byte> memory = Memory(12 * 600);
    std::vector<FileRun> runs;
    uint64_t place = 0;
    std::vector<uint64_t> ends(3, 0);
    for (uint32_t i = 0; i < 1 + random() % 12; ++i) {
      FileRun run;
      run.file = random() % 3;
      const uint64_t gaps[] = {0, 0, random() % 100, 60'000, 70'000};
      run.offset = ends[run.file] + gaps[random() % 5];
      const uint64_t bytes = random() % 300;
      ends[run.file] = run.offset + bytes;
      place += random() % 256;
      run.to = std::span(memory).subspan(place, bytes);
      place += bytes;
      runs.push_back(run);
    }
    std::shuffle(runs.begin(), runs.end(), random);
    // Which file byte each byte of memory is to have.
    std::map<const std::byte*, std::pair<uint32_t, uint64_t>> want;
    for (const FileRun& run : runs) {
      for (uint64_t i = 0; i < run.to.size(); ++i) {
        want[run.to.data() + i] = {run.file, run.offset + i};
      }
    }
    std::pair<uint32_t, uint64_t> end = {0, 0};
    for (const PlannedRead& read : PlanReads(runs)) {
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

Sheets OneSheet(std::vector<Sheet::Run> runs, uint64_t bytes) {
  Sheet sheet;
  sheet.runs = std::move(runs);
  sheet.bytes = bytes;
  return {std::make_shared<const Sheet>(std::move(sheet))};
}

TEST(Padding, IsZeroedAndNothingElse) {
  std::vector<std::byte> host = Memory(4096);
  const Sheets sheets =
      OneSheet({{0, 1000, 100}, {256, 1100, 44}, {512, 1144, 512}}, 4096);
  const std::vector<SheetRead> parts = {{{0, 0, 768}, 1024}};
  const auto runs = FileRunsOf(sheets, parts, host);
  EXPECT_THAT(host, Each(std::byte{0xAA}));
  ZeroPadding(sheets, parts, host);
  for (size_t i = 0; i < host.size(); ++i) {
    const uint64_t at = i - 1024;
    const bool padding =
        i >= 1024 && ((at >= 100 && at < 256) || (at >= 300 && at < 512));
    EXPECT_EQ(host[i], padding ? std::byte{0} : std::byte{0xAA}) << i;
  }
  ASSERT_THAT(runs, SizeIs(3));
  EXPECT_EQ(runs[1].offset, 1100u);
  EXPECT_EQ(runs[1].to.data(), host.data() + 1024 + 256);
  EXPECT_EQ(runs[2].to.size(), 256u) << "of the part, not of the run";
}

// A part may begin and end in the middle of a run, and behind the last.
TEST(Padding, PartsCutRunsWhereTheyBeginAndEnd) {
  std::vector<std::byte> host = Memory(4096);
  const Sheets sheets = OneSheet({{0, 8, 600}, {768, 608, 100}}, 4096);
  const std::vector<SheetRead> parts = {{{0, 256, 256}, 0},
                                        {{0, 768, 512}, 512}};
  const auto runs = FileRunsOf(sheets, parts, host);
  ZeroPadding(sheets, parts, host);
  ASSERT_THAT(runs, SizeIs(2));
  EXPECT_EQ(runs[0].offset, 8u + 256);
  EXPECT_EQ(runs[0].to.size(), 256u);
  EXPECT_EQ(runs[1].offset, 608u);
  EXPECT_EQ(runs[1].to.size(), 100u);
  EXPECT_EQ(host[512 + 99], std::byte{0xAA});
  EXPECT_EQ(host[512 + 100], std::byte{0});
  EXPECT_EQ(host[1023], std::byte{0});
  EXPECT_EQ(host[1024], std::byte{0xAA});
}

}  // namespace hoistd::read_plan_test
