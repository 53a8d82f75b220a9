// Each call that changes the spill directory, or makes a change last, fails in
// turn, and the process is killed before and after each; what the next start
// finds is checked.
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/store/model_roll.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/spill_fixture.h"

namespace hoistd::dir_calls_test {

enum class Fault { kNone, kFails, kKillsBefore, kKillsAfter };

// What the wrapped calls below do. Nothing, unless a test arms it.
struct Plan {
  absl::Mutex mu;
  bool armed ABSL_GUARDED_BY(mu) = false;
  size_t at ABSL_GUARDED_BY(mu) = 0;  // From 1.
  Fault fault ABSL_GUARDED_BY(mu) = Fault::kNone;
  int error ABSL_GUARDED_BY(mu) = 0;
  std::vector<std::string> calls ABSL_GUARDED_BY(mu);

  void Arm(size_t which = 0, Fault what = Fault::kNone, int code = 0) {
    absl::MutexLock lock(&mu);
    armed = true;
    at = which;
    fault = what;
    error = code;
    calls.clear();
  }
  std::vector<std::string> Disarm() {
    absl::MutexLock lock(&mu);
    armed = false;
    return calls;
  }
  // Whether the call is to fail; with its errno.
  int Before(const char* call, bool& kills_after) {
    absl::MutexLock lock(&mu);
    if (!armed) return 0;
    calls.emplace_back(call);
    if (calls.size() != at) return 0;
    if (fault == Fault::kKillsBefore) kill(getpid(), SIGKILL);
    kills_after = fault == Fault::kKillsAfter;
    return fault == Fault::kFails ? error : 0;
  }
};

Plan& ThePlan() {
  static Plan* const plan = new Plan;
  return *plan;
}

int Call(const char* name, long number, long a, long b, long c, long d) {
  bool kills_after = false;
  if (const int error = ThePlan().Before(name, kills_after); error != 0) {
    errno = error;
    return -1;
  }
  const long result = syscall(number, a, b, c, d);
  if (kills_after) kill(getpid(), SIGKILL);
  return static_cast<int>(result);
}

long Address(const char* text) { return reinterpret_cast<long>(text); }

}  // namespace hoistd::dir_calls_test

// In place of libc's, for all of this program.
extern "C" {
int renameat(int from, const char* old_name, int to,
             const char* name) noexcept {
  using namespace hoistd::dir_calls_test;
  return Call("rename", SYS_renameat, from, Address(old_name), to,
              Address(name));
}
int unlinkat(int dir, const char* name, int flags) noexcept {
  using namespace hoistd::dir_calls_test;
  return Call("unlink", SYS_unlinkat, dir, Address(name), flags, 0);
}
int fsync(int fd) {
  return hoistd::dir_calls_test::Call("fsync", SYS_fsync, fd, 0, 0, 0);
}
int fdatasync(int fd) {
  return hoistd::dir_calls_test::Call("fdatasync", SYS_fdatasync, fd, 0, 0, 0);
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return hoistd::dir_calls_test::Call("fallocate", SYS_fallocate, fd, mode,
                                      offset, bytes);
}
}

namespace hoistd::dir_calls_test {

using ::hoistd::testing::CheckSpilled;
using ::hoistd::testing::FilesIn;
using ::hoistd::testing::IsOk;
using ::hoistd::testing::PutAndWait;
using ::hoistd::testing::RemoveAndWait;
using ::hoistd::testing::SpillImage;
using ::hoistd::testing::SpillTest;
using ::hoistd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class DirCallsTest : public SpillTest {
 protected:
  void TearDown() override { ThePlan().Disarm(); }

  // A directory with `old_image_`, whose id is 1.
  void MakeStore() {
    std::filesystem::remove_all(dir_);
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ASSERT_OK(PutAndWait(*store, old_image_));
  }
  // Makes the store with an image in which a bit has flipped.
  void MakeDamagedStore() {
    MakeStore();
    std::filesystem::resize_file(Path(SpillId(1)), 4096 + 70 * 4096);
    std::filesystem::resize_file(Path(SpillId(1)),
                                 4096 + old_image_.image.size());
  }
  // Runs `body` in a process that is killed at the call. False: it came to its
  // end, since there are not so many.
  template <typename Body>
  bool RunAndKill(size_t at, Fault fault, Body body) {
    io_.reset();  // No thread of ours is alive across fork.
    const pid_t child = fork();
    if (child == 0) {
      auto io = CreateIoEngine({.bounce_bytes = uint64_t{4} << 20});
      auto store =
          SpillStore::Open({.dir = dir_, .capacity_bytes = kCapacity}, **io);
      if (!store.ok()) _exit(2);
      ThePlan().Arm(at, fault);
      body(**store);
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    io_ = *CreateIoEngine({.bounce_bytes = uint64_t{4} << 20});
    if (WIFSIGNALED(status)) return true;
    EXPECT_EQ(WEXITSTATUS(status), 0);
    return false;
  }

  const SpillImage old_image_{100, 1};
  const SpillImage new_image_{130, 2};
};

TEST_F(DirCallsTest, WhatIsAnsweredHasBeenSyncedInThisOrder) {
  MakeStore();
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  ThePlan().Arm();
  ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, new_image_));
  std::vector<std::string> calls = ThePlan().Disarm();
  // io_uring's sync of the bytes is none of libc's; threads' is.
  if (calls.size() == 4) {
    EXPECT_EQ(calls[1], "fdatasync");
    calls.erase(calls.begin() + 1);
  }
  EXPECT_THAT(calls, ElementsAre("fallocate", "rename", "fsync"));

