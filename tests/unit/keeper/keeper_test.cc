// A program that gives no sign of life is ended and started again; one that
// does is left alone.
#include "daemon/keeper/keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/captured_log.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace hoistd::keeper_test {

using ::hoistd::testing::CapturedLog;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kToldToStop = 128 + SIGTERM;

// A process may have one keeper at a time, whose signals it takes.
class KeeperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.dir = dir_.path();
    options_.watchdog = absl::Seconds(1);
    // Longer than a busy machine takes to end what goes by SIGABRT.
    options_.abort_patience = absl::Minutes(1);
    options_.stop_patience = absl::Milliseconds(500);
    pthread_sigmask(SIG_SETMASK, nullptr, &mask_);
  }
  void TearDown() override { pthread_sigmask(SIG_SETMASK, &mask_, nullptr); }

  // The lines of the program's lives; it is told to stop in its second.
  std::vector<std::string> Keep(const std::string& mode,
                                int status = kToldToStop) {
    const std::string file = dir_ / "lives";
    options_.command = {HOIST_FAKE_PROGRAM, mode, file};
    auto keeper = Keeper::Create(options_, {});
    EXPECT_OK(keeper);
    if (!keeper.ok()) return {};
    EXPECT_EQ((*keeper)->Run(), status);
    std::vector<std::string> lines;
    std::ifstream read(file);
    for (std::string line; std::getline(read, line);) lines.push_back(line);
    return lines;
  }

  testing::TempDir dir_;
  KeeperOptions options_;
  CapturedLog log_;
  sigset_t mask_;
};

TEST_F(KeeperTest, OneThatHangsIsStartedAgainWithWhatItStored) {
  EXPECT_THAT(Keep("hangs"), ElementsAre("usec=1000000 pid=own fds=0",
                                         "usec=1000000 pid=own fds=1"));
  EXPECT_THAT(log_.lines(""),
              Contains(HasSubstr("has given no sign of life for 1s")));
  EXPECT_THAT(log_.lines(""), Contains(HasSubstr("ended (signal 6)")));
}

TEST_F(KeeperTest, OneThatDoesNotGoByAbortIsKilled) {
  options_.abort_patience = absl::Milliseconds(300);
  EXPECT_THAT(Keep("ignores-abort"), ElementsAre("usec=1000000 pid=own fds=0",
                                                 "usec=1000000 pid=own fds=1"));
  EXPECT_THAT(log_.lines(""),
              Contains(HasSubstr("has not ended, and is killed")));
  EXPECT_THAT(log_.lines(""), Contains(HasSubstr("ended (signal 9)")));
}

TEST_F(KeeperTest, OneThatIsStoppedEndsByAbort) {
  Keep("is-stopped");
  EXPECT_THAT(log_.lines(""), Contains(HasSubstr("ended (signal 6)")));
}

TEST_F(KeeperTest, OneThatAsksForItIsEndedAtOnce) {
  options_.watchdog = absl::Hours(1);
  Keep("trigger");
  EXPECT_THAT(log_.lines(""), Contains(HasSubstr("asks to be ended")));
  EXPECT_THAT(log_.lines(""), Contains(HasSubstr("ended (signal 6)")));
}

TEST_F(KeeperTest, OneThatLivesIsLeftAlone) {
  options_.watchdog = absl::Seconds(2);
  Keep("lives");
  EXPECT_THAT(log_.lines(""), Contains(HasSubstr("ended (exit status 75)")));
  EXPECT_THAT(log_.lines(""), Not(Contains(HasSubstr("sign of life"))));
}

TEST_F(KeeperTest, NothingCountsBeforeItIsReady) {
  options_.watchdog = absl::Milliseconds(200);
  // It stored something, so it is started again.
  Keep("hangs-before-it-is-ready");
  EXPECT_THAT(log_.lines(""), Contains(HasSubstr("ended (exit status 75)")));
}

TEST_F(KeeperTest, WithoutAWatchdogTheProgramIsToldOfNone) {
  options_.watchdog = absl::ZeroDuration();
  // Of whoever watches the keeper.
  setenv("WATCHDOG_USEC", "1000", 1);
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_THAT(Keep("chooses"), ElementsAre("usec=none pid=none fds=0",
                                           "usec=none pid=none fds=1"));
  unsetenv("WATCHDOG_USEC");
  unsetenv("WATCHDOG_PID");
  EXPECT_THAT(log_.lines(""), Contains(HasSubstr("sign of life for 200ms")));
}

TEST_F(KeeperTest, OneThatStopsByItselfMustComeToAnEnd) {
  Keep("stops-for-ever");
  EXPECT_THAT(log_.lines(""), Contains(HasSubstr("ended (signal 9)")));
  EXPECT_THAT(log_.lines(""), Not(Contains(HasSubstr("sign of life"))));
}

TEST_F(KeeperTest, WhoLeftSomethingIsToldToStopWhenTheNextIsReady) {
  options_.stop_patience = absl::Minutes(1);
  EXPECT_THAT(Keep("is-told-late", 0),
              ElementsAre(HasSubstr("fds=0"), HasSubstr("fds=1"), "told"));
}

TEST_F(KeeperTest, WhoLeftSomethingIsStartedToBeToldToStop) {
  options_.first_pause = options_.longest_pause = absl::Hours(1);
  options_.stop_patience = absl::Minutes(1);
  EXPECT_THAT(Keep("is-told-between", 0),
              ElementsAre(HasSubstr("fds=0"), HasSubstr("fds=1"), "told"));
}

TEST_F(KeeperTest, WhoStopsMayAskForMoreTime) {
  Keep("stops-longer");
  EXPECT_THAT(log_.lines(""), Contains(HasSubstr("ended (exit status 75)")));
}

}  // namespace hoistd::keeper_test
