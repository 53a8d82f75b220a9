#include "hoist/shared/nearest.h"

#include "gtest/gtest.h"

namespace hoist::nearest_test {

TEST(Nearest, DistanceCountsWhatIsPutInLeftOutAndExchanged) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("status", "statsu"), 2u);
  EXPECT_EQ(EditDistance("load", "laod"), EditDistance("laod", "load"));
}

TEST(Nearest, NameIsTheOneWithFewestChangesOrNone) {
  const std::vector<std::string> names = {"load", "unload", "status"};
  EXPECT_EQ(NearestName("lod", names), "load");
  EXPECT_EQ(NearestName("unlod", names), "unload");
  EXPECT_EQ(NearestName("status", names), "status");
  EXPECT_EQ(NearestName("frobnicate", names), "");
  EXPECT_EQ(NearestName("x", names), "");
  EXPECT_EQ(NearestName("", names), "");
  EXPECT_EQ(NearestName(std::string(1000, 's'), names), "");
}

}  // namespace hoist::nearest_test