  ThePlan().Arm();
  ASSERT_OK(RemoveAndWait(*store, id));
  EXPECT_THAT(ThePlan().Disarm(),
              ElementsAre("unlink", "unlink", "unlink", "fsync"));
  store.reset();
  MakeDamagedStore();
  ASSERT_OK_AND_ASSIGN(store, Open());
  ThePlan().Arm();
  EXPECT_THAT(CheckSpilled(*store, SpillId(1), old_image_),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(ThePlan().Disarm(), ElementsAre("rename", "fsync", "fsync"));
}

TEST_F(DirCallsTest, AFailedPutLeavesNothingAndTheNextOneWorks) {
  for (const int error : {EIO, ENOSPC}) {
    for (size_t at = 1; at <= 3; ++at) {
      SCOPED_TRACE(::testing::Message() << "call " << at << ", " << error);
      MakeStore();
      ASSERT_OK_AND_ASSIGN(auto store, Open());
      ThePlan().Arm(at, Fault::kFails, error);
      const auto put = PutAndWait(*store, new_image_);
      ThePlan().Disarm();
      EXPECT_THAT(put, Not(IsOk()));
      EXPECT_EQ(FilesIn(dir_ + "/images"), 1u);
      EXPECT_THAT(store->List(), SizeIs(1));
      EXPECT_EQ(store->usage().used_bytes, 101u * 4096);
      ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, new_image_));
      EXPECT_OK(CheckSpilled(*store, id, new_image_));
      EXPECT_OK(CheckSpilled(*store, SpillId(1), old_image_));
      store.reset();
      ASSERT_OK_AND_ASSIGN(store, Open());
      EXPECT_THAT(store->List(), SizeIs(2));
      EXPECT_THAT(store->notes(), IsEmpty());
    }
  }
}

TEST_F(DirCallsTest, AFailedRemovalLeavesTheImageOrNothing) {
  for (size_t at = 1; at <= 4; ++at) {
    SCOPED_TRACE(at);
    MakeStore();
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ThePlan().Arm(at, Fault::kFails, EIO);
    EXPECT_THAT(RemoveAndWait(*store, SpillId(1)), Not(IsOk()));
    ThePlan().Disarm();
    if (at == 1) {
      EXPECT_OK(CheckSpilled(*store, SpillId(1), old_image_));
    }
    if (!store->List().empty()) {
      ASSERT_OK(RemoveAndWait(*store, SpillId(1)));
    }
    EXPECT_THAT(store->List(), IsEmpty());
    EXPECT_EQ(store->usage().used_bytes, 0u);
    EXPECT_EQ(FilesIn(dir_ + "/images"), 0u);
  }
}

TEST_F(DirCallsTest, AFailedQuarantineRefusesTheImageNowAndLater) {
  for (size_t at = 1; at <= 3; ++at) {
    SCOPED_TRACE(at);
    MakeDamagedStore();
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ThePlan().Arm(at, Fault::kFails, EIO);
    EXPECT_THAT(CheckSpilled(*store, SpillId(1), old_image_),
                StatusIs(absl::StatusCode::kDataLoss));
    ThePlan().Disarm();
    for (int start = 0; start < 2; ++start) {
      EXPECT_THAT(CheckSpilled(*store, SpillId(1), old_image_),
                  StatusIs(absl::StatusCode::kDataLoss));
      ASSERT_THAT(store->List(), SizeIs(1));
      EXPECT_THAT(store->List()[0].quarantined, ::testing::HasSubstr("block"));
      store.reset();
      ASSERT_OK_AND_ASSIGN(store, Open());
    }
    EXPECT_TRUE(std::filesystem::exists(Path(SpillId(1), "quarantine")));
    ASSERT_OK(RemoveAndWait(*store, SpillId(1)));
    EXPECT_EQ(FilesIn(dir_ + "/images") + FilesIn(dir_ + "/quarantine"), 0u);
  }
}

