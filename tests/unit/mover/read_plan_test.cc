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
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

std::vector<std::byte> Memory(uint64_t bytes, uint8_t value = 0xAA) {
  return std::vector<std::byte>(bytes, std::byte{value});
}

Sheets OneSheet(std::vector<Sheet::Run> runs, uint64_t bytes) {
  Sheet sheet;
  sheet.runs = std::move(runs);
  sheet.bytes = bytes;
  return {std::make_shared<const Sheet>(std::move(sheet))};
}

// Of three files, whose bytes lie in their sheets as in the files.
PlannedReads Plan(const std::vector<SheetRead>& parts,
                  std::span<std::byte> host) {
  constexpr uint64_t kBytes = 1 << 20;
  return PlanReads(Sheets(3, OneSheet({{0, 0, kBytes}}, kBytes)[0]), parts,
                   host);
}

TEST(PlanReads, NeighboursAreOneRead) {
  std::vector<std::byte> memory = Memory(4096);
  auto reads = Plan({{{0, 100, 50}, 0}, {{0, 150, 50}, 256}}, memory);
  ASSERT_THAT(reads[0], SizeIs(1));
  EXPECT_EQ(reads[0][0].offset, 100u);
  ASSERT_THAT(reads[0][0].into, SizeIs(2));
  EXPECT_EQ(reads[0][0].into[0].to, memory.data());
  EXPECT_EQ(reads[0][0].into[1].to, memory.data() + 256);
}

TEST(PlanReads, SmallGapsAreReadOverAndLargeOnesAreNot) {
  std::vector<std::byte> memory = Memory(4096);
  const uint64_t gap = 64 * 1024;
  auto reads = Plan({{{0, 0, 10}, 0}, {{0, 10 + gap, 10}, 256}}, memory);
  ASSERT_THAT(reads[0], SizeIs(1));
  ASSERT_THAT(reads[0][0].into, SizeIs(3));
  EXPECT_EQ(reads[0][0].into[1].to, nullptr);
  EXPECT_EQ(reads[0][0].into[1].bytes, gap);
  reads = Plan({{{0, 0, 10}, 0}, {{0, 11 + gap, 10}, 256}}, memory);
  EXPECT_THAT(reads[0], SizeIs(2));
}

TEST(PlanReads, FilesAreNeverJoined) {
  std::vector<std::byte> memory = Memory(4096);
  const auto reads = Plan({{{1, 10, 10}, 0}, {{0, 0, 10}, 256}}, memory);
  EXPECT_THAT(reads, ElementsAre(Pair(0, SizeIs(1)), Pair(1, SizeIs(1))));
}

TEST(PlanReads, NothingIsReadForNothing) {
  EXPECT_THAT(Plan({}, {}), IsEmpty());
  EXPECT_THAT(Plan({{{0, 5, 0}, 0}}, {}), IsEmpty());
}

// Every byte of every part is read once, to its place, in file order.
TEST(PlanReads, EveryByteOfEveryPartComesOnce) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<std::byte> memory = Memory(12 * 600);
    std::vector<SheetRead> parts;
    uint64_t place = 0;
    std::vector<uint64_t> ends(3, 0);
    for (uint32_t i = 0; i < 1 + random() % 12; ++i) {
      SheetRead part;
      part.from.file = random() % 3;
      const uint64_t gaps[] = {0, 0, random() % 100, 60'000, 70'000};
      part.from.offset = ends[part.from.file] + gaps[random() % 5];
      part.from.bytes = random() % 300;
      ends[part.from.file] = part.from.end();
      part.host_offset = place += random() % 256;
      place += part.from.bytes;
      parts.push_back(part);
    }
    std::shuffle(parts.begin(), parts.end(), random);
    // Which file byte each byte of memory is to have.
    std::map<const std::byte*, std::pair<uint32_t, uint64_t>> want;
    for (const auto& [from, host_offset, owner] : parts) {
      for (uint64_t i = 0; i < from.bytes; ++i) {
        want[&memory[host_offset + i]] = {from.file, from.offset + i};
      }
    }
    for (const auto& [file, requests] : Plan(parts, memory)) {
      uint64_t at = 0;
      for (const ReadRequest& read : requests) {
        EXPECT_GE(read.offset, at);
        at = read.offset;
        for (const Scatter& part : read.into) {
          EXPECT_GT(part.bytes, 0u);
          for (uint64_t i = 0; i < part.bytes && part.to != nullptr; ++i) {
            const auto found = want.find(part.to + i);
            ASSERT_NE(found, want.end()) << "read twice, or to no part's place";
            EXPECT_EQ(found->second, std::pair(file, at + i));
            want.erase(found);
          }
          at += part.bytes;
        }
      }
    }
    EXPECT_THAT(want, IsEmpty());
  }
}

TEST(Padding, IsZeroedAndNothingElse) {
  std::vector<std::byte> host = Memory(4096);
  const Sheets sheets =
      OneSheet({{0, 1000, 100}, {256, 1100, 44}, {512, 1144, 512}}, 4096);
  const std::vector<SheetRead> parts = {{{0, 0, 768}, 1024}};
  const auto reads = PlanReads(sheets, parts, host);
  EXPECT_THAT(host, Each(std::byte{0xAA}));
  ZeroPadding(sheets, parts, host);
  for (size_t i = 0; i < host.size(); ++i) {
    const uint64_t at = i - 1024;
    const bool padding =
        i >= 1024 && ((at >= 100 && at < 256) || (at >= 300 && at < 512));
    EXPECT_EQ(host[i], padding ? std::byte{0} : std::byte{0xAA}) << i;
  }
  const ReadRequest& read = reads.at(0).at(0);
  EXPECT_EQ(read.offset, 1000u);
  ASSERT_THAT(read.into, SizeIs(3));
  EXPECT_EQ(read.into[1].to, host.data() + 1024 + 256);
  EXPECT_EQ(read.into[2].bytes, 256u) << "of the part, not of the run";
}

// A part may begin and end in the middle of a run, and behind the last.
TEST(Padding, PartsCutRunsWhereTheyBeginAndEnd) {
  std::vector<std::byte> host = Memory(4096);
  const Sheets sheets = OneSheet({{0, 8, 600}, {768, 608, 100}}, 4096);
  const std::vector<SheetRead> parts = {{{0, 256, 256}, 0},
                                        {{0, 768, 512}, 512}};
  const auto reads = PlanReads(sheets, parts, host);
  ZeroPadding(sheets, parts, host);
  const ReadRequest& read = reads.at(0).at(0);
  EXPECT_EQ(read.offset, 8u + 256);
  ASSERT_THAT(read.into, SizeIs(3));
  EXPECT_EQ(read.into[0].bytes, 256u);
  EXPECT_EQ(read.into[1].bytes, 608u - (8 + 512)) << "read over";
  EXPECT_EQ(read.into[2].bytes, 100u);
  EXPECT_EQ(host[512 + 99], std::byte{0xAA});
  EXPECT_EQ(host[512 + 100], std::byte{0});
  EXPECT_EQ(host[1023], std::byte{0});
  EXPECT_EQ(host[1024], std::byte{0xAA});
}

}  // namespace hoistd::read_plan_test
