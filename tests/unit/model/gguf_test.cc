#include "daemon/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/model/model_builder.h"
#include "daemon/model/safetensors.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"

namespace hoistd::gguf_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::GgufElements;
using testing::GgufFile;
using testing::GgufNumber;
using testing::GgufPair;
using testing::GgufTensor;
using testing::GgufText;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kGgufArray;
using testing::kGgufString;
using testing::kGgufUint16;
using testing::kGgufUint32;
using testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr uint32_t kF32 = 0, kQ8 = 8, kQ4K = 12, kI8 = 24;

absl::StatusOr<FileHeader> ParseWhole(const std::string& file) {
  auto parsed = ParseGgufHeader(file, file.size());
  if (!parsed.ok()) return parsed.status();
  EXPECT_LE(parsed->bytes, file.size());
  return std::move(parsed->header);
}

void ExpectRefused(const GgufFile& file, const std::string& why) {
  EXPECT_THAT(ParseWhole(file.Whole()), StatusIs(kInvalid, HasSubstr(why)));
}

// One tensor of these.
GgufFile One(const std::vector<uint64_t>& dimensions, uint32_t type,
             uint64_t data_bytes, uint64_t offset = 0) {
  return {.tensors = {GgufTensor("w", dimensions, type, offset)},
          .data_bytes = data_bytes};
}

GgufFile WithPair(const std::string& pair) {
  GgufFile file = One({4}, kF32, 16);
  file.pairs = {pair};
  return file;
}

// As converters write: metadata of all kinds, some tensors.
GgufFile Usual() {
  const std::string words = GgufText("a") + GgufText("bc");
  return {
      .pairs = {GgufPair("general.architecture", kGgufString, GgufText("flux")),
                GgufPair("general.alignment", kGgufUint32, GgufNumber(64, 4)),
                GgufPair("words", kGgufArray,
                         GgufElements(kGgufString, 2, words)),
                GgufPair("nested", kGgufArray,
                         GgufElements(kGgufArray, 1, GgufElements(0, 2, "xy"))),
                GgufPair("yes", 7, GgufNumber(1, 1))},
      .tensors = {GgufTensor("blk.0.w", {512, 3}, kQ4K, 64),
                  GgufTensor("blk.0.b", {5}, kF32, 0)},
      .data_bytes = 64 + 3 * 288,
      .alignment = 64};
}

TEST(Gguf, TensorsComeInFileOrderWithTheirBytes) {
  const std::string file = Usual().Whole();
  ASSERT_OK_AND_ASSIGN(const FileHeader header, ParseWhole(file));
  ASSERT_EQ(header.tensors.size(), 2u);
  const FileTensor& bias = header.tensors[0];
  EXPECT_EQ(bias.name, "blk.0.b");
  EXPECT_EQ(bias.dtype, hoist::DType::kF32);
  EXPECT_THAT(bias.shape, ElementsAre(5));
  EXPECT_EQ(bias.bytes, 20u);
  EXPECT_EQ(bias.file_offset, file.size() - 64 - 3 * 288);
  const FileTensor& packed = header.tensors[1];
  EXPECT_EQ(packed.dtype, hoist::DType::kU8);
  EXPECT_EQ(packed.block_type, "Q4_K");
  EXPECT_EQ(bias.block_type, "");
  EXPECT_THAT(packed.shape, ElementsAre(3, 288));
  EXPECT_EQ(packed.bytes, 864u);
  EXPECT_EQ(packed.file_offset, bias.file_offset + 64);
  EXPECT_EQ(header.parts, 0u);
}