TEST_F(DirCallsTest, KilledAtAnyCallOfAPutLeavesTheOldAndAllOrNothingOfTheNew) {
  size_t kills = 0;
  size_t whole = 0;
  for (const Fault fault : {Fault::kKillsBefore, Fault::kKillsAfter}) {
    for (size_t at = 1;; ++at) {
      SCOPED_TRACE(at);
      MakeStore();
      if (!RunAndKill(at, fault, [&](SpillStore& store) {
            PutAndWait(store, new_image_).IgnoreError();
          })) {
        break;
      }
      ++kills;
      ASSERT_OK_AND_ASSIGN(auto store, Open());
      EXPECT_THAT(store->notes(), IsEmpty());
      EXPECT_OK(CheckSpilled(*store, SpillId(1), old_image_));
      const auto records = store->List();
      EXPECT_EQ(FilesIn(dir_ + "/images"), records.size());
      ASSERT_LE(records.size(), 2u);
      if (records.size() == 1) continue;
      ++whole;
      EXPECT_OK(CheckSpilled(*store, records[1].id, new_image_));
    }
  }
  EXPECT_GE(kills, 6u);
  EXPECT_EQ(whole, 3u);  // After the rename; before and after its sync.
}

TEST_F(DirCallsTest, KilledAtAnyCallOfARemovalLeavesTheImageOrNothing) {
  size_t kills = 0;
  for (const Fault fault : {Fault::kKillsBefore, Fault::kKillsAfter}) {
    for (size_t at = 1;; ++at) {
      SCOPED_TRACE(at);
      MakeStore();
      if (!RunAndKill(at, fault, [](SpillStore& store) {
            RemoveAndWait(store, SpillId(1)).IgnoreError();
          })) {
        break;
      }
      ++kills;
      ASSERT_OK_AND_ASSIGN(auto store, Open());
      EXPECT_THAT(store->notes(), IsEmpty());
      if (at == 1 && fault == Fault::kKillsBefore) {
        EXPECT_OK(CheckSpilled(*store, SpillId(1), old_image_));
      } else {
        EXPECT_THAT(store->List(), IsEmpty());
        EXPECT_EQ(FilesIn(dir_ + "/images"), 0u);
      }
    }
  }
  EXPECT_EQ(kills, 8u);
}

TEST_F(DirCallsTest, KilledWhileAnImageGoesToQuarantineItIsRefused) {
  size_t kills = 0;
  for (const bool removed : {false, true}) {
    for (const Fault fault : {Fault::kKillsBefore, Fault::kKillsAfter}) {
      for (size_t at = 1;; ++at) {
        SCOPED_TRACE(at);
        MakeDamagedStore();
        if (!RunAndKill(at, fault, [&](SpillStore& store) {
              CheckSpilled(store, SpillId(1), old_image_).IgnoreError();
              if (removed) RemoveAndWait(store, SpillId(1)).IgnoreError();
            })) {
          break;
        }
        ++kills;
        ASSERT_OK_AND_ASSIGN(auto store, Open());
        if (removed && store->List().empty()) {
          EXPECT_EQ(FilesIn(dir_ + "/quarantine"), 0u);
          continue;
        }
        ASSERT_THAT(store->List(), SizeIs(1));
        EXPECT_THAT(store->List()[0].quarantined,
                    ::testing::HasSubstr("block"));
        EXPECT_THAT(CheckSpilled(*store, SpillId(1), old_image_),
                    StatusIs(absl::StatusCode::kDataLoss));
        EXPECT_TRUE(std::filesystem::exists(Path(SpillId(1), "quarantine")));
      }
    }
  }
  EXPECT_EQ(kills, 2u * (3 + 3 + 5));
}

TEST_F(DirCallsTest, KilledAtAnyCallOfTheRollItHasTheOldOrTheNew) {
  for (const Fault fault : {Fault::kKillsBefore, Fault::kKillsAfter}) {
    for (size_t at = 1;; ++at) {
      SCOPED_TRACE(at);
      MakeStore();
      {
        ASSERT_OK_AND_ASSIGN(auto store, Open());
        store->NoteModel(User(7), "m", 1);
        store->NoteModel(User(7), "n", 4);
      }
      if (!RunAndKill(at, fault, [](SpillStore& store) {
            store.NoteModel(User(7), "m", 2);
            store.NoteModel(User(7), "n", 0);
            RemoveAndWait(store, SpillId(9)).IgnoreError();  // Behind them.
          })) {
        EXPECT_EQ(at, 6u);
        break;
      }
      ASSERT_OK_AND_ASSIGN(auto store, Open());
      EXPECT_THAT(store->notes(), IsEmpty());
      const ModelRoll::Models& models = store->models();
      const bool after = fault == Fault::kKillsAfter;
      EXPECT_EQ(models.at({User(7), "m"}),
                at > 2 || (at == 2 && after) ? 2 : 1);
      EXPECT_EQ(models.contains({User(7), "n"}), at < 4 || (at == 4 && !after));
    }
  }
}

}  // namespace hoistd::dir_calls_test
