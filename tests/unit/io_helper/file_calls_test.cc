#include "daemon/io_helper/file_calls.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "daemon/io_helper/parked_file.h"
#include "daemon/io_helper/receive_call.h"
#include "gmock/gmock.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/io_helper/io_helper_fixture.h"

namespace hoistd::file_calls_test {

using ::hoistd::testing::IoHelperFixture;
using ::hoistd::testing::IsOk;
using ::hoistd::testing::StatusIs;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::string Pattern(uint64_t bytes) {
  std::string text(bytes, '\0');
  for (uint64_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>(i * 31 + i / 4099);
  }
  return text;
}

// A file on disk, opened and parked as if its file system might hang.
class FileCallsTest : public IoHelperFixture {
 protected:
  void SetUp() override {
    IoHelperFixture::SetUp();
    const std::string path = dir_ / "file";
    file_ =
        hoist::UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(pwrite(file_.get(), bytes_.data(), bytes_.size(), 0),
              static_cast<ssize_t>(bytes_.size()));
    const auto own = SourceFile::Open(
        hoist::UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC)), "file", {});
    ASSERT_THAT(own, IsOk());
    absl::StatusOr<hoist::UniqueFd> parked = Park(own->io().fd);
    ASSERT_THAT(parked, IsOk());
    parked_.emplace(SourceFile::Parked(*std::move(parked), "file",
                                       own->identity(), User(1)));
  }

  absl::Status Read(std::vector<ReadRequest> requests) {
    absl::Status status;
    Do([&](absl::StatusOr<IoHelper*> run) {
      status = ReadByHelper(**run, *parked_, std::move(requests));
    });
    return status;
  }

  testing::TempDir dir_;
  const std::string bytes_ = Pattern(21 * kMiB + 17);
  hoist::UniqueFd file_;
  std::optional<SourceFile> parked_;
};

TEST_F(FileCallsTest, AParkedFileCanBeTakenOutAgainAndAgain) {
  EXPECT_TRUE(IsParked(parked_->parked()));
  EXPECT_FALSE(IsParked(file_.get()));
  for (int i = 0; i < 3; ++i) {
    absl::StatusOr<hoist::UniqueFd> out = Unpark(parked_->parked());
    ASSERT_THAT(out, IsOk());
    struct stat was = {}, is = {};
    ASSERT_EQ(fstat(file_.get(), &was), 0);
    ASSERT_EQ(fstat(out->get(), &is), 0);
    EXPECT_EQ(was.st_ino, is.st_ino);
  }
}

TEST_F(FileCallsTest, MemoryIsLocalAndProcIsNot) {
  const hoist::UniqueFd memory(memfd_create("test", MFD_CLOEXEC));
  const hoist::UniqueFd proc(open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(IsLocal(memory.get()));
  EXPECT_FALSE(IsLocal(proc.get()));
}

TEST_F(FileCallsTest, BytesComeToTheirPlaces) {
  std::string head(5, '.'), whole(bytes_.size() - 1000, '.');
  std::vector<ReadRequest> requests(2);
  requests[0].offset = 3;
  requests[0].into = {{reinterpret_cast<std::byte*>(head.data()), 2},
                      {nullptr, 10},
                      {reinterpret_cast<std::byte*>(head.data()) + 2, 3}};
  requests[1].offset = 1000;
  requests[1].into = {
      {reinterpret_cast<std::byte*>(whole.data()), whole.size()}};
  ASSERT_THAT(Read(std::move(requests)), IsOk());
  EXPECT_EQ(head, bytes_.substr(3, 2) + bytes_.substr(15, 3));
  EXPECT_TRUE(whole == bytes_.substr(1000));
}

TEST_F(FileCallsTest, AFileThatChangedIsRefused) {
  ASSERT_EQ(ftruncate(file_.get(), 1000), 0);
  std::string text(2000, '.');
  std::vector<ReadRequest> requests(1);
  requests[0].into = {{reinterpret_cast<std::byte*>(text.data()), 2000}};
  EXPECT_THAT(Read(std::move(requests)),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("register the model again")));
}

