#include "daemon/io_helper/io_helpers.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "daemon/io_helper/helper_call.h"
#include "gmock/gmock.h"
#include "tests/unit/io_helper/io_helper_fixture.h"

namespace hoistd::io_helpers_test {

using ::hoistd::testing::IoHelperFixture;
using ::hoistd::testing::IsOk;
using ::hoistd::testing::StatusIs;
using ::testing::HasSubstr;

void Echo(hoist::Packet request, int line) {
  Tell(line, absl::OkStatus(), request.body);
}

void Pid(hoist::Packet, int line) {
  Tell(line, absl::OkStatus(), std::to_string(getpid()));
}

void Refuse(hoist::Packet, int line) {
  Tell(line, absl::NotFoundError("no such thing"));
}

void EchoTwice(hoist::Packet request, int line) {
  Tell(line, absl::OkStatus(), request.body);
  Tell(line, absl::OkStatus(), HearMore(line).body);
}

void Die(hoist::Packet, int) { _exit(1); }

void AnswerThenHang(hoist::Packet, int line) {
  Tell(line, absl::OkStatus(), "begun");
  while (true) pause();
}

std::string PidOf(absl::StatusOr<IoHelper*> run) {
  auto answer = (*run)->Call(&Pid, "tell its pid", "", {});
  return answer.ok() ? answer->body : std::string(answer.status().message());
}

using IoHelpersTest = IoHelperFixture;

TEST_F(IoHelpersTest, ACallRunsInAnotherProcess) {
  Do([](absl::StatusOr<IoHelper*> run) {
    ASSERT_THAT(run, IsOk());
    const std::string large(1 << 20, 'x');
    auto answer = (*run)->Call(&Echo, "echo", large, {});
    ASSERT_THAT(answer, IsOk());
    EXPECT_EQ(answer->body, large);
    EXPECT_NE(PidOf(run), std::to_string(getpid()));
  });
}

TEST_F(IoHelpersTest, ACallHearsAndAnswersMore) {
  Do([](absl::StatusOr<IoHelper*> run) {
    ASSERT_THAT(run, IsOk());
    EXPECT_EQ((*run)->Call(&EchoTwice, "echo", "one", {})->body, "one");
    ASSERT_THAT((*run)->Say("two"), IsOk());
    EXPECT_EQ((*run)->Next()->body, "two");
  });
}

TEST_F(IoHelpersTest, ACallsErrorLosesNoProcess) {
  std::string before, after;
  Do([&](absl::StatusOr<IoHelper*> run) {
    before = PidOf(run);
    EXPECT_THAT((*run)->Call(&Refuse, "refuse", "", {}),
                StatusIs(absl::StatusCode::kNotFound, "no such thing"));
    after = PidOf(run);
  });
  EXPECT_EQ(before, after);
}

TEST_F(IoHelpersTest, AfterAProcessThatDiedComesAnother) {
  std::string before, after;
  Do([&](absl::StatusOr<IoHelper*> run) {
    before = PidOf(run);
    EXPECT_THAT((*run)->Call(&Die, "die", "", {}),
                StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_TRUE((*run)->lost());
    // What is asked of a lost one is answered with why it is lost.
    EXPECT_THAT((*run)->Call(&Echo, "echo", "", {}),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("die")));
  });
  Do([&](absl::StatusOr<IoHelper*> run) { after = PidOf(run); });
  EXPECT_NE(before, after);
}

TEST_F(IoHelpersTest, WhatHangsIsLostAtItsDeadline) {
  auto process = spawner_->Spawn();
  ASSERT_THAT(process, IsOk());
  const hoist::UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  IoHelper run(*std::move(process), stop.get(), absl::Milliseconds(1));
  // It is begun or not by then, but it never ends.
  const absl::Status first =
      run.Call(&AnswerThenHang, "open the file", "", {}).status();
  EXPECT_FALSE(run.Rest());
  EXPECT_THAT(run.why(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       ::testing::AllOf(HasSubstr("open the file"),
                                        HasSubstr("disk.read_deadline"))));
  EXPECT_TRUE(first.ok() || absl::IsDeadlineExceeded(first));
  run.Kill();
}

TEST_F(IoHelpersTest, OthersDoNotWaitForAnOwnersCallsAndStopWaitsForNone) {
  constexpr size_t kMany = 20;
  absl::BlockingCounter begun(2);  // As many as open at once.
  absl::BlockingCounter over(kMany);
  std::atomic<int> unavailable = 0;
  for (size_t i = 0; i < kMany; ++i) {
    io_helpers_->Post(
        User(1), HelperCallKind::kOpen, [&](absl::StatusOr<IoHelper*> run) {
          absl::Status status = run.status();
          if (run.ok()) {
            auto answer = (*run)->Call(&AnswerThenHang, "hang", "", {});
            EXPECT_THAT(answer, IsOk());
            begun.DecrementCount();
            status = (*run)->Next().status();
          }
          if (absl::IsUnavailable(status)) ++unavailable;
          over.DecrementCount();
        });
  }
  begun.Wait();
  const auto echoes = [](absl::StatusOr<IoHelper*> run) {
    ASSERT_THAT(run, IsOk());
    EXPECT_THAT((*run)->Call(&Echo, "echo", "", {}), IsOk());
  };
  Do(echoes, User(2));
  Do(echoes, User(1), HelperCallKind::kRead);  // Nor does another kind.
  io_helpers_->Stop();
  over.Wait();
  EXPECT_EQ(unavailable, static_cast<int>(kMany));
}

TEST_F(IoHelpersTest, AfterStopEverythingIsRefused) {
  io_helpers_->Stop();
  Do([](absl::StatusOr<IoHelper*> run) {
    EXPECT_THAT(run, StatusIs(absl::StatusCode::kUnavailable));
  });
}

}  // namespace hoistd::io_helpers_test
