#include "daemon/config/size.h"

#include "gtest/gtest.h"

namespace hoistd::size_test {

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

}  // namespace hoistd::size_test
