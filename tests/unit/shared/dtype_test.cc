#include "hoist/shared/dtype.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace hoist::dtype_test {

// What safetensors 0.8 has, by its own table.
const std::map<std::string, int>& Safetensors() {
  static const auto* const kBits = new std::map<std::string, int>{
      {"BOOL", 8},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6},
      {"U8", 8},      {"I8", 8},          {"F8_E5M2", 8},     {"F8_E4M3", 8},
      {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},        {"BF16", 16},       {"I32", 32},
      {"U32", 32},    {"F32", 32},        {"C64", 64},        {"F64", 64},
      {"I64", 64},    {"U64", 64}};
  return *kBits;
}

TEST(DType, HoldsTheTypesOfSafetensorsAndC128) {
  std::set<std::string> names;
  for (int i = 1; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name(NameOf(dtype));
    EXPECT_TRUE(names.insert(name).second) << name;
    if (name == "C128") {
      EXPECT_EQ(BitsOf(dtype), 128);
      continue;
    }
    ASSERT_TRUE(Safetensors().contains(name)) << name;
    EXPECT_EQ(BitsOf(dtype), Safetensors().at(name)) << name;
  }
  EXPECT_EQ(names.size(), Safetensors().size() + 1);
}

TEST(DType, NamesAndNumbersGoThereAndBack) {
  for (int i = 1; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(DTypeFromName(NameOf(dtype)), dtype);
    EXPECT_EQ(DTypeFromNumber(i), dtype);
  }
}

TEST(DType, WhatIsNoTypeIsNone) {
  for (const char* name : {"", "?", "f32", "F32 ", "FLOAT", "F8"}) {
    EXPECT_EQ(DTypeFromName(name), std::nullopt) << name;
  }
  for (const int64_t number :
       {int64_t{0}, int64_t{-1}, int64_t{kDTypeCount}, INT64_MIN, INT64_MAX}) {
    EXPECT_EQ(DTypeFromNumber(number), std::nullopt) << number;
  }
  EXPECT_EQ(BitsOf(DType::kUnspecified), 0);
}

}  // namespace hoist::dtype_test