TEST(Gguf, EachTypeHasItsBlocksBytes) {
  struct Case {
    uint32_t type, elements, bytes;
    hoist::DType dtype = hoist::DType::kU8;
  };
  using hoist::DType;
  const Case cases[] = {{0, 1, 4, DType::kF32},
                        {1, 1, 2, DType::kF16},
                        {24, 1, 1, DType::kI8},
                        {25, 1, 2, DType::kI16},
                        {26, 1, 4, DType::kI32},
                        {27, 1, 8, DType::kI64},
                        {28, 1, 8, DType::kF64},
                        {30, 1, 2, DType::kBF16},
                        {2, 32, 18},
                        {3, 32, 20},
                        {6, 32, 22},
                        {7, 32, 24},
                        {8, 32, 34},
                        {9, 32, 36},
                        {10, 256, 84},
                        {11, 256, 110},
                        {12, 256, 144},
                        {13, 256, 176},
                        {14, 256, 210},
                        {15, 256, 292},
                        {16, 256, 66},
                        {17, 256, 74},
                        {18, 256, 98},
                        {19, 256, 50},
                        {20, 32, 18},
                        {21, 256, 110},
                        {22, 256, 82},
                        {23, 256, 136},
                        {29, 256, 56},
                        {34, 256, 54},
                        {35, 256, 66},
                        {39, 32, 17},
                        {40, 64, 36},
                        {41, 128, 18},
                        {42, 64, 18}};
  for (const Case& one : cases) {
    const auto row =
        static_cast<int64_t>(one.dtype == DType::kU8 ? 2 * one.bytes : 2);
    const GgufFile file = One({2 * one.elements, 3}, one.type, 6 * one.bytes);
    ASSERT_OK_AND_ASSIGN(const FileHeader header, ParseWhole(file.Whole()));
    EXPECT_EQ(header.tensors[0].dtype, one.dtype) << one.type;
    EXPECT_THAT(header.tensors[0].shape, ElementsAre(3, row)) << one.type;
    EXPECT_EQ(header.tensors[0].bytes, 6 * one.bytes) << one.type;
  }
}

TEST(Gguf, UnknownAndRemovedTypesAreRefused) {
  for (const uint32_t type : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u}) {
    ExpectRefused(One({256}, type, 256), "removed its type");
  }
  for (const uint32_t type : {43u, 1000u, ~0u}) {
    ExpectRefused(One({256}, type, 256), "update hoistd");
  }
}

TEST(Gguf, ScalarsEmptyTensorsAndVersionTwoAreFine) {
  GgufFile file = {.tensors = {GgufTensor("scalar", {}, kF32, 0),
                               GgufTensor("empty", {0, 3}, kQ8, 32)},
                   .data_bytes = 32,
                   .version = 2};
  ASSERT_OK_AND_ASSIGN(const FileHeader header, ParseWhole(file.Whole()));
  EXPECT_THAT(header.tensors[0].shape, IsEmpty());
  EXPECT_EQ(header.tensors[0].bytes, 4u);
  EXPECT_THAT(header.tensors[1].shape, ElementsAre(3, 0));
  EXPECT_EQ(header.tensors[1].bytes, 0u);
  // A vocabulary alone, and padding behind the last tensor.
  ASSERT_OK_AND_ASSIGN(const FileHeader none, ParseWhole(GgufFile().Whole()));
  EXPECT_THAT(none.tensors, IsEmpty());
  EXPECT_OK(ParseWhole(One({1}, kF32, 32).Whole()));
}

TEST(Gguf, OtherVersionsAndByteOrdersAreRefused) {
  for (const uint32_t version : {1u, 4u, 77u}) {
    ExpectRefused({.version = version}, "versions 2 and 3");
  }
  ExpectRefused({.version = 3u << 24}, "big-endian");
  EXPECT_THAT(ParseGgufHeader("GGML1234", 8), StatusIs(kInvalid));
  EXPECT_THAT(ParseGgufHeader("", 0), StatusIs(kInvalid));
}

