#include "daemon/model/safetensors_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace hoistd::safetensors_index_test {

using ::hoistd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(SafetensorsIndex, TheWeightMapIsReadAndTheRestPassedOver) {
  ASSERT_OK_AND_ASSIGN(
      const SafetensorsIndex index,
      ParseSafetensorsIndex(
          R"({"metadata":{"total_size":1.5,"x":[{"weight_map":null}]},
              "weight_map":{"a":"1.safetensors","b":"2.safetensors"},
              "more":[1,{"weight_map":{"c":7}}]})"));
  EXPECT_THAT(index.shard_of, ElementsAre(Pair("a", "1.safetensors"),
                                          Pair("b", "2.safetensors")));
}

TEST(SafetensorsIndex, ShardsArePlainFileNames) {
  for (const char* shard :
       {"", ".", "..", "../x", "/etc/passwd", "a/b", "a/", "a\\u0000b"}) {
    EXPECT_THAT(ParseSafetensorsIndex(
                    absl::StrCat("{\"weight_map\":{\"t\":\"", shard, "\"}}")),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("plain file name")))
        << shard;
  }
  EXPECT_OK(ParseSafetensorsIndex(R"({"weight_map":{"t":"..a"}})"));
}

TEST(SafetensorsIndex, WhatIsNoMapOfTensorsToShardsIsRefused) {
  for (const char* json :
       {"", "[]", "null", "{}", "{\"weight_map\":1}", "{\"weight_map\":[]}",
        "{\"weight_map\":null}", "{\"weight_map\":\"x\"}",
        "{\"weight_map\":{\"a\":1}}", "{\"weight_map\":{\"a\":null}}",
        "{\"weight_map\":{\"a\":[\"x\"]}}",
        "{\"weight_map\":{\"a\":{\"b\":\"x\"}}}",
        "{\"weight_map\":{\"a\":\"x\",\"a\":\"x\"}}",
        "{\"weight_map\":{},\"weight_map\":{}}",
        "{\"weight_map\":{\"a\":\"x\"},\"weight_map\":3}",
        "{\"weight_map\":3,\"weight_map\":{\"a\":\"x\"}}",
        "[{\"weight_map\":{}}]", "{\"weight_map\":{\"a\":\"x\"}",
        "{\"weight_map\":{\"a\":\"x\"}}}"}) {
    EXPECT_THAT(ParseSafetensorsIndex(json),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << json;
  }
}

}  // namespace hoistd::safetensors_index_test
