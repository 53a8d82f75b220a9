#include "daemon/rpc/connections.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/rpc/rpc_fixture.h"

namespace hoistd::connections_test {

using ::hoistd::testing::StatusIs;
using ::hoistd::testing::TempDir;

constexpr gid_t kAdminGroup = 54321;

// Connections whose descriptors come here instead of to gRPC.
class ConnectionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    chmod(dir_.path().c_str(), 0755);
    Start(RpcLimits());
  }
  void TearDown() override {
    connections_.reset();
    const absl::MutexLock lock(&mu_);
    for (int fd : taken_) close(fd);
  }

  void Start(RpcLimits limits) {
    connections_.reset();
    SocketFileOptions file;
    file.path = dir_.path() + "/s";
    file.mode = 0666;
    file.type = SOCK_STREAM;
    ASSERT_OK_AND_ASSIGN(ListeningSocket socket, ListeningSocket::Create(file));
    ASSERT_OK_AND_ASSIGN(
        connections_,
        Connections::Create(std::move(socket), kAdminGroup, limits));
    ASSERT_OK(connections_->Start([this](int fd) {
      absl::MutexLock lock(&mu_);
      taken_.push_back(fd);
    }));
  }

  hoist::UniqueFd Connect() const {
    hoist::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (dir_.path() + "/s").c_str());
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                sizeof(address)) != 0) {
      return hoist::UniqueFd();
    }
    return fd;
  }

  // As that user, for whom only this thread passes meanwhile.
  hoist::UniqueFd ConnectAs(uid_t uid) const {
    syscall(SYS_setresuid, -1, uid, -1);
    hoist::UniqueFd fd = Connect();
    syscall(SYS_setresuid, -1, 0, -1);
    return fd;
  }

  // The descriptor that was handed over; waits for it.
  int Take() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return !taken_.empty();
    };
    mu_.Await(absl::Condition(&some));
    const int fd = taken_.front();
    taken_.pop_front();
    return fd;
  }

  absl::StatusOr<Peer> PeerBy(int fd) const {
    return connections_->Find(absl::StrCat("fd:", fd));
  }

  // What the kernel says of a process of that user and group.
  absl::StatusOr<Peer> PeerAs(uid_t uid, gid_t extra_group) {
    int hold[2];
    if (pipe(hold) != 0) return absl::InternalError("pipe");
    const pid_t child = fork();
    if (child == 0) {
      close(hold[1]);
      if (setgroups(1, &extra_group) != 0 || setgid(uid) != 0 ||
          setuid(uid) != 0) {
        _exit(1);
      }
      const hoist::UniqueFd fd = Connect();
      char byte;
      static_cast<void>(!read(hold[0], &byte, 1));  // Until the test is done.
      _exit(fd.valid() ? 0 : 1);
    }
    close(hold[0]);
    const int fd = Take();
    absl::StatusOr<Peer> peer = PeerBy(fd);
    close(fd);
    close(hold[1]);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return peer;
  }

  TempDir dir_;
  std::unique_ptr<Connections> connections_;
  absl::Mutex mu_;
  std::deque<int> taken_ ABSL_GUARDED_BY(mu_);
};

TEST_F(ConnectionsTest, PeerIsWhoTheKernelSays) {
  const hoist::UniqueFd client = Connect();
  const hoist::UniqueFd fd(Take());
  ASSERT_OK_AND_ASSIGN(const Peer peer, PeerBy(fd.get()));
  EXPECT_EQ(peer.uid.number(), getuid());
  EXPECT_EQ(peer.pid, getpid());
  EXPECT_TRUE(peer.admin);  // The daemon's own uid.
  EXPECT_EQ(peer.via, "grpc");
}

TEST_F(ConnectionsTest, AdminIsByGroupAndNotForEveryone) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to connect as others";
  ASSERT_OK_AND_ASSIGN(const Peer other, PeerAs(65534, 65534));
  EXPECT_EQ(other.uid.number(), 65534u);
  EXPECT_FALSE(other.admin);
  ASSERT_OK_AND_ASSIGN(const Peer admin, PeerAs(65534, kAdminGroup));
  EXPECT_EQ(admin.uid.number(), 65534u);
  EXPECT_TRUE(admin.admin);
}

TEST_F(ConnectionsTest, PeersAreOnlyOursAndOnlyByNumber) {
  for (const char* peer : {"", "fd:", "fd:x", "fd:999999", "unix:/run/x",
                           "ipv4:127.0.0.1:1", "fd:-1"}) {
    EXPECT_THAT(connections_->Find(peer),
                StatusIs(absl::StatusCode::kUnavailable))
        << peer;
  }
}

TEST_F(ConnectionsTest, NumbersAreNotGivenOutAgainSoon) {
  hoist::UniqueFd client = Connect();
  hoist::UniqueFd fd(Take());
  int last = fd.get();
  for (int i = 0; i < 50; ++i) {
    fd.reset();
    client = Connect();
    fd = hoist::UniqueFd(Take());
    EXPECT_GT(fd.get(), last);
    last = fd.get();
  }
}

TEST_F(ConnectionsTest, ForgetsWhenTheClientLeaves) {
  hoist::UniqueFd client = Connect();
  const hoist::UniqueFd fd(Take());
  EXPECT_EQ(connections_->count(), 1u);
  client.reset();
  while (connections_->count() > 0) std::this_thread::yield();
  EXPECT_THAT(PeerBy(fd.get()), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(ConnectionsTest, SeveralUsersCannotLockAnAdminOut) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to connect as others";
  RpcLimits limits;
  limits.all = 8;
  Start(limits);
  std::vector<hoist::UniqueFd> others;
  std::vector<hoist::UniqueFd> taken;
  for (const uid_t uid :
       {65534u, 65533u, 65532u, 65531u, 65530u, 65529u, 65528u}) {
    others.push_back(ConnectAs(uid));
    taken.emplace_back(Take());
  }
  const hoist::UniqueFd eighth = ConnectAs(65527);
  char byte;
  EXPECT_EQ(read(eighth.get(), &byte, 1), 0) << "closed at once";
  const hoist::UniqueFd admin = Connect();
  const hoist::UniqueFd served(Take());
  EXPECT_TRUE(served.valid());
}

TEST_F(ConnectionsTest, OneUserCannotTakeAllConnections) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to connect as others";
  RpcLimits limits;
  limits.all = 4;
  limits.one_uid = 2;
  Start(limits);
  const hoist::UniqueFd first = Connect();
  const hoist::UniqueFd second = Connect();
  const hoist::UniqueFd a(Take());
  const hoist::UniqueFd b(Take());
  const hoist::UniqueFd third = Connect();
  char byte;
  EXPECT_EQ(read(third.get(), &byte, 1), 0) << "closed at once";
  EXPECT_OK(PeerAs(65534, 65534));
}

}  // namespace hoistd::connections_test
