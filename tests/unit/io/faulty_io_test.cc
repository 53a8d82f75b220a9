// The fault injectors are what the fault tests stand on.
#include "tests/support/faulty_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <utility>

#include "daemon/io/aligned_buffer.h"
#include "daemon/io/thread_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/shared/unique_fd.h"
#include "tests/support/io_wait.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace hoistd::testing::faulty_io_test {

class FaultyIoTest : public ::testing::Test {
 protected:
  FaultyIoTest()
      : io_(*ThreadEngine::Create(2)),
        from_(*AlignedBuffer::Create(8192)),
        fd_(open((dir_ / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    std::memset(from_.data(), 'n', 8192);
  }
  absl::Status Write(IoEngine& io) {
    return WriteAndWait(io, {{.fd = fd_.get()}, 0, from_.span()});
  }
  off_t Size() { return lseek(fd_.get(), 0, SEEK_END); }

  TempDir dir_;
  std::unique_ptr<ThreadEngine> io_;
  AlignedBuffer from_;
  hoist::UniqueFd fd_;
};

TEST_F(FaultyIoTest, FailsTheNthCallAndNoOther) {
  FaultyIo faulty(*io_);
  faulty.FailCall(2, absl::DataLossError("as told"));
  EXPECT_OK(Write(faulty));
  std::byte byte;
  EXPECT_THAT(ReadAndWait(faulty, {{.fd = fd_.get()}, 0, {{&byte, 1}}}),
              StatusIs(absl::StatusCode::kDataLoss, "as told"));
  EXPECT_OK(Write(faulty));
  EXPECT_EQ(faulty.calls(), 3u);
}

TEST_F(FaultyIoTest, LeavesTheDamageThatWasAskedFor) {
  FaultyIo faulty(*io_);
  const std::pair<Damage, off_t> cases[] = {{Damage::kNothing, 0},
                                            {Damage::kHalf, 4096},
                                            {Damage::kEverything, 8192}};
  for (const auto& [damage, bytes] : cases) {
    faulty.FailCall(faulty.calls() + 1, absl::UnavailableError(""), damage);
    EXPECT_THAT(Write(faulty), StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_EQ(Size(), bytes);
  }
}

TEST_F(FaultyIoTest, HeldCompletionsComeWhenReleased) {
  HeldIo held(*io_);
  int answers = 0;
  for (int i = 0; i < 3; ++i) {
    held.Write({{.fd = fd_.get()}, 0, from_.span()}, [&](absl::Status status) {
      EXPECT_OK(status);
      ++answers;
    });
  }
  held.WaitHeld(3);
  EXPECT_EQ(answers, 0);
  EXPECT_EQ(Size(), 8192);  // The work itself was not held up.
  held.Release(2);
  EXPECT_EQ(answers, 2);
  held.Open();
  EXPECT_EQ(answers, 3);
}

}  // namespace hoistd::testing::faulty_io_test
