#include "daemon/host/numa.h"

#include <vector>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace hoistd::numa_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Numa, NodeListsAreReadAsTheKernelWritesThem) {
  EXPECT_THAT(ParseNodeList("0\n"), ElementsAre(0));
  EXPECT_THAT(ParseNodeList("0-1"), ElementsAre(0, 1));
  EXPECT_THAT(ParseNodeList("0-1,4,6-7\n"), ElementsAre(0, 1, 4, 6, 7));
}

TEST(Numa, WhatIsNoNodeListIsEmpty) {
  for (const char* text :
       {"", "\n", "a", "1-", "-1", "2-1", "0-5000", "1-2-3", "0,,1", "0x1"}) {
    EXPECT_THAT(ParseNodeList(text), IsEmpty()) << text;
  }
}

TEST(Numa, SpreadingWorksOnThisHost) {
  std::vector<std::byte> memory(1 << 20);
  const auto start =
      (reinterpret_cast<uintptr_t>(memory.data()) + 4095) & ~uintptr_t{4095};
  EXPECT_OK(SpreadOverNodes({reinterpret_cast<std::byte*>(start), 4096 * 4}));
}

}  // namespace hoistd::numa_test
