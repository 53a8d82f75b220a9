// Connections on which nobody opens a session.
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <vector>

#include "daemon/base/clock.h"
#include "tests/component/session/session_fixture.h"

namespace hoistd::testing::session_silent_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kExhausted =
    static_cast<int>(absl::StatusCode::kResourceExhausted);
constexpr int kLate = static_cast<int>(absl::StatusCode::kDeadlineExceeded);

class HandClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::Seconds(seconds_.load());
  }
  void Advance(int64_t seconds) { seconds_ += seconds; }

 private:
  std::atomic<int64_t> seconds_ = 1'000'000;
};

// A process of another user, which connects so often and says nothing.
class SilentUser {
 public:
  SilentUser(uid_t uid, const std::string& path, int connections) {
    int up[2], down[2];
    HOIST_CHECK(pipe2(up, O_CLOEXEC) == 0 && pipe2(down, O_CLOEXEC) == 0);
    child_ = fork();
    if (child_ == 0) {
      close(down[1]);
      if (setgroups(0, nullptr) != 0 || setgid(uid) != 0 || setuid(uid) != 0) {
        _exit(1);
      }
      std::vector<RawSession> silent;
      bool all = true;
      for (int i = 0; i < connections; ++i) {
        silent.emplace_back(path);
        all = all && silent.back().valid();
      }
      char byte = 0;
      all = all && write(up[1], &byte, 1) == 1;
      static_cast<void>(!read(down[0], &byte, 1));  // Until it may leave.
      _exit(all ? 0 : 1);
    }
    close(up[1]);
    close(down[0]);
    up_ = hoist::UniqueFd(up[0]);
    hold_ = hoist::UniqueFd(down[1]);
    char byte;
    EXPECT_EQ(read(up_.get(), &byte, 1), 1) << "uid " << uid;
  }
  ~SilentUser() {
    hold_.reset();
    int status = 0;
    waitpid(child_, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }

 private:
  pid_t child_;
  hoist::UniqueFd up_, hold_;
};

class SessionSilent : public SessionFixture {
 protected:
  void SetUp() override {
    options_.clock = &clock_;
    options_.silent.of_uid = 4;
    options_.silent.all = 8;
    options_.socket.mode = 0666;
    SessionFixture::SetUp();
    chmod(dir_.path().c_str(), 0755);
  }

  HandClock clock_;
};

TEST_F(SessionSilent, TheOldestOfAUidGoesWhereItHasTooMany) {
  RawSession opened(path());
  ASSERT_EQ(opened.Open().message.code(), 0);  // Not silent.
  std::vector<RawSession> silent;
  for (int i = 0; i < 5; ++i) silent.emplace_back(path());
  const auto why = silent[0].Receive();
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(why->message.code(), kExhausted);
  EXPECT_THAT(why->message.message(),
              AllOf(HasSubstr("4 connections"), HasSubstr("OpenSession")));
  EXPECT_EQ(silent[0].Receive(), std::nullopt);
  for (int i = 1; i < 5; ++i) {
    EXPECT_EQ(silent[i].Open().message.code(), 0) << i;
  }
  EXPECT_EQ(engine().open_sessions(), 5u);
}

TEST_F(SessionSilent, WhoOpensNoSessionInTimeIsTold) {
  RawSession opened(path());
  ASSERT_EQ(opened.Open().message.code(), 0);
  RawSession silent(path());
  Settle();  // It is accepted.
  clock_.Advance(9);
  Settle();
  RawSession later(path());
  Settle();
  clock_.Advance(1);
  Settle();  // Whoever says something wakes the session thread.
  const auto why = silent.Receive();
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(why->message.code(), kLate);
  EXPECT_THAT(why->message.message(), HasSubstr("10s"));
  EXPECT_EQ(silent.Receive(), std::nullopt);
  EXPECT_EQ(later.Open().message.code(), 0);
  EXPECT_NE(opened.Call(hoist::v1::ClientMessage()).message.code(), kLate);
}

TEST_F(SessionSilent, ItsDeadlineNeedsNobodyElseToSpeak) {
  server_->Shutdown();
  options_.clock = nullptr;
  options_.silent.deadline = absl::Milliseconds(1);
  Start();
  RawSession silent(path());
  EXPECT_EQ(silent.Receive()->message.code(), kLate);
}

TEST_F(SessionSilent, ARefusedSessionIsSilentAgain) {
  server_->Shutdown();
  options_.max_sessions = 1;
  Start();
  RawSession a(path()), b(path());
  ASSERT_EQ(a.Open().message.code(), 0);
  const auto refused = b.Open().message;
  EXPECT_EQ(refused.code(), kExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("server.max_sessions"));
  clock_.Advance(10);
  EXPECT_NE(a.Call(hoist::v1::ClientMessage()).message.code(), 0);
  EXPECT_EQ(b.Receive()->message.code(), kLate);
}

TEST_F(SessionSilent, OneUidLocksNobodyOut) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to connect as others";
  const SilentUser one(1001, path(), 40);
  RawSession client(path());
  EXPECT_EQ(client.Open().message.code(), 0);
}

TEST_F(SessionSilent, ManyUidsLockNobodyOut) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to connect as others";
  const SilentUser a(1001, path(), 4), b(1002, path(), 4), c(1003, path(), 4),
      d(1004, path(), 4);
  // Room is made by who has most, so that one with few keeps them.
  RawSession few(path());
  const SilentUser e(1005, path(), 4);
  EXPECT_EQ(few.Open().message.code(), 0);
  RawSession client(path());
  EXPECT_EQ(client.Open().message.code(), 0);
}

}  // namespace hoistd::testing::session_silent_test
