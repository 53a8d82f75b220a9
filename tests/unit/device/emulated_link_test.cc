#include "daemon/device/emulated_link.h"

#include "gtest/gtest.h"

namespace hoistd::emulated_link_test {

const absl::Time kStart = absl::UnixEpoch();

TEST(EmulatedLink, ACopyTakesItsBytesTimeAndTheLatency) {
  EmulatedLink link(1000, absl::Milliseconds(5));
  EXPECT_EQ(link.Book(500, kStart), kStart + absl::Milliseconds(505));
}

TEST(EmulatedLink, CopiesThatAreReadyTogetherFollowEachOther) {
  EmulatedLink link(1000, absl::ZeroDuration());
  EXPECT_EQ(link.Book(100, kStart), kStart + absl::Milliseconds(100));
  EXPECT_EQ(link.Book(200, kStart), kStart + absl::Milliseconds(300));
}

TEST(EmulatedLink, LatencyDoesNotKeepTheLinkBusy) {
  EmulatedLink link(1000, absl::Seconds(1));
  link.Book(100, kStart);
  EXPECT_EQ(link.Book(100, kStart), kStart + absl::Milliseconds(1200));
}

TEST(EmulatedLink, AnIdleLinkStartsWhenTheCopyIsReady) {
  EmulatedLink link(1000, absl::ZeroDuration());
  link.Book(100, kStart);
  const absl::Time later = kStart + absl::Seconds(10);
  EXPECT_EQ(link.Book(100, later), later + absl::Milliseconds(100));
}

TEST(EmulatedLink, AWaiterThatWakesLateLosesNoBandwidth) {
  EmulatedLink link(1000, absl::ZeroDuration());
  // A stream's next copy is ready at the virtual end of the one before.
  absl::Time ready = kStart;
  for (int i = 0; i < 100; ++i) ready = link.Book(10, ready);
  EXPECT_EQ(ready, kStart + absl::Seconds(1));
}

TEST(EmulatedLink, WithoutARateOnlyLatencyCounts) {
  EmulatedLink link(0, absl::Milliseconds(2));
  EXPECT_EQ(link.Book(UINT64_MAX, kStart), kStart + absl::Milliseconds(2));
  EXPECT_EQ(link.Book(UINT64_MAX, kStart), kStart + absl::Milliseconds(2));
}

}  // namespace hoistd::emulated_link_test
