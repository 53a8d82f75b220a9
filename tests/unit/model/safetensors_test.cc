#include "daemon/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "hoist/shared/image_layout.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"

namespace hoistd::safetensors_test {

using ::hoistd::testing::SafetensorsFile;
using ::hoistd::testing::StatusIs;
using ::hoistd::testing::TensorToWrite;
using ::hoistd::testing::WithLength;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Parses a whole file, as the daemon does.
absl::StatusOr<FileHeader> ParseFile(absl::string_view file) {
  const auto bytes = SafetensorsHeaderBytes(file.substr(0, 8), file.size());
  if (!bytes.ok()) return bytes.status();
  return ParseSafetensorsHeader(file.substr(8, *bytes), file.size());
}

// Parses `json` in front of `data_bytes` of data.
absl::StatusOr<FileHeader> Parse(const std::string& json, size_t data_bytes) {
  return ParseFile(WithLength(json) + std::string(data_bytes, 'd'));
}

std::string Entry(const std::string& name, const std::string& dtype,
                  const std::string& shape, const std::string& offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype,
                      "\",\"shape\":", shape, ",\"data_offsets\":", offsets,
                      "}");
}

void ExpectRefused(const std::string& json, size_t data_bytes,
                   const std::string& why) {
  EXPECT_THAT(Parse(json, data_bytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
      << json;
}

TEST(Safetensors, TensorsComeInFileOrderWithOffsetsFromTheFilesStart) {
  const std::string json =
      absl::StrCat("{", Entry("b", "U8", "[3]", "[4,7]"), ",",
                   Entry("a", "F32", "[1]", "[0,4]"), "}");
  ASSERT_OK_AND_ASSIGN(const FileHeader header, Parse(json, 7));
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].file_offset, 8 + json.size());
  EXPECT_EQ(header.tensors[0].bytes, 4u);
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[1].file_offset, 8 + json.size() + 4);
  EXPECT_THAT(header.tensors[1].shape, ElementsAre(3));
}

TEST(Safetensors, EveryDtypeOfTheFormatIsRead) {
  for (int number = 1; number < hoist::kDTypeCount; ++number) {
    const auto dtype = static_cast<hoist::DType>(number);
    if (dtype == hoist::DType::kC128) continue;
    const TensorToWrite tensor = {"t", dtype, {2, 4}};
    ASSERT_OK_AND_ASSIGN(const std::string file,
                         SafetensorsFile({&tensor, 1}, 1));
    ASSERT_OK_AND_ASSIGN(const FileHeader header, ParseFile(file));
    EXPECT_EQ(header.tensors.at(0).dtype, dtype);
    EXPECT_EQ(header.tensors.at(0).bytes,
              static_cast<uint64_t>(hoist::BitsOf(dtype)));
  }
}

TEST(Safetensors, UnknownDtypesAreRefused) {
  for (const char* dtype : {"F128", "f32", "", "?", "C128", "BF16 "}) {
    ExpectRefused(absl::StrCat("{", Entry("t", dtype, "[0]", "[0,0]"), "}"), 0,
                  "unknown dtype");
  }
  ExpectRefused(R"({"t":{"dtype":7,"shape":[],"data_offsets":[0,1]}})", 1,
                "needs something else");
}

TEST(Safetensors, EmptyAndScalarTensorsAreFine) {
  const std::string json =
      absl::StrCat("{", Entry("scalar", "F32", "[]", "[0,4]"), ",",
                   Entry("empty", "F32", "[0,5]", "[4,4]"), ",",
                   Entry("also", "F32", "[5,0]", "[4,4]"), ",",
                   Entry("last", "U8", "[1]", "[4,5]"), "}");
  ASSERT_OK_AND_ASSIGN(const FileHeader header, Parse(json, 5));
  EXPECT_EQ(header.tensors.size(), 4u);
  EXPECT_OK(Parse("{}", 0));
}

TEST(Safetensors, MetadataIsNoTensor) {
  ASSERT_OK_AND_ASSIGN(
      const FileHeader header,
      Parse(R"({"__metadata__":{"format":"pt","dtype":"x","":""}})", 0));
  EXPECT_TRUE(header.tensors.empty());
}

TEST(Safetensors, MetadataThatIsNoMapOfStringsIsRefused) {
  for (const char* value :
       {"1", "[]", "\"x\"", "{\"a\":1}", "{\"a\":{}}", "{\"a\":[\"b\"]}",
        "{\"a\":null}", "{\"a\":\"1\",\"a\":\"2\"}"}) {
    const std::string json = absl::StrCat("{\"__metadata__\":", value, "}");
    EXPECT_THAT(Parse(json, 0), StatusIs(absl::StatusCode::kInvalidArgument))
        << json;
  }
}

