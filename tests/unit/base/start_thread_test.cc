#include "daemon/base/start_thread.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>

#include "daemon/base/task_threads.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::start_thread_test {

using ::testing::HasSubstr;
using testing::StatusIs;

// From now on this process gets no thread.
bool DenyThreads(uint32_t error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program = {.len = std::size(filter), .filter = filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Runs `body` in a child of this process where threads are denied.
void WithoutThreads(uint32_t error, const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    if (!DenyThreads(error)) _exit(2);
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(StartThread, RunsWhatItIsGiven) {
  int ran = 0;
  ASSERT_OK_AND_ASSIGN(std::thread thread, StartThread([&ran] { ran = 7; }));
  thread.join();
  EXPECT_EQ(ran, 7);
}

TEST(StartThread, WhereTheSystemHasNoneItSaysWhichLimitsThereAre) {
  WithoutThreads(EAGAIN, [] {
    EXPECT_THAT(StartThread([] {}).status(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("of this process")));
    EXPECT_THAT(
        StartThread([] {}).status(),
        StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("TasksMax")));
  });
}

TEST(TryThreads, LeavesNoneBehindAndSaysWhereThereIsNoRoom) {
  EXPECT_OK(TryThreads(20));
  WithoutThreads(EAGAIN, [] {
    EXPECT_OK(TryThreads(0));
    EXPECT_THAT(TryThreads(1), StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("TasksMax")));
  });
}

TEST(StartThread, WhereItIsForbiddenItSaysSo) {
  WithoutThreads(EPERM, [] {
    EXPECT_THAT(
        StartThread([] {}).status(),
        StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("seccomp")));
  });
}

TEST(TaskThreads, WithoutAThreadWhatWasPostedRunsAtTheEnd) {
  WithoutThreads(EAGAIN, [] {
    int ran = 0;
    {
      TaskThreads worker;
      EXPECT_THAT(worker.Start(2),
                  StatusIs(absl::StatusCode::kResourceExhausted));
      worker.Post([&ran] { ++ran; });
    }
    EXPECT_EQ(ran, 1);
  });
}

}  // namespace hoistd::start_thread_test