// Whatever the prefix, it asks for more bytes or has all.
TEST(Gguf, AShorterBeginningAsksForMore) {
  const GgufFile usual = Usual();
  const std::string file = usual.Whole();
  const size_t header = usual.Header().size();
  for (size_t bytes = 0; bytes < header; ++bytes) {
    ASSERT_OK_AND_ASSIGN(const GgufHeader parsed,
                         ParseGgufHeader(file.substr(0, bytes), file.size()));
    EXPECT_GT(parsed.bytes, bytes);
    EXPECT_LE(parsed.bytes, header);
    EXPECT_THAT(parsed.header.tensors, IsEmpty());
  }
  ASSERT_OK_AND_ASSIGN(const GgufHeader parsed,
                       ParseGgufHeader(file.substr(0, header), file.size()));
  EXPECT_EQ(parsed.bytes, header);
  EXPECT_EQ(parsed.header.tensors.size(), 2u);
}

TEST(Gguf, TruncatedFilesAreRefusedAtEachByte) {
  const std::string file = Usual().Whole();
  for (size_t bytes = 0; bytes < file.size(); ++bytes) {
    EXPECT_THAT(ParseWhole(file.substr(0, bytes)), StatusIs(kInvalid)) << bytes;
  }
}

TEST(Gguf, CountsThatLieAreRefused) {
  GgufFile file = One({4}, kF32, 16);
  file.tensor_count = kMaxTensors + 1;
  ExpectRefused(file, "split the file");
  file.tensor_count = 2;
  EXPECT_THAT(ParseWhole(file.Whole()), StatusIs(kInvalid));
  file = One({4}, kF32, 16);
  file.pair_count = kMaxGgufPairs + 1;
  ExpectRefused(file, "metadata keys");
  file.pair_count = ~uint64_t{0};
  ExpectRefused(file, "metadata keys");
}

