#include "daemon/model/source_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "hoist/shared/image_layout.h"
#include "tests/support/status_matchers.h"

namespace hoistd {

namespace {

using ::hoistd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kBF16 = hoist::DType::kBF16;

SourceTensor InFile(const std::string& name, uint64_t sheet_offset,
                    uint64_t bytes, uint32_t file = 0) {
  SourceTensor tensor = {name, kBF16, {static_cast<int64_t>(bytes / 2)}, bytes};
  AppendRun({{file, sheet_offset, bytes}, 0}, tensor.runs);
  return tensor;
}

// a b c in one file, one after the other; d in another.
std::vector<SourceTensor> Files() {
  return {InFile("a", 100, 8), InFile("b", 108, 8), InFile("c", 116, 4),
          InFile("d", 100, 8, 1)};
}

std::vector<std::string> Names(const std::vector<SourceTensor>& tensors) {
  std::vector<std::string> names;
  for (const SourceTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

TEST(JoinTensors, NoneLeavesTheFilesAsTheyAre) {
  ASSERT_OK_AND_ASSIGN(const auto all, JoinTensors(Files(), {}));
  EXPECT_THAT(Names(all), ElementsAre("a", "b", "c", "d"));
  EXPECT_FALSE(all[0].joined);
}

TEST(JoinTensors, AJoinedTensorTakesTheFirstPartsPlace) {
  ASSERT_OK_AND_ASSIGN(const auto all,
                       JoinTensors(Files(), {{"bd", {2, 4}, {{"b"}, {"d"}}}}));
  EXPECT_THAT(Names(all), ElementsAre("a", "bd", "c"));
  EXPECT_TRUE(all[1].joined);
  EXPECT_EQ(all[1].dtype, kBF16);
  EXPECT_THAT(all[1].shape, ElementsAre(2, 4));
  EXPECT_EQ(all[1].bytes, 16u);
  EXPECT_THAT(all[1].runs, ElementsAre(SourceRun{{0, 108, 8}, 0},
                                       SourceRun{{1, 100, 8}, 8}));
}

TEST(JoinTensors, PartsThatTouchAreOneRun) {
  ASSERT_OK_AND_ASSIGN(
      const auto all,
      JoinTensors(Files(), {{"abc", {10}, {{"a"}, {"b"}, {"c"}}}}));
  EXPECT_THAT(all[0].runs, ElementsAre(SourceRun{{0, 100, 20}, 0}));
}

TEST(JoinTensors, AJoinedTensorHasTheBlockTypeThatAllItsPartsHave) {
  std::vector<SourceTensor> files = Files();
  files[0].block_type = files[1].block_type = "Q4_0";
  files[3].block_type = "IQ4_NL";
  ASSERT_OK_AND_ASSIGN(const auto all,
                       JoinTensors(files, {{"ab", {8}, {{"a"}, {"b"}}},
                                           {"cd", {6}, {{"c"}, {"d"}}}}));
  ASSERT_THAT(Names(all), ElementsAre("ab", "cd"));
  EXPECT_EQ(all[0].block_type, "Q4_0");
  EXPECT_EQ(all[1].block_type, "");
  ASSERT_OK_AND_ASSIGN(const auto other,
                       JoinTensors(files, {{"bd", {8}, {{"b"}, {"d"}}}}));
  EXPECT_EQ(other[1].name, "bd");
  EXPECT_EQ(other[1].block_type, "");
}

TEST(JoinTensors, OneTensorMayBeSeveral) {
  ASSERT_OK_AND_ASSIGN(const auto all,
                       JoinTensors(Files(), {{"q", {2}, {{"a", 0, 4}}},
                                             {"k", {2}, {{"a", 4}}}}));
  EXPECT_THAT(Names(all), ElementsAre("q", "k", "b", "c", "d"));
  EXPECT_THAT(all[0].runs, ElementsAre(SourceRun{{0, 100, 4}, 0}));
  EXPECT_THAT(all[1].runs, ElementsAre(SourceRun{{0, 104, 4}, 0}));
}

TEST(JoinTensors, RunsOfAPartLieEndToEndAndReachOverWhatIsBetween) {
  ASSERT_OK_AND_ASSIGN(
      const auto all,
      JoinTensors(Files(), {{"left", {2}, {{"a", 0, 2, 2, 4}}},
                            {"right", {2}, {{"a", 2, 2, 2, 4}}}}));
  EXPECT_THAT(all[0].runs, ElementsAre(SourceRun{{0, 100, 2}, 0},
                                       SourceRun{{0, 104, 2}, 2}));
  EXPECT_EQ(all[0].bytes, 4u);
  EXPECT_THAT(all[0].reaches, ElementsAre(SheetRange{0, 100, 6}));
  EXPECT_THAT(all[1].runs, ElementsAre(SourceRun{{0, 102, 2}, 0},
                                       SourceRun{{0, 106, 2}, 2}));
  EXPECT_EQ(all[1].reaches[0].end(), 108u);
}

TEST(JoinTensors, RunsThatTouchAreOneRunAndReachNoFurther) {
  ASSERT_OK_AND_ASSIGN(const auto all,
                       JoinTensors(Files(), {{"x", {4}, {{"a", 0, 2, 4, 2}}}}));
  EXPECT_THAT(all[0].runs, ElementsAre(SourceRun{{0, 100, 8}, 0}));
  EXPECT_EQ(all[0].reaches[0].end(), 108u);
}

TEST(JoinTensors, RunsThatDoNotFitAreRefused) {
  const auto refused = [](const JoinedPart& part, const std::string& why) {
    EXPECT_THAT(JoinTensors(Files(), {{"x", {2}, {part}}}),
                StatusIs(kInvalid, HasSubstr(why)));
  };
  constexpr uint64_t kMost = ~uint64_t{0};
  refused({"a", 0, 4, 2, 2}, "overlap");
  refused({"a", 0, 0, 2, 4}, "overlap, or are empty");
  refused({"a", 0, 2, 3, 4}, "do not fit");
  refused({"a", 6, 2, 2, 2}, "do not fit");
  refused({"a", 0, 2, 2, kMost}, "do not fit");
  refused({"a", 0, 2, kMost, 2}, "runs of the files in one model");
  refused({"a", 0, 2, kMaxJoinedRuns, kMost / 2}, "do not fit");
  refused({"a", 0, 2, 2, 3}, "cut an element");
}

TEST(JoinTensors, WhatDoesNotFitIsRefusedByName) {
  const auto refused = [](JoinedTensor joined, const std::string& why) {
    EXPECT_THAT(JoinTensors(Files(), {std::move(joined)}),
                StatusIs(kInvalid, HasSubstr(why)));
  };
  refused({"x", {1}, {}}, "no parts");
  refused({"x", {1}, {{"y"}}}, "\"y\" is not in the files");
  refused({"a", {4}, {{"b"}}}, "of that name");
  refused({"x", {4}, {{"a", 0, 10}}}, "has 8 bytes");
  refused({"x", {4}, {{"a", 9}}}, "has 8 bytes");
  refused({"x", {4}, {{"a", ~uint64_t{0}, 8}}}, "has 8 bytes");
  refused({"x", {4}, {{"a", 4, ~uint64_t{0}}}}, "has 8 bytes");
  refused({"x", {4}, {{"a", 1, 2}}}, "cut an element");
  refused({"x", {5}, {{"a"}}}, "its parts have 8 bytes; its shape needs 10");
  refused({"x", {int64_t{1} << 62, 4}, {{"a"}}}, "none of its type");
  EXPECT_THAT(JoinTensors(Files(), {{"x", {4}, {{"a"}}}, {"x", {4}, {{"b"}}}}),
              StatusIs(kInvalid, HasSubstr("twice")));
  std::vector<SourceTensor> mixed = Files();
  mixed[1].dtype = hoist::DType::kF16;
  EXPECT_THAT(JoinTensors(mixed, {{"x", {8}, {{"a"}, {"b"}}}}),
              StatusIs(kInvalid, HasSubstr("another type")));
}

TEST(JoinTensors, NoSumOfPartsWraps) {
  std::vector<SourceTensor> huge = {InFile("a", 0, hoist::kMaxImageBytes)};
  EXPECT_THAT(JoinTensors(huge, {{"x", {4}, {{"a"}, {"a"}, {"a"}}}}),
              StatusIs(kInvalid, HasSubstr("larger than")));
}

// The file's bytes are its offsets, so that the joined bytes tell where each
// came from.
TEST(JoinTensors, BytesAreThePartsBytesEndToEnd) {
  std::mt19937 random(20261121);
  for (int round = 0; round < 200; ++round) {
    std::vector<SourceTensor> files;
    uint64_t at = 8;
    for (int i = 0; i < 6; ++i) {
      const uint64_t bytes = 2 * (random() % 20);
      files.push_back(InFile(std::to_string(i), at, bytes));
      at += bytes;
    }
    JoinedTensor joined = {"x", {0}, {}};
    std::vector<uint64_t> want;
    for (int i = 0; i < 8; ++i) {
      const SourceTensor& from = files[random() % files.size()];
      if (from.bytes == 0) continue;
      const uint64_t offset = 2 * (random() % (from.bytes / 2));
      const uint64_t bytes = 2 + 2 * (random() % ((from.bytes - offset) / 2));
      joined.parts.push_back({from.name, offset, bytes});
      for (uint64_t b = 0; b < bytes; ++b) {
        want.push_back(from.runs[0].from.offset + offset + b);
      }
    }
    if (joined.parts.empty()) continue;
    joined.shape = {static_cast<int64_t>(want.size() / 2)};
    ASSERT_OK_AND_ASSIGN(const auto all, JoinTensors(files, {joined}));
    std::vector<uint64_t> got;
    for (const SourceTensor& tensor : all) {
      for (const SourceRun& run : tensor.runs) {
        if (tensor.name != "x") continue;
        ASSERT_EQ(run.image_offset, got.size());
        for (uint64_t b = 0; b < run.from.bytes; ++b) {
          got.push_back(run.from.offset + b);
        }
      }
    }
    ASSERT_EQ(got, want) << "round " << round;
  }
}

}  // namespace
}  // namespace hoistd
