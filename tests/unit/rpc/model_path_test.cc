#include "daemon/rpc/model_path.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/rpc/rpc_fixture.h"

namespace hoistd::model_path_test {

using ::hoistd::testing::StatusIs;
using ::hoistd::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class ModelPathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(root_ + "/m");
    fs::create_directories(dir_.path() + "/outside");
    Write(root_ + "/m/b.safetensors", "second");
    Write(root_ + "/m/a.safetensors", "first");
    Write(root_ + "/m/config.json", "{}");
    Write(dir_.path() + "/outside/secret.safetensors", "secret");
  }

  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
  }
  static std::string Read(const OpenFile& file) {
    char bytes[64] = {};
    return pread(file.fd.get(), bytes, sizeof(bytes) - 1, 0) < 0 ? "" : bytes;
  }
  absl::StatusOr<ModelFiles> Open(const std::string& path) const {
    return OpenModelPath({root_}, path);
  }

  TempDir dir_;
  const std::string root_ = dir_.path() + "/root";
};

TEST_F(ModelPathTest, FolderGivesItsShardsByNameAndItsIndex) {
  Write(root_ + "/m/model.safetensors.index.json", "{\"i\":1}");
  ASSERT_OK_AND_ASSIGN(const ModelFiles files, Open(root_ + "/m/"));
  EXPECT_EQ(files.name, "m");
  ASSERT_EQ(files.shards.size(), 2u);
  EXPECT_EQ(files.shards[0].name, "a.safetensors");
  EXPECT_EQ(Read(files.shards[0]), "first");
  EXPECT_EQ(Read(files.shards[1]), "second");
  ASSERT_TRUE(files.index.has_value());
  EXPECT_EQ(Read(*files.index), "{\"i\":1}");
  const int flags = fcntl(files.shards[0].fd.get(), F_GETFL);
  EXPECT_EQ(flags & (O_ACCMODE | O_PATH), O_RDONLY);
}

TEST_F(ModelPathTest, FileIsAModelOfOneShard) {
  ASSERT_OK_AND_ASSIGN(const ModelFiles files,
                       Open(root_ + "/m/a.safetensors"));
  EXPECT_EQ(files.name, "a");
  ASSERT_EQ(files.shards.size(), 1u);
  EXPECT_EQ(files.shards[0].name, "a.safetensors");
  EXPECT_FALSE(files.index.has_value());
}

TEST_F(ModelPathTest, GgufFilesAreModelsToo) {
  fs::create_directories(root_ + "/g");
  Write(root_ + "/g/m-00001-of-00002.gguf", "first");
  EXPECT_THAT(Open(root_ + "/g/m-00001-of-00002.gguf"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("m-00002-of-00002.gguf")));
  Write(root_ + "/g/m-00002-of-00002.gguf", "second");
  for (const std::string path : {"/g", "/g/m-00002-of-00002.gguf"}) {
    ASSERT_OK_AND_ASSIGN(const ModelFiles files, Open(root_ + path));
    EXPECT_EQ(files.name, path == "/g" ? "g" : "m");
    ASSERT_EQ(files.shards.size(), 2u);
    EXPECT_EQ(files.shards[1].name, "m-00002-of-00002.gguf");
    EXPECT_EQ(Read(files.shards[0]), "first");
    EXPECT_EQ(Read(files.shards[1]), "second");
  }
  Write(root_ + "/g/q8.gguf", "alone");
  ASSERT_OK_AND_ASSIGN(const ModelFiles one, Open(root_ + "/g/q8.gguf"));
  EXPECT_EQ(one.name, "q8");
  EXPECT_EQ(one.shards.size(), 1u);
}

TEST_F(ModelPathTest, NoRootsSayHowToSetThem) {
  EXPECT_THAT(
      OpenModelPath({}, root_ + "/m"),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("models.roots"), HasSubstr("hoistd.toml"))));
}

TEST_F(ModelPathTest, PathsOutsideAreDeniedAndNameTheRoots) {
  for (const std::string& path :
       {dir_.path() + "/outside", std::string("/etc/passwd"), root_ + "x/m",
        root_ + "/../outside", root_ + "/m/../../outside/secret.safetensors"}) {
    EXPECT_THAT(Open(path), StatusIs(kDenied, AllOf(HasSubstr(root_),
                                                    HasSubstr("models.roots"))))
        << path;
  }
}

