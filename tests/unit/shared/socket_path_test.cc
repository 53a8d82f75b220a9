#include "hoist/shared/socket_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace hoist::socket_path_test {

using ::hoistd::testing::TempDir;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class SocketPath : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("HOIST_SOCKET");
    setenv("XDG_RUNTIME_DIR", runtime_.path().c_str(), 1);
  }
  void TearDown() override {
    unsetenv("HOIST_SOCKET");
    unsetenv("XDG_RUNTIME_DIR");
  }

  const TempDir runtime_;
  const std::string folder_ = runtime_ / "hoist";
  const std::string mine_ = folder_ + "/hoistd.sock";
};

TEST_F(SocketPath, TheVariableAloneIsTried) {
  setenv("HOIST_SOCKET", "/somewhere/a.sock", 1);
  EXPECT_THAT(SessionSocketsToTry(), ElementsAre("/somewhere/a.sock"));
  setenv("HOIST_SOCKET", "", 1);
  EXPECT_EQ(SessionSocketsToTry().back(), kDefaultSocketPath);
}

TEST_F(SocketPath, AUsersOwnGoesBeforeTheNodes) {
  EXPECT_THAT(SessionSocketsToTry(), Not(Contains(mine_)));
  const Result<std::string> made = MakeUserSocketFolder();
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(made.value(), folder_);
  struct stat info;
  ASSERT_EQ(stat(folder_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_EQ(SessionSocketsToTry().front(), mine_);
  EXPECT_EQ(SessionSocketsToTry().back(), kDefaultSocketPath);
  EXPECT_TRUE(MakeUserSocketFolder().ok());  // As it is there already.
}

TEST_F(SocketPath, AFolderThatOthersCouldChangeIsNoUsersOwn) {
  ASSERT_EQ(mkdir(folder_.c_str(), 0700), 0);
  ASSERT_EQ(chmod(folder_.c_str(), 0770), 0);
  EXPECT_THAT(SessionSocketsToTry(), Not(Contains(mine_)));
  const Status refused = MakeUserSocketFolder().status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("open to other users"));
}

TEST_F(SocketPath, ALinkIsNoUsersOwn) {
  ASSERT_EQ(mkdir((runtime_ / "elsewhere").c_str(), 0700), 0);
  ASSERT_EQ(symlink("elsewhere", folder_.c_str()), 0);
  EXPECT_THAT(SessionSocketsToTry(), Not(Contains(mine_)));
  EXPECT_THAT(MakeUserSocketFolder().status().message(),
              HasSubstr("is not a folder"));
}

TEST_F(SocketPath, AnotherUsersFolderIsRefusedAndNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  ASSERT_EQ(mkdir(folder_.c_str(), 0700), 0);
  ASSERT_EQ(chown(folder_.c_str(), 4711, 4711), 0);
  EXPECT_THAT(SessionSocketsToTry(), Not(Contains(mine_)));
  EXPECT_THAT(MakeUserSocketFolder().status().message(), HasSubstr("4711"));
}

TEST_F(SocketPath, ARuntimeFolderThatOthersWriteToIsLeftAlone) {
  ASSERT_EQ(mkdir(folder_.c_str(), 0700), 0);
  ASSERT_EQ(chmod(runtime_.path().c_str(), 0777), 0);
  EXPECT_THAT(SessionSocketsToTry(), Not(Contains(mine_)));
}

TEST(GrpcSocket, LiesBesideTheSessions) {
  EXPECT_EQ(GrpcSocketBeside(kDefaultSocketPath),
            "/run/hoist/hoistd.grpc.sock");
  EXPECT_EQ(GrpcSocketBeside("/a/b"), "/a/b.grpc.sock");
}

}  // namespace hoist::socket_path_test