TEST_F(FileCallsTest, APrefixIsReadAndBoundedByTheFile) {
  Do([&](absl::StatusOr<IoHelper*> run) {
    auto text = ReadPrefixByHelper(**run, *parked_, 7, 100'000);
    ASSERT_THAT(text, IsOk());
    EXPECT_TRUE(*text == bytes_.substr(7, 100'000));
    EXPECT_THAT(ReadPrefixByHelper(**run, *parked_, 1, bytes_.size()),
                StatusIs(absl::StatusCode::kDataLoss));
  });
}

TEST_F(FileCallsTest, ALocalFileIsTakenOutAndAnotherStaysParked) {
  const hoist::UniqueFd memory(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), 4096), 0);
  const hoist::UniqueFd proc(open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  Do([&](absl::StatusOr<IoHelper*> run) {
    auto local = OpenByHelper(**run, User(7), *Park(memory.get()), "m", {});
    ASSERT_THAT(local, IsOk());
    EXPECT_FALSE(local->parked_for().has_value());
    EXPECT_EQ(local->bytes(), 4096u);
    auto other = OpenByHelper(**run, User(7), *Park(proc.get()), "p", {});
    ASSERT_THAT(other, IsOk());
    EXPECT_EQ(other->parked_for(), User(7));
    EXPECT_EQ(other->name(), "p");
  });
}

TEST_F(FileCallsTest, WhatCannotBeReadIsRefusedByTheHelperToo) {
  const hoist::UniqueFd sink(
      open((dir_ / "file").c_str(), O_WRONLY | O_CLOEXEC));
  Do([&](absl::StatusOr<IoHelper*> run) {
    auto opened = OpenByHelper(**run, User(7), *Park(sink.get()), "sink",
                               {.mode = ReadMode::kBuffered});
    EXPECT_THAT(opened, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("not open for reading")));
  });
}

class ReceiveTest : public IoHelperFixture {
 protected:
  void SetUp() override {
    IoHelperFixture::SetUp();
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK,
                         0, ends),
              0);
    client_ = hoist::UniqueFd(ends[0]);
    server_ = hoist::UniqueFd(ends[1]);
  }

  absl::StatusOr<std::optional<hoist::Packet>> Receive() {
    absl::StatusOr<std::optional<hoist::Packet>> got;
    Do([&](absl::StatusOr<IoHelper*> run) {
      got = ReceiveByHelper(**run, server_.get(), hoist::kMaxBody);
    });
    return got;
  }

  hoist::UniqueFd client_, server_;
};

TEST_F(ReceiveTest, OnlyMemoryComesAsItIs) {
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const hoist::UniqueFd read(pipe_ends[0]), write(pipe_ends[1]);
  const hoist::UniqueFd memory(memfd_create("test", MFD_CLOEXEC));
  const hoist::UniqueFd proc(open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  const int fds[] = {memory.get(), read.get(), proc.get(), client_.get()};
  ASSERT_TRUE(hoist::SendPacket(client_.get(), "hello", fds).ok());
  auto got = Receive();
  ASSERT_THAT(got, IsOk());
  ASSERT_TRUE(got->has_value());
  const hoist::Packet& packet = **got;
  EXPECT_EQ(packet.body, "hello");
  ASSERT_EQ(packet.fds.size(), 4u);
  EXPECT_GE(fcntl(packet.fds[0].get(), F_GET_SEALS), 0);
  EXPECT_TRUE(IsParked(packet.fds[2].get()));
  // Neither a pipe nor a client's own socket gets here.
  for (const size_t other : {1, 3}) {
    EXPECT_FALSE(IsParked(packet.fds[other].get()));
    struct stat info = {};
    ASSERT_EQ(fstat(packet.fds[other].get(), &info), 0);
    EXPECT_FALSE(S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode));
  }
}

TEST_F(ReceiveTest, ALargeBodyComesSealed) {
  const std::string body = Pattern(kMiB);
  const int fd = client_.get();
  ASSERT_TRUE(hoist::SendPacket(client_.get(), body, {&fd, 1}).ok());
  auto got = Receive();
  ASSERT_THAT(got, IsOk());
  ASSERT_TRUE(got->has_value() && (*got)->sealed.has_value());
  EXPECT_EQ((*got)->fds.size(), 1u);
  EXPECT_TRUE(hoist::ReadSealedBody(*(*got)->sealed).value() == body);
}

TEST_F(ReceiveTest, NothingGarbageAndTheEndAreToldApart) {
  auto nothing = Receive();
  ASSERT_THAT(nothing, IsOk());
  EXPECT_FALSE(nothing->has_value());
  ASSERT_EQ(send(client_.get(), "garbage", 7, 0), 7);
  EXPECT_THAT(Receive(), StatusIs(absl::StatusCode::kInvalidArgument));
  client_.reset();
  EXPECT_THAT(Receive(), StatusIs(absl::StatusCode::kCancelled));
}

}  // namespace hoistd::file_calls_test
