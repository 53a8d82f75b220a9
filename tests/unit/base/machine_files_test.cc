#include "daemon/base/machine_files.h"

#include "gmock/gmock.h"

namespace hoistd::machine_files_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(MachineFiles, AFileThatIsNotThereIsEmpty) {
  EXPECT_EQ(ReadKernelFile("/proc/sys/kernel/no such"), "");
  EXPECT_THAT(MemoryNodes("/no such"), IsEmpty());
  EXPECT_THAT(NvidiaGpus("/no such"), IsEmpty());
}

TEST(MachineFiles, NodeListsAreReadAsTheKernelWritesThem) {
  EXPECT_THAT(ParseNodeList("0\n"), ElementsAre(0));
  EXPECT_THAT(ParseNodeList("0-1"), ElementsAre(0, 1));
  EXPECT_THAT(ParseNodeList("0-1,4,6-7\n"), ElementsAre(0, 1, 4, 6, 7));
}

TEST(MachineFiles, WhatIsNoNodeListIsEmpty) {
  for (const char* text :
       {"", "\n", "a", "1-", "-1", "2-1", "0-5000", "1-2-3", "0,,1", "0x1"}) {
    EXPECT_THAT(ParseNodeList(text), IsEmpty()) << text;
  }
}

}  // namespace hoistd::machine_files_test