TEST(Safetensors, LengthsThatLieAreRefused) {
  const std::string file = WithLength("{}");
  for (size_t cut = 0; cut < file.size(); ++cut) {
    EXPECT_THAT(ParseFile(file.substr(0, cut)),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  const std::string most = std::string(8, '\xff');
  EXPECT_THAT(SafetensorsHeaderBytes(most, uint64_t{1} << 60),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParseSafetensorsHeader("{}", 9),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Safetensors, TheHeaderIsAtMostAHundredMillionBytes) {
  const auto length = [](uint64_t n) {
    std::string out;
    for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(n >> (8 * i)));
    return out;
  };
  EXPECT_THAT(SafetensorsHeaderBytes(length(100'000'001), 1 << 30),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK_AND_ASSIGN(const uint64_t bytes,
                       SafetensorsHeaderBytes(length(100'000'000), 1 << 30));
  EXPECT_EQ(bytes, 100'000'000u);
}

TEST(Safetensors, OnlyAnObjectFromTheFirstByteOnIsAHeader) {
  EXPECT_OK(Parse("{} \n\t ", 0));
  using std::string_literals::operator""s;
  for (const std::string& json :
       {""s, " {}"s, "[]"s, "null"s, "\xEF\xBB\xBF{}"s, "{}\0"s, "{}\0junk"s,
        "{\0}"s, "{}x"s, "{}{}"s, "{"s, "{\"a\""s, "{\"a\":"s, "{,}"s,
        "{\"\xff\":1}"s, "{'a':1}"s}) {
    EXPECT_THAT(Parse(json, 0), StatusIs(absl::StatusCode::kInvalidArgument))
        << json;
  }
}

TEST(Safetensors, NamesAndFieldsMayNotComeTwice) {
  ExpectRefused(absl::StrCat("{", Entry("a", "U8", "[1]", "[0,1]"), ",",
                             Entry("a", "U8", "[1]", "[1,2]"), "}"),
                2, "twice");
  // The same name, spelt in two ways.
  ExpectRefused(absl::StrCat("{", Entry("a", "U8", "[1]", "[0,1]"), ",",
                             Entry("\\u0061", "U8", "[1]", "[1,2]"), "}"),
                2, "twice");
  ExpectRefused(
      R"({"a":{"dtype":"U8","dtype":"I8","shape":[],"data_offsets":[0,1]}})", 1,
      "twice");
  ExpectRefused(R"({"__metadata__":{},"__metadata__":{}})", 0, "twice");
}

TEST(Safetensors, EntriesNeedTheirThreeFieldsAndNoOthers) {
  ExpectRefused(R"({"a":{"shape":[],"data_offsets":[0,1]}})", 1, "\"a\"");
  ExpectRefused(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "\"a\"");
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[]}})", 1, "\"a\"");
  ExpectRefused(R"({"a":{}})", 0, "\"a\"");
  ExpectRefused(
      R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":{"y":[]}}})", 1,
      "unknown field");
  ExpectRefused(R"({"a":[]})", 0, "\"a\"");
  ExpectRefused(R"({"a":1})", 0, "\"a\"");
}

TEST(Safetensors, ShapesOfAnythingButSmallNaturalNumbersAreRefused) {
  for (const char* shape :
       {"[-1]", "[-0]", "[1.0]", "[1e2]", "[\"1\"]", "[null]", "[true]",
        "[[1]]", "[{}]", "{}", "1", "null", "[9223372036854775808]",
        "[18446744073709551616]", "[1e999]",
        "[9223372036854775807,9223372036854775807]",
        "[4611686018427387904,4611686018427387904,0]"}) {
    const std::string json =
        absl::StrCat("{", Entry("t", "U8", shape, "[0,1]"), "}");
    EXPECT_THAT(Parse(json, 1), StatusIs(absl::StatusCode::kInvalidArgument))
        << json;
  }
}

TEST(Safetensors, SixtyFourDimensionsAndNoMore) {
  const auto with = [](size_t dimensions) {
    std::string shape = "[1";
    for (size_t i = 1; i < dimensions; ++i) shape += ",1";
    return absl::StrCat("{", Entry("t", "U8", shape + "]", "[0,1]"), "}");
  };
  EXPECT_OK(Parse(with(64), 1));
  ExpectRefused(with(65), 1, "dimensions");
}

TEST(Safetensors, OffsetsMustTileTheData) {
  const auto two = [](const char* a, const char* b) {
    return absl::StrCat("{", Entry("a", "U8", "[2]", a), ",",
                        Entry("b", "U8", "[2]", b), "}");
  };
  EXPECT_OK(Parse(two("[0,2]", "[2,4]"), 4));
  EXPECT_OK(Parse(two("[2,4]", "[0,2]"), 4));
  ExpectRefused(two("[0,2]", "[1,3]"), 3, "overlap");
  ExpectRefused(two("[0,2]", "[0,2]"), 2, "overlap");
  ExpectRefused(two("[0,2]", "[3,5]"), 5, "hole");
  ExpectRefused(two("[1,3]", "[3,5]"), 5, "hole");
  ExpectRefused(two("[0,2]", "[2,4]"), 5, "nothing names");
  ExpectRefused(two("[0,2]", "[2,4]"), 3, "past the file's end");
  ExpectRefused(two("[2,0]", "[2,4]"), 4, "before they begin");
  ExpectRefused(two("[0,2,2]", "[2,4]"), 4, "two numbers");
  ExpectRefused(two("[0]", "[2,4]"), 4, "two numbers");
  ExpectRefused(two("[]", "[2,4]"), 4, "two numbers");
  ExpectRefused(two("[0,2.0]", "[2,4]"), 4, "\"a\"");
  ExpectRefused(two("[0,18446744073709551615]", "[2,4]"), 4, "past");
  ExpectRefused("{}", 1, "nothing names");
}

