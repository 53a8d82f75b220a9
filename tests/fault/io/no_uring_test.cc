// What a container's seccomp profile takes away, taken away for real.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "daemon/io/create_io_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/shared/unique_fd.h"
#include "tests/support/io_wait.h"
#include "tests/support/temp_dir.h"

namespace hoistd {
namespace {

using ::testing::ExitedWithCode;

// From now on this process gets `error` from `call`.
bool Refuse(uint32_t call, uint32_t error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program = {.len = std::size(filter), .filter = filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Runs `body` in a child; exits with 0 where it says true.
void InChild(const std::function<bool()>& body) {
  EXPECT_EXIT(_exit(body() ? 0 : 1), ExitedWithCode(0), "");
}

bool Fails(const char* what, const std::string& seen) {
  std::fprintf(stderr, "%s: %s\n", what, seen.c_str());
  return false;
}

// Reads a file of its own through the engine.
bool ReadsAFile(IoEngine& engine) {
  testing::TempDir dir;
  const hoist::UniqueFd fd(
      open((dir / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const std::string text(100'000, 'h');
  if (write(fd.get(), text.data(), text.size()) !=
      static_cast<ssize_t>(text.size())) {
    return Fails("write", strerror(errno));
  }
  hoist::UniqueFd direct(
      open((dir / "f").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  std::string back(text.size() - 5, ' ');
  const absl::Status status = testing::ReadAndWait(
      engine, {{.fd = fd.get(), .direct_fd = direct.get()},
               5,
               {{reinterpret_cast<std::byte*>(back.data()), back.size()}}});
  if (!status.ok()) return Fails("read", status.ToString());
  return back == text.substr(5);
}

// What is refused: to make a ring, or to use one that was made.
struct Denied {
  uint32_t call;
  int error;
};

// The test's name.
void PrintTo(const Denied& denied, std::ostream* out) {
  *out << (denied.call == SYS_io_uring_setup ? "setup" : "enter") << "-"
       << strerrorname_np(denied.error);
}

class NoUringTest : public ::testing::TestWithParam<Denied> {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "fast"; }
};

TEST_P(NoUringTest, AutoFallsBackToThreadsAndSaysWhy) {
  InChild([] {
    if (!Refuse(GetParam().call, static_cast<uint32_t>(GetParam().error))) {
      return Fails("seccomp", "");
    }
    auto engine = CreateIoEngine({});
    if (!engine.ok()) return Fails("create", engine.status().ToString());
    const IoInfo info = (*engine)->info();
    if (info.engine != "threads") return Fails("engine", info.engine);
    if (info.fallbacks.size() != 1) return Fails("fallbacks", "not one");
    if (info.fallbacks[0].find("no io_uring") == std::string::npos ||
        info.fallbacks[0].find(strerror(GetParam().error)) ==
            std::string::npos) {
      return Fails("reason", info.fallbacks[0]);
    }
    return ReadsAFile(**engine);
  });
}

TEST_P(NoUringTest, UringByNameIsRefusedWithTheReason) {
  InChild([] {
    if (!Refuse(GetParam().call, static_cast<uint32_t>(GetParam().error))) {
      return Fails("seccomp", "");
    }
    auto engine = CreateIoEngine({.choice = IoChoice::kUring});
    if (engine.ok()) return Fails("create", "should have failed");
    const std::string why(engine.status().message());
    return why.find(strerror(GetParam().error)) != std::string::npos &&
           why.find("auto") != std::string::npos;
  });
}

INSTANTIATE_TEST_SUITE_P(Every, NoUringTest,
                         ::testing::Values(Denied{SYS_io_uring_setup, EPERM},
                                           Denied{SYS_io_uring_setup, ENOSYS},
                                           Denied{SYS_io_uring_enter, EPERM},
                                           Denied{SYS_io_uring_enter, ENOSYS}));

TEST(NoRegisteredBuffers, IsNotedAndReadsGoOn) {
  InChild([] {
    if (!Refuse(SYS_io_uring_register, ENOMEM)) return Fails("seccomp", "");
    auto engine = CreateIoEngine({.choice = IoChoice::kUring});
    if (!engine.ok()) {
      // No io_uring on this host at all: the other tests are about that.
      return absl::IsPermissionDenied(engine.status()) ||
             absl::IsUnimplemented(engine.status());
    }
    const IoInfo info = (*engine)->info();
    if (info.registered_buffers) return Fails("info", "registered");
    if (info.fallbacks.size() != 1 ||
        info.fallbacks[0].find("RLIMIT_MEMLOCK") == std::string::npos) {
      return Fails("fallbacks",
                   info.fallbacks.empty() ? "none" : info.fallbacks[0]);
    }
    return ReadsAFile(**engine);
  });
}

}  // namespace
}  // namespace hoistd