TEST_F(ModelPathTest, DotDotThatStaysBelowIsFine) {
  EXPECT_OK(Open(root_ + "/m/../m/a.safetensors"));
}

TEST_F(ModelPathTest, SymlinksMayNotLeadOut) {
  fs::create_directory_symlink("../outside", root_ + "/folder");
  fs::create_symlink(dir_.path() + "/outside/secret.safetensors",
                     root_ + "/file.safetensors");
  fs::create_directories(root_ + "/n");
  fs::create_symlink("../../outside/secret.safetensors",
                     root_ + "/n/x.safetensors");
  fs::create_directory_symlink("/proc/self/root", root_ + "/magic");
  EXPECT_THAT(Open(root_ + "/folder"), StatusIs(kDenied));
  EXPECT_THAT(Open(root_ + "/file.safetensors"), StatusIs(kDenied));
  EXPECT_THAT(Open(root_ + "/n"), StatusIs(kDenied));
  EXPECT_THAT(Open(root_ + "/magic"), StatusIs(kDenied));
}

TEST_F(ModelPathTest, SymlinksThatStayBelowAreFollowed) {
  // As Hugging Face's cache has them.
  fs::create_directories(root_ + "/snapshots/1");
  fs::create_symlink("../../m/a.safetensors",
                     root_ + "/snapshots/1/model.safetensors");
  ASSERT_OK_AND_ASSIGN(const ModelFiles files, Open(root_ + "/snapshots/1"));
  EXPECT_EQ(Read(files.shards[0]), "first");
}

TEST_F(ModelPathTest, OnlyRegularFilesAreOpened) {
  // A FIFO opened for reading would wait for a writer for ever.
  ASSERT_EQ(mkfifo((root_ + "/m/c.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(Open(root_ + "/m"),
              StatusIs(kInvalid, HasSubstr("not a regular file")));
  EXPECT_THAT(Open(root_ + "/m/c.safetensors"), StatusIs(kInvalid));
  fs::create_directories(root_ + "/d/x.safetensors");
  EXPECT_THAT(Open(root_ + "/d"), StatusIs(kInvalid));
}

TEST_F(ModelPathTest, WhatIsNoModelIsSaidPlainly) {
  EXPECT_THAT(Open(root_), StatusIs(kInvalid, HasSubstr("*.safetensors")));
  EXPECT_THAT(Open(root_ + "/m/config.json"), StatusIs(kInvalid));
  EXPECT_THAT(Open(root_ + "/missing"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Open("m"), StatusIs(kInvalid, HasSubstr("absolute")));
  EXPECT_THAT(Open(""), StatusIs(kInvalid));
  EXPECT_THAT(Open(root_ + std::string("/m\0x", 4)), StatusIs(kInvalid));
}

// A filter under which openat2 does not exist, as in some containers. It stays
// for the process's life.
bool ForbidOpenat2() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {std::size(code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(ModelPathTest, WithoutOpenat2NoSymlinkIsFollowed) {
  fs::create_symlink("m", root_ + "/link");
  const pid_t child = fork();
  if (child == 0) {
    if (!ForbidOpenat2()) _exit(77);
    const absl::StatusOr<ModelFiles> folder = Open(root_ + "/m");
    const absl::StatusOr<ModelFiles> file = Open(root_ + "/m/a.safetensors");
    if (!folder.ok() || folder->shards.size() != 2) _exit(1);
    if (!file.ok() || Read(file->shards[0]) != "first") _exit(2);
    if (Open(root_ + "/link").status().code() != kDenied) _exit(3);
    if (Open(root_ + "/m/../m").status().code() != kDenied) _exit(4);
    if (!absl::IsNotFound(Open(root_ + "/missing").status())) _exit(5);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(ModelPathTest, RootThatIsTheWholeDiskWorks) {
  EXPECT_OK(OpenModelPath({"/"}, root_ + "/m"));
}

}  // namespace hoistd::model_path_test
