#include "hoist/shared/size_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoist::size_text_test {

using ::testing::Eq;
using ::testing::Optional;

TEST(ParseSize, KnowsBinaryAndDecimalUnits) {
  EXPECT_THAT(ParseSize("0"), Optional(Eq(0u)));
  EXPECT_THAT(ParseSize("4096"), Optional(Eq(4096u)));
  EXPECT_THAT(ParseSize("17 B"), Optional(Eq(17u)));
  EXPECT_THAT(ParseSize("3KiB"), Optional(Eq(3072u)));
  EXPECT_THAT(ParseSize("512 MiB"), Optional(Eq(uint64_t{512} << 20)));
  EXPECT_THAT(ParseSize("64GiB"), Optional(Eq(uint64_t{64} << 30)));
  EXPECT_THAT(ParseSize("55GB"), Optional(Eq(55'000'000'000u)));
  EXPECT_THAT(ParseSize("1.5GiB"), Optional(Eq(uint64_t{3} << 29)));
  EXPECT_THAT(ParseSize("0.125 kB"), Optional(Eq(125u)));
  EXPECT_THAT(ParseSize("1.9999"), Optional(Eq(1u)));
  EXPECT_THAT(ParseSize("1.999999999TiB"), Optional(Eq(2199023254452u)));
}

TEST(ParseSize, RefusesWhatIsNoSize) {
  for (const char* text :
       {"", "GiB", "-1", ".5GiB", "1.GiB", "1.5.5GiB", "1.0123456789GiB",
        "12gib", "1 G", "0x10", "1GiB/s", "1 GiB x", "99999999999999999999"}) {
    EXPECT_EQ(ParseSize(text), std::nullopt) << text;
  }
}

TEST(ParseSize, RefusesWhatWouldWrap) {
  EXPECT_THAT(ParseSize("8388607TiB"), Optional(Eq(8388607ull << 40)));
  EXPECT_EQ(ParseSize("8388608TiB"), std::nullopt);
  EXPECT_EQ(ParseSize("18446744073709551615"), std::nullopt);
}

TEST(ParseRate, NeedsPerSecond) {
  EXPECT_THAT(ParseRate("0"), Optional(Eq(0u)));
  EXPECT_THAT(ParseRate("55GB/s"), Optional(Eq(55'000'000'000u)));
  EXPECT_THAT(ParseRate("12GiB/s"), Optional(Eq(uint64_t{12} << 30)));
  EXPECT_EQ(ParseRate("55GB"), std::nullopt);
  EXPECT_EQ(ParseRate("/s"), std::nullopt);
}

TEST(SizeText, IsInTheLargestUnitThatItIsAWholeNumberOf) {
  EXPECT_EQ(SizeText(0), "0");
  EXPECT_EQ(SizeText(17), "17B");
  EXPECT_EQ(SizeText(uint64_t{3} << 29), "1536MiB");
  EXPECT_EQ(SizeText(uint64_t{64} << 30), "64GiB");
  EXPECT_EQ(SizeText(55'000'000'000), "55GB");
  EXPECT_EQ(RateText(0), "0");
  EXPECT_EQ(RateText(55'000'000'000), "55GB/s");
}

TEST(SizeText, IsReadAsTheSame) {
  for (uint64_t bytes = 1; bytes < uint64_t{1} << 62; bytes = bytes * 3 + 1) {
    EXPECT_THAT(ParseSize(SizeText(bytes)), Optional(bytes));
    EXPECT_THAT(ParseRate(RateText(bytes)), Optional(bytes));
  }
}

}  // namespace hoist::size_text_test
