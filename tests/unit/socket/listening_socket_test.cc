#include "daemon/socket/listening_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "daemon/base/check.h"
#include "gtest/gtest.h"
#include "tests/support/raw_session.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace hoistd::testing::listening_socket_test {

using ::testing::HasSubstr;

// A socket bound to `path`, as a daemon that is not ours makes it.
hoist::UniqueFd Bind(const std::string& path, int type) {
  hoist::UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  HOIST_CHECK(bind(fd.get(), reinterpret_cast<sockaddr*>(&address),
                   sizeof(address)) == 0);
  return fd;
}

class ListeningSocketTest : public ::testing::Test {
 protected:
  TempDir dir_;
  SocketFileOptions options_{dir_ / "hoistd.sock", 0660, std::nullopt};
};

TEST_F(ListeningSocketTest, HasTheModeAndGroupThatWereAsked) {
  options_.mode = 0640;
  // Only root may give a file to a group it is not in.
  options_.group = geteuid() == 0 ? gid_t{54321} : getegid();
  const mode_t umask_before = umask(0777);
  const auto made = ListeningSocket::Create(options_);
  umask(umask_before);
  ASSERT_OK(made);
  struct stat info;
  ASSERT_EQ(stat(options_.path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
  EXPECT_EQ(info.st_gid, *options_.group);
}

TEST_F(ListeningSocketTest, ALiveOneIsRefusedAndGoesOn) {
  ASSERT_OK_AND_ASSIGN(const ListeningSocket first,
                       ListeningSocket::Create(options_));
  EXPECT_THAT(ListeningSocket::Create(options_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("another hoistd serves")));
  EXPECT_TRUE(RawSession(options_.path).valid());
}

TEST_F(ListeningSocketTest, ALiveOneWithoutOurLockIsRefused) {
  const hoist::UniqueFd other = Bind(options_.path, SOCK_SEQPACKET);
  ASSERT_EQ(listen(other.get(), 1), 0);
  EXPECT_THAT(ListeningSocket::Create(options_),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(RawSession(options_.path).valid());
}

TEST_F(ListeningSocketTest, WhatServesAsAnotherKindOfSocketIsRefused) {
  const hoist::UniqueFd other = Bind(options_.path, SOCK_STREAM);
  ASSERT_EQ(listen(other.get(), 1), 0);
  EXPECT_THAT(ListeningSocket::Create(options_),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(ListeningSocketTest, TheSocketOfADeadDaemonIsReplaced) {
  Bind(options_.path, SOCK_SEQPACKET);  // Closed at once; the file stays.
  ASSERT_EQ(access(options_.path.c_str(), F_OK), 0);
  ASSERT_OK_AND_ASSIGN(const ListeningSocket made,
                       ListeningSocket::Create(options_));
  EXPECT_TRUE(RawSession(options_.path).valid());
}

TEST_F(ListeningSocketTest, WhatIsNoSocketIsLeftAlone) {
  std::ofstream(options_.path) << "precious";
  EXPECT_THAT(ListeningSocket::Create(options_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not a socket")));
  struct stat info;
  ASSERT_EQ(stat(options_.path.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 8);
}

TEST_F(ListeningSocketTest, TheFileGoesWithIt) {
  { ASSERT_OK(ListeningSocket::Create(options_)); }
  EXPECT_NE(access(options_.path.c_str(), F_OK), 0);
  EXPECT_OK(ListeningSocket::Create(options_));
}

TEST_F(ListeningSocketTest, AFileThatTookItsPlaceStays) {
  {
    ASSERT_OK_AND_ASSIGN(const ListeningSocket made,
                         ListeningSocket::Create(options_));
    // Renamed, so that the inode number cannot be given out again.
    ASSERT_EQ(rename(options_.path.c_str(), (dir_ / "old").c_str()), 0);
    std::ofstream(options_.path) << "not ours";
  }
  EXPECT_EQ(access(options_.path.c_str(), F_OK), 0);
}

TEST_F(ListeningSocketTest, PathsThatNoSocketCanHaveAreRefused) {
  for (const std::string& path :
       {std::string(), std::string(108, 'x'), std::string("/tmp/a\0b", 8)}) {
    options_.path = path;
    EXPECT_THAT(ListeningSocket::Create(options_),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST_F(ListeningSocketTest, AnAdoptedSocketServesAndItsFileStays) {
  hoist::UniqueFd passed = Bind(options_.path, SOCK_SEQPACKET);
  ASSERT_EQ(listen(passed.get(), 8), 0);
  {
    ASSERT_OK_AND_ASSIGN(const ListeningSocket adopted,
                         ListeningSocket::Adopt(std::move(passed)));
    EXPECT_TRUE(RawSession(options_.path).valid());
    // Non-blocking: with nobody left to accept, it says so.
    EXPECT_GE(accept(adopted.get(), nullptr, nullptr), 0);
    EXPECT_LT(accept(adopted.get(), nullptr, nullptr), 0);
  }
  EXPECT_EQ(access(options_.path.c_str(), F_OK), 0);
}

TEST_F(ListeningSocketTest, WhatIsNoListeningPacketSocketIsNotAdopted) {
  hoist::UniqueFd stream = Bind(options_.path, SOCK_STREAM);
  ASSERT_EQ(listen(stream.get(), 8), 0);
  for (int i = 0; i < 3; ++i) {
    hoist::UniqueFd fd =
        i == 0   ? std::move(stream)
        : i == 1 ? hoist::UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC))
                 : Bind(dir_ / "bound-only", SOCK_SEQPACKET);
    EXPECT_THAT(ListeningSocket::Adopt(std::move(fd)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("ListenSequentialPacket")));
  }
}

}  // namespace hoistd::testing::listening_socket_test
