#include "daemon/io/source_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "daemon/io/create_io_engine.h"
#include "daemon/io/direct_probe.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/io_wait.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/until.h"

namespace hoistd::source_file_test {

using ::hoistd::testing::ReadAndWait;
using ::hoistd::testing::StatusIs;
using ::testing::HasSubstr;

class SourceFileTest : public ::testing::Test {
 protected:
  SourceFileTest() {
    for (size_t i = 0; i < text_.size(); ++i) {
      text_[i] = static_cast<char>(i * 131 >> 3);
    }
    const hoist::UniqueFd fd = OpenFd(O_RDWR | O_CREAT);
    EXPECT_EQ(write(fd.get(), text_.data(), text_.size()),
              static_cast<ssize_t>(text_.size()));
    EXPECT_EQ(fsync(fd.get()), 0);
  }
  hoist::UniqueFd OpenFd(int flags) {
    return hoist::UniqueFd(open(path_.c_str(), flags | O_CLOEXEC, 0600));
  }
  absl::StatusOr<SourceFile> Open(SourceFileOptions options = {}) {
    return SourceFile::Open(OpenFd(O_RDONLY), "model.safetensors", options);
  }
  // Pages in the page cache, by mincore.
  size_t CachedPages() {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const hoist::UniqueFd fd = OpenFd(O_RDONLY);
    void* at = mmap(nullptr, text_.size(), PROT_READ, MAP_SHARED, fd.get(), 0);
    if (at == MAP_FAILED) return text_.size() / page;
    std::vector<unsigned char> pages((text_.size() + page - 1) / page);
    EXPECT_EQ(mincore(at, text_.size(), pages.data()), 0);
    munmap(at, text_.size());
    return static_cast<size_t>(
        std::count_if(pages.begin(), pages.end(),
                      [](unsigned char in) { return (in & 1) != 0; }));
  }
  // The kernel keeps a page that something looks at just then: asked again.
  void DropCache() {
    const hoist::UniqueFd fd = OpenFd(O_RDONLY);
    ASSERT_TRUE(testing::Until([&] {
      posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
      return CachedPages() == 0;
    }));
  }
  bool HasDirect() {
    const hoist::UniqueFd fd = OpenFd(O_RDONLY);
    return !IsBufferedFileSystem(fd.get()) &&
           OpenDirect(fd.get(), O_RDONLY).ok();
  }

  testing::TempDir dir_;
  std::string path_ = dir_ / "file";
  std::string text_ = std::string((4 << 20) + 77, ' ');
};

TEST_F(SourceFileTest, IdentityIsWhatFstatSays) {
  struct stat st = {};
  ASSERT_EQ(stat(path_.c_str(), &st), 0);
  ASSERT_OK_AND_ASSIGN(const SourceFile file, Open());
  EXPECT_EQ(file.identity().inode, st.st_ino);
  EXPECT_EQ(file.identity().device, st.st_dev);
  EXPECT_EQ(file.bytes(), text_.size());
  EXPECT_EQ(file.identity().mtime_ns,
            st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec);
  EXPECT_EQ(file.identity().header_hash, Fingerprint{});
  EXPECT_EQ(file.name(), "model.safetensors");
}

TEST_F(SourceFileTest, WhatIsNoFileOpenForReadingIsRefused) {
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("x.safetensors"));
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  hoist::UniqueFd other(sockets[1]);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  hoist::UniqueFd write_end(pipes[1]);
  std::vector<hoist::UniqueFd> fds;
  fds.push_back(OpenFd(O_WRONLY));
  fds.push_back(OpenFd(O_PATH));
  fds.emplace_back(open(dir_.path().c_str(), O_RDONLY));
  fds.emplace_back(open("/dev/zero", O_RDONLY));
  fds.emplace_back(sockets[0]);
  fds.emplace_back(pipes[0]);
  fds.emplace_back(-1);
  for (hoist::UniqueFd& fd : fds) {
    EXPECT_THAT(SourceFile::Open(std::move(fd), "x.safetensors", {}), refused);
  }
}

TEST_F(SourceFileTest, AFileInThePageCacheIsReadBuffered) {
  ASSERT_OK_AND_ASSIGN(const SourceFile file, Open());
  ASSERT_OK(file.ReadPrefix(0, text_.size()));
  ASSERT_OK_AND_ASSIGN(const SourceFile again, Open());
  EXPECT_FALSE(again.direct());
  EXPECT_EQ(again.io().direct_fd, -1);
}

TEST_F(SourceFileTest, AColdFileIsReadDirect) {
  if (!HasDirect()) GTEST_SKIP() << "no direct I/O in " << dir_.path();
  DropCache();
  ASSERT_OK_AND_ASSIGN(const SourceFile file, Open());
  EXPECT_TRUE(file.direct());
  EXPECT_NE(fcntl(file.io().direct_fd, F_GETFL) & O_DIRECT, 0);
}

TEST_F(SourceFileTest, AskingAboutTheCacheDoesNotFillIt) {
  if (!HasDirect()) GTEST_SKIP() << "no direct I/O in " << dir_.path();
  DropCache();
  const hoist::UniqueFd fd = OpenFd(O_RDONLY);
  EXPECT_EQ(CachedShare(fd.get(), text_.size()), 0);
  EXPECT_EQ(CachedPages(), 0u);
}

