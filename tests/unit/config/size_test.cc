#include "daemon/config/size.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd {
namespace {

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
}

TEST(ParseSize, RefusesWhatIsNoSize) {
  for (const char* text : {"", "GiB", "-1", "1.5GiB", "12gib", "1 G", "0x10",
                           "1GiB/s", "1 GiB x", "99999999999999999999"}) {
    EXPECT_EQ(ParseSize(text), std::nullopt) << text;
  }
}

TEST(ParseSize, RefusesWhatWouldWrap) {
  EXPECT_THAT(ParseSize("8388607TiB"), Optional(Eq(8388607ull << 40)));
  EXPECT_EQ(ParseSize("8388608TiB"), std::nullopt);
  EXPECT_EQ(ParseSize("18446744073709551615"), std::nullopt);
}

TEST(ParseSizeOrPercent, AShareIsOfTheWhole) {
  EXPECT_EQ(ParseSizeOrPercent("1%")->Of(1000), 10u);
  EXPECT_EQ(ParseSizeOrPercent(" 50 % ")->Of(7), 3u);
  EXPECT_EQ(ParseSizeOrPercent("100%")->Of(uint64_t{1} << 50),
            uint64_t{1} << 50);
  EXPECT_EQ(ParseSizeOrPercent("4KiB")->Of(7), 4096u);
}

TEST(ParseSizeOrPercent, RefusesWhatIsNeither) {
  for (const char* text : {"%", "0%", "101%", "-5%", "+5%", "1.5%", "50%%",
                           "50 per cent", "5GiB%", ""}) {
    EXPECT_EQ(ParseSizeOrPercent(text), std::nullopt) << text;
  }
}

TEST(ParseRate, NeedsPerSecond) {
  EXPECT_THAT(ParseRate("0"), Optional(Eq(0u)));
  EXPECT_THAT(ParseRate("55GB/s"), Optional(Eq(55'000'000'000u)));
  EXPECT_THAT(ParseRate("12GiB/s"), Optional(Eq(uint64_t{12} << 30)));
  EXPECT_EQ(ParseRate("55GB"), std::nullopt);
  EXPECT_EQ(ParseRate("/s"), std::nullopt);
}

}  // namespace
}  // namespace hoistd