TEST(Safetensors, SizesMustBeWhatDtypeAndShapeTake) {
  const auto one = [](const char* dtype, const char* shape, const char* at) {
    return absl::StrCat("{", Entry("t", dtype, shape, at), "}");
  };
  ExpectRefused(one("F32", "[2]", "[0,4]"), 4, "take 8 bytes");
  ExpectRefused(one("F32", "[]", "[0,0]"), 0, "take 4 bytes");
  ExpectRefused(one("U8", "[0]", "[0,1]"), 1, "take 0 bytes");
}

TEST(Safetensors, SubByteTensorsEndOnAByte) {
  const auto f4 = [](const char* shape, const char* at) {
    return absl::StrCat("{", Entry("t", "F4", shape, at), "}");
  };
  EXPECT_OK(Parse(f4("[4]", "[0,2]"), 2));
  ExpectRefused(f4("[3]", "[0,2]"), 2, "whole bytes");
  EXPECT_OK(
      Parse(absl::StrCat("{", Entry("t", "F6_E2M3", "[4]", "[0,3]"), "}"), 3));
}

TEST(Safetensors, OddNamesAreKeptAsTheyAre) {
  const std::vector<TensorToWrite> tensors = {
      {"", hoist::DType::kU8, {1}},
      {"a b/c\\d\"e", hoist::DType::kU8, {2}},
      {"\xe6\xa8\xa1\xe5\x9e\x8b.\xf0\x9f\x98\x80", hoist::DType::kU8, {3}},
      {"line\nbreak\x1b[31m", hoist::DType::kU8, {4}},
      {"..", hoist::DType::kU8, {5}}};
  ASSERT_OK_AND_ASSIGN(const std::string file, SafetensorsFile(tensors, 1));
  ASSERT_OK_AND_ASSIGN(const FileHeader header, ParseFile(file));
  ASSERT_EQ(header.tensors.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(header.tensors[i].name, tensors[i].name);
  }
}

TEST(Safetensors, NamesWithNulOrOverLongOnesAreRefused) {
  ExpectRefused(absl::StrCat("{", Entry("a\\u0000b", "U8", "[]", "[0,1]"), "}"),
                1, "NUL");
  ExpectRefused(
      absl::StrCat("{", Entry(std::string(4097, 'n'), "U8", "[]", "[0,1]"),
                   "}"),
      1, "4097 bytes");
}

TEST(Safetensors, ErrorsShowLittleOfHostileTextAndOnlyPrintableAscii) {
  for (const std::string& name :
       {std::string(4000, 'x'), std::string("\x1b[2J\xf0\x9f\x98\x80\n"),
        std::string(4000, '\x01')}) {
    const TensorToWrite tensor = {name, hoist::DType::kU8, {1}};
    ASSERT_OK_AND_ASSIGN(const std::string file,
                         SafetensorsFile({&tensor, 1}, 1));
    const auto header = ParseFile(file + "more");
    ASSERT_FALSE(header.ok());
    const auto cut = ParseFile(file.substr(0, file.size() - 1));
    ASSERT_FALSE(cut.ok());
    EXPECT_LT(cut.status().message().size(), 400u);
    for (const char c : cut.status().message()) {
      EXPECT_TRUE(c >= 0x20 && c < 0x7f) << static_cast<int>(c);
    }
  }
  // Nor does the JSON parser's own message come through.
  const auto garbage = Parse("{\"" + std::string(5000, 'q'), 0);
  ASSERT_FALSE(garbage.ok());
  EXPECT_LT(garbage.status().message().size(), 100u);
}

TEST(Safetensors, DeepNestingIsRefusedWhereItBegins) {
  ExpectRefused("{\"a\":" + std::string(1'000'000, '['), 0, "\"a\"");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  ExpectRefused(deep, 0, "\"a\"");
}

TEST(Safetensors, TwentyThousandTensorsAreRead) {
  std::vector<TensorToWrite> tensors;
  for (int i = 0; i < 20'000; ++i) {
    tensors.push_back({absl::StrCat("model.layers.", i, ".weight"),
                       hoist::DType::kBF16,
                       {i % 5, 3}});
  }
  ASSERT_OK_AND_ASSIGN(const std::string file, SafetensorsFile(tensors, 1));
  ASSERT_OK_AND_ASSIGN(const FileHeader header, ParseFile(file));
  EXPECT_EQ(header.tensors.size(), tensors.size());
}

}  // namespace hoistd::safetensors_test
