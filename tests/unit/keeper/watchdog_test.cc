#include "daemon/keeper/watchdog.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace hoistd::watchdog_test {

using Said = std::map<std::string, std::string>;

constexpr absl::Time kNever = absl::InfiniteFuture();

absl::Time At(int64_t seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

class WatchdogTest : public ::testing::Test {
 protected:
  // `text`, at this second.
  void Hear(const std::string& key, const std::string& value, int64_t second) {
    dog_.Hear({{key, value}}, At(second));
  }

  Watchdog dog_{absl::Seconds(30)};
};

TEST_F(WatchdogTest, CountsFromReadinessAndFromEachSign) {
  EXPECT_EQ(dog_.due(), kNever);
  dog_.Begin();
  EXPECT_EQ(dog_.due(), kNever);
  Hear("STATUS", "starts", 1000);
  EXPECT_EQ(dog_.due(), kNever);
  Hear("READY", "1", 2000);
  EXPECT_EQ(dog_.due(), At(2030));
  Hear("STATUS", "WATCHDOG=1", 2010);
  Hear("WATCHDOG", "0", 2010);
  EXPECT_EQ(dog_.due(), At(2030));
  Hear("WATCHDOG", "1", 2020);
  EXPECT_EQ(dog_.due(), At(2050));
}

TEST_F(WatchdogTest, WhatStopsIsNotWatched) {
  dog_.Begin();
  Hear("READY", "1", 0);
  Hear("STOPPING", "1", 1);
  EXPECT_EQ(dog_.due(), kNever);
  Hear("WATCHDOG", "1", 2);
  Hear("WATCHDOG_USEC", "1000000", 2);
  Hear("WATCHDOG", "trigger", 2);
  EXPECT_EQ(dog_.due(), kNever);
  // The next one is.
  dog_.Begin();
  EXPECT_EQ(dog_.due(), kNever);
  Hear("READY", "1", 100);
  EXPECT_EQ(dog_.due(), At(130));
  dog_.Stop();
  EXPECT_EQ(dog_.due(), kNever);
}

TEST_F(WatchdogTest, ATriggerEndsItAtOnce) {
  dog_.Begin();
  Hear("WATCHDOG", "trigger", 0);
  EXPECT_EQ(dog_.due(), absl::InfinitePast());
  EXPECT_TRUE(dog_.triggered());
  dog_.Begin();
  EXPECT_FALSE(dog_.triggered());
  EXPECT_EQ(dog_.due(), kNever);
}

TEST_F(WatchdogTest, TheProgramMayChooseAnotherInterval) {
  dog_.Begin();
  Hear("WATCHDOG_USEC", "5000000", 0);
  EXPECT_EQ(dog_.due(), kNever);
  Hear("READY", "1", 10);
  EXPECT_EQ(dog_.due(), At(15));
  Hear("WATCHDOG_USEC", "7000000", 12);
  EXPECT_EQ(dog_.due(), At(19));
  for (const char* nonsense : {"", "-1", "7s", "99999999999999999999999"}) {
    Hear("WATCHDOG_USEC", nonsense, 13);
    EXPECT_EQ(dog_.due(), At(19)) << nonsense;
  }
  for (const char* none : {"0", "18446744073709551615"}) {
    Hear("WATCHDOG_USEC", none, 14);
    EXPECT_EQ(dog_.due(), kNever) << none;
  }
  Hear("WATCHDOG_USEC", "1000000", 20);
  EXPECT_EQ(dog_.due(), At(21));
  // Its successor is told what the first was.
  dog_.Begin();
  Hear("READY", "1", 100);
  EXPECT_EQ(dog_.due(), At(130));
}

TEST_F(WatchdogTest, MoreTimeIsNeverLess) {
  dog_.Begin();
  Hear("READY", "1", 0);
  Hear("EXTEND_TIMEOUT_USEC", "10000000", 5);
  EXPECT_EQ(dog_.due(), At(30));
  Hear("EXTEND_TIMEOUT_USEC", "60000000", 5);
  EXPECT_EQ(dog_.due(), At(65));
  for (const char* nothing : {"0", "18446744073709551615", "more"}) {
    Hear("EXTEND_TIMEOUT_USEC", nothing, 6);
    EXPECT_EQ(dog_.due(), At(65)) << nothing;
  }
}

TEST_F(WatchdogTest, AWatcherThatSleptCountsAnew) {
  dog_.Begin();
  dog_.Overslept(At(0));
  EXPECT_EQ(dog_.due(), kNever);
  Hear("READY", "1", 0);
  dog_.Overslept(At(1000));
  EXPECT_EQ(dog_.due(), At(1030));
  Hear("EXTEND_TIMEOUT_USEC", "60000000", 1000);
  dog_.Overslept(At(1001));
  EXPECT_EQ(dog_.due(), At(1060));
}

TEST_F(WatchdogTest, AnOrphanIsWatchedAsItWasTold) {
  dog_.TakeOver(absl::Seconds(90), At(0));
  EXPECT_EQ(dog_.due(), At(90));
  Hear("WATCHDOG", "1", 10);
  EXPECT_EQ(dog_.due(), At(100));
  // It gives no sign, and was not asked to.
  dog_.TakeOver(absl::ZeroDuration(), At(0));
  EXPECT_EQ(dog_.due(), kNever);
  // Who knows.
  dog_.TakeOver(std::nullopt, At(0));
  EXPECT_EQ(dog_.due(), kNever);
  Hear("WATCHDOG", "1", 10);
  EXPECT_EQ(dog_.due(), At(40));
}

TEST(WatchdogOff, WatchesWhoAsksForIt) {
  Watchdog dog(absl::ZeroDuration());
  dog.Begin();
  dog.Hear({{"READY", "1"}}, At(0));
  dog.Hear({{"WATCHDOG", "1"}}, At(1));
  EXPECT_EQ(dog.due(), kNever);
  dog.Hear({{"WATCHDOG_USEC", "2000000"}}, At(2));
  EXPECT_EQ(dog.due(), At(4));
}

TEST(ToldInterval, IsTheProcesssOwn) {
  const std::string end(1, 0);
  const auto told = [&](const std::string& usec, const std::string& pid) {
    std::string text("A=b\0NOTHING\0", 12);
    if (!usec.empty()) text += absl::StrCat("WATCHDOG_USEC=", usec, end);
    if (!pid.empty()) text += absl::StrCat("WATCHDOG_PID=", pid, end);
    return ToldInterval(text + "Z=", 71);
  };
  EXPECT_EQ(told("30000000", "71"), absl::Seconds(30));
  EXPECT_EQ(told("30000000", ""), absl::Seconds(30));
  for (const char* other : {"72", "-71", "x", "711"}) {
    EXPECT_EQ(told("30000000", other), absl::ZeroDuration()) << other;
  }
  for (const char* none : {"", "0", "x", "18446744073709551615"}) {
    EXPECT_EQ(told(none, "71"), absl::ZeroDuration()) << none;
  }
  EXPECT_EQ(ToldInterval("", 71), absl::ZeroDuration());
  EXPECT_EQ(ToldInterval("WATCHDOG_USEC=5", 71), absl::Microseconds(5));
}

}  // namespace hoistd::watchdog_test