TEST(Gguf, StringsThatLieAreRefused) {
  const std::string most = GgufNumber(~uint64_t{0}, 8);
  ExpectRefused({.pairs = {most + "key"}}, "a metadata key at byte");
  ExpectRefused({.pairs = {GgufPair(std::string(65'536, 'k'), 0, "1")}},
                "65535 are allowed");
  ExpectRefused(WithPair(GgufPair("k", kGgufString, most + "v")),
                "100000000 are allowed");
  ExpectRefused(WithPair(GgufPair("k", kGgufString, GgufNumber(1000, 8))),
                "the GGUF header is truncated");
  ExpectRefused({.tensors = {most + "name"}}, "a tensor's name");
  ExpectRefused({.tensors = {GgufTensor(std::string(4097, 'n'), {1}, kF32, 0)},
                 .data_bytes = 4},
                "4096 are allowed");
  ExpectRefused({.tensors = {GgufTensor(std::string("a\0b", 3), {1}, kF32, 0)},
                 .data_bytes = 4},
                "NUL");
}

TEST(Gguf, MetadataThatIsNoneIsRefused) {
  ExpectRefused(WithPair(GgufPair("k", 13, "")), "unknown type 13");
  ExpectRefused(WithPair(GgufPair("k", kGgufArray, GgufElements(13, 0, ""))),
                "unknown type 13");
  ExpectRefused(WithPair(GgufPair("k", kGgufArray,
                                  GgufElements(10, ~uint64_t{0} / 8 + 2, ""))),
                "more than the file");
  ExpectRefused(WithPair(GgufPair("k", kGgufArray,
                                  GgufElements(kGgufString, 1u << 31, ""))),
                "a metadata string at byte");
  GgufFile twice = WithPair(GgufPair("k", 0, "1"));
  twice.pairs.push_back(twice.pairs[0]);
  ExpectRefused(twice, "\"k\": it is there twice");
}

TEST(Gguf, NestedArraysAreBounded) {
  const auto nested = [](int depth) {
    std::string value = GgufElements(0, 1, "x");
    for (int i = 1; i < depth; ++i) value = GgufElements(kGgufArray, 1, value);
    return WithPair(GgufPair("k", kGgufArray, value));
  };
  EXPECT_OK(ParseWhole(nested(kMaxGgufNesting).Whole()));
  ExpectRefused(nested(kMaxGgufNesting + 1), "nested");
  ExpectRefused(nested(1000), "nested");
}

TEST(Gguf, AlignmentsThatAreNoPowerOfTwoAreRefused) {
  const std::string key = "general.alignment";
  for (const uint64_t value : {0, 3, 33, 48}) {
    ExpectRefused(WithPair(GgufPair(key, kGgufUint32, GgufNumber(value, 4))),
                  "no power of two");
  }
  ExpectRefused(WithPair(GgufPair(key, 10, GgufNumber(32, 8))), "no uint32");
  ExpectRefused(WithPair(GgufPair(key, kGgufUint32, GgufNumber(1u << 31, 4))),
                "past the file's end");
}

TEST(Gguf, ShapesThatOverflowAreRefused) {
  const uint64_t most = ~uint64_t{0} >> 1;
  ExpectRefused(One({uint64_t{1} << 63}, kI8, 0), "2^63 - 1");
  ExpectRefused(One({most, 3}, kI8, 0), "its shape overflows");
  ExpectRefused(One({most / 256 * 256}, kQ4K, 0), "its shape overflows");
  ExpectRefused(One({most / 32 * 32}, 9, 0), "its shape overflows");
  ExpectRefused(One({uint64_t{1} << 32, uint64_t{1} << 32}, kF32, 0),
                "its shape overflows");
  ExpectRefused(One(std::vector<uint64_t>(65, 1), kF32, 4), "65 dimensions");
  EXPECT_OK(ParseWhole(One(std::vector<uint64_t>(64, 1), kF32, 4).Whole()));
}

TEST(Gguf, RowsThatCutABlockAreRefused) {
  ExpectRefused(One({255}, kQ4K, 144), "blocks of 256");
  ExpectRefused(One({16, 2}, kQ8, 34), "blocks of 32");
  ExpectRefused(One({}, kQ8, 34), "blocks of 32");
}

TEST(Gguf, OffsetsOutsideOrBetweenAreRefused) {
  ExpectRefused(One({4}, kF32, 16 + 4, 4), "no multiple of 32");
  ExpectRefused(One({4}, kF32, 15), "past the file's end");
  ExpectRefused(One({4}, kF32, 16, uint64_t{1} << 62), "past the file's end");
  ExpectRefused(One({4}, kF32, 16, ~uint64_t{31}), "past the file's end");
  ExpectRefused(One({4}, kF32, 32 + 16, 32), "a hole of 32 bytes");
  const auto two = [](uint64_t offset) {
    return GgufFile{.tensors = {GgufTensor("a", {9}, kF32, 0),
                                GgufTensor("b", {9}, kF32, offset)},
                    .data_bytes = 256};
  };
  EXPECT_OK(ParseWhole(two(64).Whole()));
  ExpectRefused(two(0), "\"b\": its bytes overlap");
  ExpectRefused(two(32), "\"b\": its bytes overlap");
  ExpectRefused(two(96), "\"b\": there is a hole of 32 bytes");
}

TEST(Gguf, ANameThatIsThereTwiceIsRefused) {
  ExpectRefused({.tensors = {GgufTensor("a", {8}, kF32, 0),
                             GgufTensor("a", {8}, kF32, 32)},
                 .data_bytes = 64},
                "\"a\": the name is there twice");
}

TEST(Gguf, TheHeaderIsAtMostAHundredMillionBytes) {
  const std::string pair =
      GgufPair("k", kGgufString, GgufNumber(99'999'990, 8));
  const std::string header = GgufFile{.pairs = {pair}}.Header();
  EXPECT_THAT(ParseGgufHeader(header, uint64_t{1} << 40),
              StatusIs(kInvalid, HasSubstr("100 MB")));
}

TEST(Gguf, NoFileIsOfBothFormats) {
  const std::string file = Usual().Whole();
  EXPECT_TRUE(IsGguf(file));
  EXPECT_FALSE(IsGguf("{\"a\""));
  EXPECT_THAT(SafetensorsHeaderBytes(file.substr(0, 8), uint64_t{1} << 60),
              StatusIs(kInvalid));
}

ShardHeader Part(int part, int parts, const std::string& name) {
  GgufFile file = {
      .pairs = {GgufPair("split.no", kGgufUint16, GgufNumber(part, 2)),
                GgufPair("split.count", kGgufUint16, GgufNumber(parts, 2))},
      .tensors = {GgufTensor(absl::StrCat("blk.", part, ".w"), {64}, kQ8, 0)},
      .data_bytes = 68};
  return {name, {}, *ParseWhole(file.Whole())};
}

TEST(Gguf, ASetIsAModelAndAPartOfItIsNone) {
  const auto build = [](std::vector<ShardHeader> shards) {
    return BuildModel({.name = "m", .shards = std::move(shards)});
  };
  ASSERT_OK_AND_ASSIGN(const auto model,
                       build({Part(0, 2, "1"), Part(1, 2, "2")}));
  ASSERT_EQ(model->groups.size(), 2u);
  EXPECT_EQ(model->groups[0]->name, "blk.0");
  EXPECT_EQ(model->groups[1]->tensors[0].bytes, 68u);
  EXPECT_THAT(build({Part(1, 2, "2")}),
              StatusIs(kInvalid, AllOf(HasSubstr("1 of a set's 2 parts"),
                                       HasSubstr("name all of them"))));
  EXPECT_THAT(build({Part(0, 2, "1"), Part(0, 2, "2")}),
              StatusIs(kInvalid, HasSubstr("name one set's files")));
  EXPECT_THAT(build({Part(0, 2, "1"), Part(1, 3, "2")}),
              StatusIs(kInvalid, HasSubstr("name one set's files")));
  EXPECT_OK(build({Part(0, 1, "1")}));
  GgufFile beyond =
      WithPair(GgufPair("split.no", kGgufUint16, GgufNumber(2, 2)));
  beyond.pairs.push_back(
      GgufPair("split.count", kGgufUint16, GgufNumber(2, 2)));
  ExpectRefused(beyond, "split.count");
  ExpectRefused(WithPair(GgufPair("split.no", kGgufUint32, GgufNumber(0, 4))),
                "no uint16");
}

// Nothing crashes, and what is taken is sound.
TEST(Gguf, HeadersChangedAtRandomAreRefusedOrSound) {
  const char* given = std::getenv("HOIST_TEST_SEED");
  std::mt19937_64 random(given != nullptr ? std::strtoull(given, nullptr, 10)
                                          : 20260101);
  const GgufFile usual = Usual();
  const std::string whole = usual.Whole();
  int taken = 0;
  constexpr int kRounds = 20'000;
  for (int round = 0; round < kRounds; ++round) {
    std::string file = whole;
    for (size_t i = 0; i < 1 + random() % 3; ++i) {
      file[random() % usual.Header().size()] =
          static_cast<char>(random() % 2 == 0 ? random() : random() % 4);
    }
    const auto parsed = ParseWhole(file);
    if (!parsed.ok()) {
      ASSERT_THAT(parsed, StatusIs(kInvalid));
      ASSERT_LT(parsed.status().message().size(), 600u);
      continue;
    }
    ++taken;
    uint64_t end = 0;
    for (const FileTensor& tensor : parsed->tensors) {
      ASSERT_GE(tensor.file_offset, end);
      end = tensor.file_offset + tensor.bytes;
    }
    ASSERT_LE(end, file.size());
  }
  // Else the rounds tried nothing but the first check.
  EXPECT_GT(taken, kRounds / 100);
  EXPECT_LT(taken, kRounds);
}

}  // namespace hoistd::gguf_test
