// A disk without one free byte, as ext4 and as tmpfs, in a mount namespace of
// our own: what is spilled there can be had, and removed.
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/spill_fixture.h"

namespace hoistd::full_disk_test {

using ::hoistd::testing::CheckSpilled;
using ::hoistd::testing::FilesIn;
using ::hoistd::testing::PutAndWait;
using ::hoistd::testing::RemoveAndWait;
using ::hoistd::testing::SameImage;
using ::hoistd::testing::SpillImage;
using ::hoistd::testing::SpillTest;
using ::hoistd::testing::StatusIs;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FullDiskTest : public SpillTest,
                     public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    // The mount point; the store makes its folder below it.
    disk_ = top_ / "disk";
    std::filesystem::create_directory(disk_);
    dir_ = disk_ + "/spill";
    // Threads that exist already stay in the old namespace: use new ones.
    io_.reset();
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        !Mount()) {
      GTEST_SKIP() << "may not mount a small " << GetParam();
    }
    mounted_ = true;
    io_ = *CreateIoEngine({.bounce_bytes = uint64_t{4} << 20});
  }
  void TearDown() override {
    if (mounted_) umount2(disk_.c_str(), MNT_DETACH);
  }
  bool Mount() {
    if (std::string(GetParam()) == "tmpfs") {
      return mount("hoist", disk_.c_str(), "tmpfs", 0, "size=16m") == 0;
    }
    const std::string file = top_ / "disk.ext4";
    const std::string command =
        absl::StrCat("truncate -s 16M ", file, " && mkfs.ext4 -q -F -m 0 ",
                     file, " && mount -o loop ", file, " ", disk_, " 2>&1");
    return system(command.c_str()) == 0;
  }

  // Takes every byte that there is, and says that there is none.
  void Fill() {
    const int fd = open((disk_ + "/filler").c_str(),
                        O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    for (size_t piece = 1 << 20; piece > 0; piece /= 2) {
      const std::string bytes(piece, 'x');
      while (write(fd, bytes.data(), bytes.size()) > 0) {
      }
    }
    ASSERT_EQ(errno, ENOSPC);
    fsync(fd);  // ext4 counts delayed blocks only now.
    while (write(fd, "x", 1) > 0) {
    }
    close(fd);
    struct statvfs fs = {};
    ASSERT_EQ(statvfs(disk_.c_str(), &fs), 0);
    ASSERT_EQ(fs.f_bavail, 0u);
  }

  void PutAll(SpillStore& store, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      images_.emplace_back(100 + i, i + 1);
      ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(store, images_[i]));
      ids_.push_back(id);
    }
    before_ = store.List();
  }
  void MakeStore(size_t count) {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    PutAll(*store, count);
  }
  void ExpectAll(SpillStore& store) {
    const auto now = store.List();
    ASSERT_THAT(now, SizeIs(before_.size()));
    for (size_t i = 0; i < now.size(); ++i) {
      EXPECT_TRUE(SameImage(now[i], before_[i]));
      EXPECT_EQ(now[i].quarantined, "");
      EXPECT_OK(CheckSpilled(store, ids_[i], images_[i]));
    }
  }
  void RemoveFirst(SpillStore& store) {
    ASSERT_OK(RemoveAndWait(store, ids_[0]));
    ids_.erase(ids_.begin());
    images_.erase(images_.begin());
    before_.erase(before_.begin());
    EXPECT_THAT(store.List(), SizeIs(ids_.size()));
  }
  bool mounted_ = false;
  std::string disk_;
  std::vector<SpillImage> images_;
  std::vector<SpillId> ids_;
  std::vector<SpillRecord> before_;
};

TEST_P(FullDiskTest, IsOpenedListedReadAndEmptied) {
  MakeStore(4);
  Fill();
  {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    EXPECT_THAT(store->notes(), IsEmpty());
    ExpectAll(*store);
    EXPECT_THAT(PutAndWait(*store, images_[0]),
                StatusIs(absl::StatusCode::kResourceExhausted));
    ExpectAll(*store);
    RemoveFirst(*store);
    ExpectAll(*store);
  }
  Fill();
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->notes(), IsEmpty());
  ExpectAll(*store);
  while (!ids_.empty()) RemoveFirst(*store);
  EXPECT_EQ(FilesIn(dir_ + "/images"), 0u);
}

TEST_P(FullDiskTest, ThatFillsWhileItIsUsedIsReadAndEmptied) {
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  PutAll(*store, 4);
  while (!ids_.empty()) {
    Fill();
    ExpectAll(*store);
    RemoveFirst(*store);
  }
  store.reset();
  Fill();
  ASSERT_OK_AND_ASSIGN(store, Open());
  EXPECT_THAT(store->List(), IsEmpty());
  EXPECT_THAT(store->notes(), IsEmpty());
}

TEST_P(FullDiskTest, OfAKilledDaemonIsOpenedAndRead) {
  io_.reset();  // No thread of ours is alive across fork.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto io = CreateIoEngine({.bounce_bytes = uint64_t{4} << 20});
    auto store =
        SpillStore::Open({.dir = dir_, .capacity_bytes = kCapacity}, **io);
    for (uint64_t i = 0; store.ok() && i < 4; ++i) {
      if (!PutAndWait(**store, SpillImage(100 + i, i + 1)).ok()) _exit(1);
    }
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  io_ = *CreateIoEngine({.bounce_bytes = uint64_t{4} << 20});
  Fill();
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->notes(), IsEmpty());
  before_ = store->List();
  ASSERT_THAT(before_, SizeIs(4));
  for (uint64_t i = 0; i < 4; ++i) {
    images_.emplace_back(100 + i, i + 1);
    ids_.push_back(before_[i].id);
  }
  ExpectAll(*store);
  while (!ids_.empty()) RemoveFirst(*store);
}

TEST_P(FullDiskTest, QuarantinesWhatIsDamaged) {
  MakeStore(2);
  std::filesystem::resize_file(Path(ids_[0]), 4096 * 50);
  Fill();
  for (int start = 0; start < 2; ++start) {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ASSERT_THAT(store->List(), SizeIs(2));
    EXPECT_NE(store->List()[0].quarantined, "");
    EXPECT_OK(CheckSpilled(*store, ids_[1], images_[1]));
  }
}

// The roll of models changes where it can, and otherwise with the next.
TEST_P(FullDiskTest, TheRollOfModelsIsWrittenOnceThereIsRoom) {
  MakeStore(1);
  Fill();
  {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    for (uint32_t model = 0; model < 200; ++model) {
      store->NoteModel(User(7), absl::StrCat("m", model), 3);
    }
    ExpectAll(*store);
    std::filesystem::remove(disk_ + "/filler");
    store->NoteModel(User(7), "last", 1);
  }
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->models(), SizeIs(201));
  EXPECT_THAT(store->notes(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Disks, FullDiskTest,
                         ::testing::Values("tmpfs", "ext4"),
                         [](const auto& test) { return test.param; });

}  // namespace hoistd::full_disk_test
