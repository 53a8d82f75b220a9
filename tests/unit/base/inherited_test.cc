#include "daemon/base/inherited.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

// There under a sanitizer, whose operator new is its own, and which maps more
// than limits allow.
extern "C" {
[[gnu::weak]] void __asan_init();
[[gnu::weak]] void __tsan_init();
}

namespace hoistd::inherited_test {

bool IsSanitized() { return __asan_init != nullptr || __tsan_init != nullptr; }

using ::testing::AnyOf;
using ::testing::Eq;

// Runs `body` in a child, which ends with what it returns.
int StatusOfChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

// Those that stop a process do not.
bool EndsByDefault(int signal) {
  return WIFSIGNALED(StatusOfChild([signal] {
    ResetSignals();
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    if (signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN ||
        signal == SIGTTOU) {
      return 0;
    }
    return raise(signal);
  }));
}

class EverySignal : public ::testing::TestWithParam<int> {};

TEST_P(EverySignal, ThatWouldEndTheProgramHasAUseOfItsOwn) {
  const int signal = GetParam();
  if (signal == SIGKILL || !EndsByDefault(signal)) return;
  EXPECT_NE(UseOf(signal), SignalUse::kSystem) << sigabbrev_np(signal);
}

TEST_P(EverySignal, DoesWhatTheTableSays) {
  const int signal = GetParam();
  const int status = StatusOfChild([signal] {
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    if (!SetInherited().ok()) return 2;
    struct sigaction now = {};
    sigset_t blocked;
    sigset_t pending;
    if (sigaction(signal, nullptr, &now) != 0) return 0;  // glibc's own.
    sigprocmask(SIG_SETMASK, nullptr, &blocked);
    const bool ignored = now.sa_handler == SIG_IGN;
    switch (UseOf(signal)) {
      case SignalUse::kAwaited:
        raise(signal);
        sigpending(&pending);
        return sigismember(&pending, signal) == 1 ? 0 : 3;
      case SignalUse::kIgnored:
        raise(signal);
        return ignored && sigismember(&blocked, signal) == 0 ? 0 : 4;
      case SignalUse::kFault:
        raise(signal);
        return 5;
      case SignalUse::kSystem:
        return !ignored && sigismember(&blocked, signal) == 0 ? 0 : 6;
    }
    return 7;
  });
  if (UseOf(signal) == SignalUse::kFault) {
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
  } else {
    EXPECT_EQ(status, 0);
  }
}

TEST_P(EverySignal, IsAsAtABootAfterAReset) {
  const int signal = GetParam();
  EXPECT_EQ(StatusOfChild([signal] {
              if (!SetInherited().ok()) return 2;
              ResetSignals();
              struct sigaction now = {};
              if (sigaction(signal, nullptr, &now) != 0) return 0;
              sigset_t blocked;
              sigprocmask(SIG_SETMASK, nullptr, &blocked);
              return now.sa_handler == SIG_DFL &&
                             sigismember(&blocked, signal) == 0
                         ? 0
                         : 3;
            }),
            0);
}

INSTANTIATE_TEST_SUITE_P(OfLinux, EverySignal,
                         ::testing::Range(1, SIGRTMAX + 1));

TEST(Inherited, SignalsThatAParentBlockedAreTaken) {
  EXPECT_EQ(StatusOfChild([] {
              sigset_t all;
              sigfillset(&all);
              sigprocmask(SIG_SETMASK, &all, nullptr);
              signal(SIGCHLD, SIG_IGN);  // Nobody's end would be heard of.
              if (!SetInherited().ok()) return 2;
              const pid_t child = fork();
              if (child == 0) _exit(9);
              int status = 0;
              if (waitpid(child, &status, 0) != child) return 3;
              return WEXITSTATUS(status) == 9 ? 0 : 4;
            }),
            0);
}

// Each way to close some of three.
class Closed : public ::testing::TestWithParam<int> {};

TEST_P(Closed, DescriptorsAreOpenAndNoFileGetsTheirNumbers) {
  EXPECT_EQ(StatusOfChild([] {
              for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
                if ((GetParam() >> fd & 1) != 0) close(fd);
              }
              if (!SetInherited().ok()) return 2;
              struct stat null = {};
              stat("/dev/null", &null);
              for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
                struct stat is = {};
                if (fstat(fd, &is) != 0) return 3;
                if ((GetParam() >> fd & 1) == 0) continue;
                if (is.st_rdev != null.st_rdev) return 4;
                // Children have them too.
                if (fcntl(fd, F_GETFD) != 0) return 5;
              }
              return dup(0) > STDERR_FILENO ? 0 : 6;
            }),
            0);
}

INSTANTIATE_TEST_SUITE_P(OfThree, Closed, ::testing::Range(0, 8));

TEST(Inherited, ALimitOfCpuTimeIsLiftedOrRefused) {
  const int status = StatusOfChild([] {
    const rlimit limit = {1000, 1000};
    if (setrlimit(RLIMIT_CPU, &limit) != 0) return 0;
    const absl::Status set = SetInherited();
    rlimit now;
    getrlimit(RLIMIT_CPU, &now);
    if (set.ok()) return now.rlim_max == RLIM_INFINITY ? 0 : 2;
    return absl::IsFailedPrecondition(set) ? 1 : 3;
  });
  EXPECT_THAT(WEXITSTATUS(status), AnyOf(Eq(0), Eq(1)));
}

TEST(Inherited, AnEndWithoutMemoryHasItsStatus) {
  if (IsSanitized()) GTEST_SKIP() << "a sanitizer has an operator new";
  const int status = StatusOfChild([] {
    EndWithoutMemory("a program", 75);
    const rlimit limit = {size_t{1} << 30, size_t{1} << 30};
    setrlimit(RLIMIT_AS, &limit);
    // Volatile, so that it is not left out.
    char* volatile bytes = new char[size_t{1} << 31];
    delete[] bytes;
    return 0;
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 75) << status;
}

TEST(Inherited, TooFewDescriptorsAreRefused) {
  EXPECT_EQ(
      StatusOfChild([] {
        const rlimit limit = {kFewestDescriptors - 1, kFewestDescriptors - 1};
        setrlimit(RLIMIT_NOFILE, &limit);
        return absl::IsFailedPrecondition(SetInherited()) ? 0 : 2;
      }),
      0);
}

TEST(Inherited, TooFewAddressesAreRefused) {
  if (IsSanitized()) GTEST_SKIP() << "a sanitizer maps more than the limit";
  EXPECT_EQ(StatusOfChild([] {
              if (!CheckAddresses().ok()) return 2;
              const rlimit limit = {kFewestAddressBytes, kFewestAddressBytes};
              setrlimit(RLIMIT_AS, &limit);
              return absl::IsFailedPrecondition(CheckAddresses()) ? 0 : 3;
            }),
            0);
}

TEST(Inherited, SoftLimitsRiseToTheHardOnes) {
  EXPECT_EQ(StatusOfChild([] {
              rlimit limit;
              getrlimit(RLIMIT_FSIZE, &limit);
              limit.rlim_cur = 4096;
              setrlimit(RLIMIT_FSIZE, &limit);
              if (!SetInherited().ok()) return 2;
              rlimit now;
              getrlimit(RLIMIT_FSIZE, &now);
              return now.rlim_cur == limit.rlim_max ? 0 : 3;
            }),
            0);
}

}  // namespace hoistd::inherited_test
