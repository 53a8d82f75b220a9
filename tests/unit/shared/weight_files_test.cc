#include "hoist/shared/weight_files.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoist::weight_files_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(WeightFiles, AnEndingAloneIsNone) {
  EXPECT_TRUE(IsWeightFile("a.safetensors"));
  EXPECT_TRUE(IsWeightFile("a.gguf"));
  for (const char* other : {"", ".gguf", ".safetensors", "a.bin", "gguf",
                            "a.gguf.part", "a.GGUF"}) {
    EXPECT_FALSE(IsWeightFile(other)) << other;
  }
}

TEST(WeightFiles, SafetensorsGoBeforeGguf) {
  EXPECT_THAT(WeightFilesOf({"b.safetensors", "c.gguf", "a.safetensors", "x"}),
              ElementsAre("a.safetensors", "b.safetensors"));
  EXPECT_THAT(WeightFilesOf({"c.gguf", "x.json", "b.gguf", ".safetensors"}),
              ElementsAre("b.gguf", "c.gguf"));
  EXPECT_THAT(WeightFilesOf({"x.json"}), IsEmpty());
}

TEST(WeightFiles, APartStandsForItsSet) {
  EXPECT_THAT(
      GgufSetOf("m-q4-00002-of-00003.gguf"),
      ElementsAre("m-q4-00001-of-00003.gguf", "m-q4-00002-of-00003.gguf",
                  "m-q4-00003-of-00003.gguf"));
  EXPECT_EQ(GgufSetOf("m-00001-of-02048.gguf").size(), kMaxGgufParts);
  EXPECT_EQ(GgufSetOf("m-00001-of-02048.gguf").back(), "m-02048-of-02048.gguf");
}

TEST(WeightFiles, WhatIsNoPartStandsForItself) {
  for (const char* name :
       {"m.gguf", "", "m-00001-of-00003.safetensors", "m-00000-of-00003.gguf",
        "m-00004-of-00003.gguf", "m-00001-of-02049.gguf",
        "m-00001-of-99999.gguf", "m-0000a-of-00003.gguf",
        "m-+0001-of-00003.gguf", "m-00001_of-00003.gguf",
        "m_00001-of-00003.gguf", "-of-00003.gguf", "00001-of-00003.gguf"}) {
    EXPECT_THAT(GgufSetOf(name), ElementsAre(name));
  }
}

}  // namespace hoist::weight_files_test
