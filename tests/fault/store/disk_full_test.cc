// A disk that is really full: a small tmpfs in a mount namespace of our own.
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/spill_fixture.h"

namespace hoistd::disk_full_test {

using ::hoistd::testing::CheckSpilled;
using ::hoistd::testing::FilesIn;
using ::hoistd::testing::PutAndWait;
using ::hoistd::testing::RemoveAndWait;
using ::hoistd::testing::SpillImage;
using ::hoistd::testing::SpillTest;
using ::hoistd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DiskFullTest : public SpillTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(dir_);
    // Threads that exist already stay in the old namespace: use new ones.
    io_.reset();
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("hoist", dir_.c_str(), "tmpfs", 0, "size=8m") != 0) {
      GTEST_SKIP() << "may not mount a small tmpfs: " << strerror(errno);
    }
    mounted_ = true;
    io_ = *CreateIoEngine({});
  }
  void TearDown() override {
    if (mounted_) umount2(dir_.c_str(), MNT_DETACH);
  }
  bool mounted_ = false;
};

TEST_F(DiskFullTest, IsRefusedWithNumbersAndNothingIsLeftBehind) {
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  const SpillImage small(1000);
  const SpillImage large(1500);
  ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, small));
  EXPECT_THAT(PutAndWait(*store, large),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("6148096"), HasSubstr("are free"))));
  EXPECT_EQ(FilesIn(dir_ + "/images"), 1u);
  EXPECT_EQ(store->usage().used_bytes, std::filesystem::file_size(Path(id)));
  EXPECT_OK(CheckSpilled(*store, id, small));
  ASSERT_OK(RemoveAndWait(*store, id));
  ASSERT_OK_AND_ASSIGN(const SpillId next, PutAndWait(*store, large));
  EXPECT_OK(CheckSpilled(*store, next, large));
}

}  // namespace hoistd::disk_full_test
