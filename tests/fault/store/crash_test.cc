// The process is killed at a named step; what the next one finds is checked.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/spill_fixture.h"

namespace hoistd::crash_test {

using ::hoistd::testing::CheckSpilled;
using ::hoistd::testing::FilesIn;
using ::hoistd::testing::PutAndWait;
using ::hoistd::testing::SpillImage;
using ::hoistd::testing::SpillTest;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Kills its process at the n-th write, before or after it is carried out.
class KillingIo final : public IoEngine {
 public:
  KillingIo(IoEngine& base, int at, bool after)
      : base_(base), left_(at), after_(after) {}

  void Read(ReadRequest request, Done done) override {
    base_.Read(std::move(request), std::move(done));
  }
  void Write(WriteRequest request, Done done) override {
    const bool kills = --left_ == 0;
    if (kills && !after_) kill(getpid(), SIGKILL);
    base_.Write(std::move(request),
                [kills, done = std::move(done)](absl::Status status) mutable {
                  if (kills) kill(getpid(), SIGKILL);
                  done(std::move(status));
                });
  }
  IoInfo info() const override { return base_.info(); }

 private:
  IoEngine& base_;
  int left_;  // The store writes one after the other in these tests.
  const bool after_;
};

class CrashTest : public SpillTest {
 protected:
  // Runs `body`, with an engine of its own, in a process that it kills.
  template <typename Body>
  void RunAndKill(Body body) {
    io_.reset();  // No thread of ours is alive across fork.
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto io = CreateIoEngine({.bounce_bytes = uint64_t{4} << 20});
      if (io.ok()) body(**io);
      _exit(1);  // It should have been killed.
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    io_ = *CreateIoEngine({});
  }
  SpillOptions Options() const {
    return {.dir = dir_, .capacity_bytes = kCapacity};
  }
};

TEST_F(CrashTest, KilledDuringAWriteLeavesTheOldImagesAndNothingElse) {
  const SpillImage old_image(700, 1);
  const SpillImage new_image(900, 2);
  SpillId old_id;
  {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ASSERT_OK_AND_ASSIGN(old_id, PutAndWait(*store, old_image));
  }
  for (const int at : {1, 2}) {
    for (const bool after : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "write " << at << ", " << after);
      RunAndKill([&](IoEngine& io) {
        KillingIo killing(io, at, after);
        auto store = SpillStore::Open(Options(), killing);
        if (store.ok()) PutAndWait(**store, new_image).IgnoreError();
      });
      EXPECT_EQ(FilesIn(dir_ + "/images"), 2u);  // There was something to lose.
      ASSERT_OK_AND_ASSIGN(auto store, Open());
      EXPECT_EQ(FilesIn(dir_ + "/images"), 1u);
      EXPECT_THAT(store->List(), SizeIs(1));
      EXPECT_OK(CheckSpilled(*store, old_id, old_image));
    }
  }
}

TEST_F(CrashTest, KilledAfterTheAnswerKeepsTheImage) {
  const SpillImage image(700);
  RunAndKill([&](IoEngine& io) {
    auto store = SpillStore::Open(Options(), io);
    if (!store.ok()) return;
    if (!PutAndWait(**store, image).ok()) return;
    kill(getpid(), SIGKILL);
  });
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  ASSERT_THAT(store->List(), SizeIs(1));
  EXPECT_OK(CheckSpilled(*store, store->List()[0].id, image));
}

TEST_F(CrashTest, KilledAfterARemovalWasAnsweredKeepsItGone) {
  RunAndKill([&](IoEngine& io) {
    auto store = SpillStore::Open(Options(), io);
    if (!store.ok()) return;
    const auto id = PutAndWait(**store, SpillImage(700));
    if (!id.ok() || !testing::RemoveAndWait(**store, *id).ok()) return;
    kill(getpid(), SIGKILL);
  });
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->List(), IsEmpty());
  EXPECT_EQ(FilesIn(dir_ + "/images"), 0u);
}

}  // namespace hoistd::crash_test