TEST_F(SourceFileTest, WhoMayNotAskTheKernelReadsWithoutWaiting) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  const hoist::UniqueFd fd = OpenFd(O_RDONLY);
  ASSERT_OK_AND_ASSIGN(const SourceFile file, Open());
  ASSERT_OK(file.ReadPrefix(0, text_.size()));
  ASSERT_EQ(seteuid(65534), 0);
  const double cached = CachedShare(fd.get(), text_.size());
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_EQ(cached, 1);
}

TEST_F(SourceFileTest, TheModeCanBeConfigured) {
  ASSERT_OK_AND_ASSIGN(const SourceFile buffered,
                       Open({.mode = ReadMode::kBuffered}));
  EXPECT_FALSE(buffered.direct());
  if (!HasDirect()) GTEST_SKIP() << "no direct I/O in " << dir_.path();
  ASSERT_OK_AND_ASSIGN(const SourceFile direct,
                       Open({.mode = ReadMode::kDirect}));
  EXPECT_TRUE(direct.direct());
}

TEST_F(SourceFileTest, AFileInMemoryIsReadBuffered) {
  hoist::UniqueFd fd(memfd_create("model", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(fd.get(), 10'000), 0);
  ASSERT_OK_AND_ASSIGN(const SourceFile file,
                       SourceFile::Open(std::move(fd), "model", {}));
  EXPECT_FALSE(file.direct());
}

TEST_F(SourceFileTest, EitherModeReadsTheSameBytes) {
  ASSERT_OK_AND_ASSIGN(auto engine, CreateIoEngine({}));
  for (const ReadMode mode : {ReadMode::kDirect, ReadMode::kBuffered}) {
    if (mode == ReadMode::kDirect && !HasDirect()) continue;
    ASSERT_OK_AND_ASSIGN(const SourceFile file, Open({.mode = mode}));
    std::string back(text_.size() - 9, ' ');
    ASSERT_OK(ReadAndWait(
        *engine, {file.io(),
                  9,
                  {{reinterpret_cast<std::byte*>(back.data()), back.size()}}}));
    EXPECT_TRUE(back == text_.substr(9));
  }
}

TEST_F(SourceFileTest, WhatTheClientDoesToItsDescriptionDoesNotMatter) {
  hoist::UniqueFd fd = OpenFd(O_RDONLY);
  const hoist::UniqueFd clients(dup(fd.get()));
  ASSERT_OK_AND_ASSIGN(
      const SourceFile file,
      SourceFile::Open(std::move(fd), "f", {.mode = ReadMode::kBuffered}));
  ASSERT_EQ(lseek(clients.get(), 0, SEEK_END),
            static_cast<off_t>(text_.size()));
  // Refused where the file system has no direct I/O; then nothing changes.
  fcntl(clients.get(), F_SETFL, O_DIRECT);
  ASSERT_OK_AND_ASSIGN(const std::string prefix, file.ReadPrefix(3, 100));
  EXPECT_EQ(prefix, text_.substr(3, 100));
}

// Runs in a child, as a user who may not open the file.
int ReadAsNobody(hoist::UniqueFd fd, const std::string& text) {
  if (seteuid(65534) != 0) return 2;
  auto file = SourceFile::Open(std::move(fd), "f", {});
  if (!file.ok() || file->direct()) return 3;
  const auto prefix = file->ReadPrefix(5, 100);
  return prefix.ok() && *prefix == text.substr(5, 100) ? 0 : 4;
}

TEST_F(SourceFileTest, AFileThatOnlyTheClientMayOpenIsReadBuffered) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  EXPECT_EXIT(_exit(ReadAsNobody(OpenFd(O_RDONLY), text_)),
              ::testing::ExitedWithCode(0), "");
  // With O_DIRECT on it, unaligned reads could not be made.
  if (HasDirect()) {
    EXPECT_EXIT(_exit(ReadAsNobody(OpenFd(O_RDONLY | O_DIRECT), text_)),
                ::testing::ExitedWithCode(3), "");
  }
}

TEST_F(SourceFileTest, AnUnchangedFileIsUnchanged) {
  ASSERT_OK_AND_ASSIGN(const SourceFile file, Open());
  EXPECT_OK(file.CheckUnchanged());
  ASSERT_OK(file.ReadPrefix(0, 4096));
  EXPECT_OK(file.CheckUnchanged());
}

TEST_F(SourceFileTest, AnyChangeIsDataLoss) {
  const auto changed =
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("changed since"));
  ASSERT_OK_AND_ASSIGN(const SourceFile file, Open());
  ASSERT_EQ(truncate(path_.c_str(), 100), 0);
  EXPECT_THAT(file.CheckUnchanged(), changed);
  EXPECT_THAT(file.ReadPrefix(50, 100),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("byte 100")));

  ASSERT_OK_AND_ASSIGN(const SourceFile again, Open());
  const hoist::UniqueFd fd = OpenFd(O_RDWR);
  // As when somebody restores the old time after writing.
  const timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
  ASSERT_EQ(futimens(fd.get(), old), 0);
  EXPECT_THAT(again.CheckUnchanged(), changed);
}

TEST_F(SourceFileTest, APrefixPastTheEndIsDataLoss) {
  ASSERT_OK_AND_ASSIGN(const SourceFile file, Open());
  EXPECT_OK(file.ReadPrefix(text_.size(), 0));
  for (const auto& [offset, bytes] :
       {std::pair<uint64_t, uint64_t>(text_.size(), 1),
        {text_.size() + 1, 0},
        {~uint64_t{0}, 2},
        {2, ~uint64_t{0}}}) {
    EXPECT_THAT(file.ReadPrefix(offset, bytes),
                StatusIs(absl::StatusCode::kDataLoss));
  }
}

}  // namespace hoistd::source_file_test
