#include "daemon/socket/peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "daemon/base/check.h"
#include "daemon/socket/listening_socket.h"
#include "gtest/gtest.h"
#include "tests/support/raw_session.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace hoistd::testing::peer_process_test {

TEST(PeerOf, TellsThisProcessAsItIs) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const hoist::UniqueFd a(ends[0]), b(ends[1]);
  ASSERT_OK_AND_ASSIGN(const PeerProcess process,
                       PeerOf(a.get(), std::nullopt));
  EXPECT_EQ(process.peer.uid.number(), geteuid());
  EXPECT_EQ(process.peer.pid, getpid());
  EXPECT_TRUE(process.peer.admin);  // Our own uid.
  EXPECT_FALSE(process.peer.apart);
  ASSERT_TRUE(process.pidfd.valid());
  pollfd alive = {process.pidfd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&alive, 1, 0), 0);
}

TEST(PeerOf, ThroughATenantsSocketIsTheTenantAndNoAdmin) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const hoist::UniqueFd a(ends[0]), b(ends[1]);
  ASSERT_OK_AND_ASSIGN(const PeerProcess process,
                       PeerOf(a.get(), getegid(), User::Tenant("team-a")));
  EXPECT_EQ(process.peer.uid, *User::Tenant("team-a"));
  EXPECT_EQ(process.peer.pid, getpid());
  EXPECT_FALSE(process.peer.admin);  // Though it is our own uid.
  EXPECT_TRUE(process.pidfd.valid());
}

// Root of namespaces of its own, connected to a socket of ours; what PeerOf
// says of it. nullopt: this system lets us make no such namespaces.
std::optional<PeerProcess> RootElsewhere(int namespaces) {
  const TempDir dir;
  auto listening = ListeningSocket::Create({.path = dir / "s"});
  HOIST_CHECK(listening.ok());
  int hold[2];
  HOIST_CHECK(pipe2(hold, O_CLOEXEC) == 0);
  const pid_t child = fork();
  if (child == 0) {
    close(hold[1]);
    const std::string map = "0 " + std::to_string(geteuid()) + " 1\n";
    if (unshare(namespaces) != 0) _exit(77);
    if ((namespaces & CLONE_NEWUSER) != 0) {
      const int file = open("/proc/self/uid_map", O_WRONLY);
      if (file < 0 || write(file, map.data(), map.size()) < 0) _exit(77);
    }
    // Only a child of ours is in the new pid namespace.
    const pid_t inner = (namespaces & CLONE_NEWPID) != 0 ? fork() : 0;
    if (inner == 0) {
      const RawSession session(dir / "s");
      char byte;
      static_cast<void>(!read(hold[0], &byte, 1));  // Until it was looked at.
      _exit(session.valid() && geteuid() == 0 ? 0 : 1);
    }
    int status = 0;
    waitpid(inner, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  close(hold[0]);
  pollfd wait[] = {{listening->get(), POLLIN, 0}, {hold[1], 0, 0}};
  poll(wait, 2, -1);  // It connects, or ends and closes the pipe.
  const hoist::UniqueFd accepted(
      accept4(listening->get(), nullptr, nullptr, SOCK_CLOEXEC));
  std::optional<PeerProcess> peer;
  if (accepted.valid()) {
    auto process = PeerOf(accepted.get(), getegid());
    EXPECT_OK(process.status());
    if (process.ok()) peer = *std::move(process);
  }
  close(hold[1]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), peer.has_value() ? 0 : 77);
  return peer;
}

TEST(PeerOf, RootOfAnotherUserNamespaceIsNoAdmin) {
  const auto peer = RootElsewhere(CLONE_NEWUSER);
  if (!peer.has_value()) GTEST_SKIP() << "may make no user namespace";
  // Nor is it the root whose models everybody trusts.
  EXPECT_EQ(peer->peer.uid.number(), geteuid() == 0 ? 65534u : geteuid());
  EXPECT_FALSE(peer->peer.admin);
  EXPECT_TRUE(peer->peer.apart);
}

TEST(PeerOf, RootOfAnotherPidNamespaceIsNoAdmin) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to make a pid namespace";
  const auto peer = RootElsewhere(CLONE_NEWPID);
  if (!peer.has_value()) GTEST_SKIP() << "may make no pid namespace";
  EXPECT_EQ(peer->peer.uid.number(), 65534u);
  EXPECT_FALSE(peer->peer.admin);
  EXPECT_TRUE(peer->peer.apart);
}

TEST(PeerOf, WhatIsNoUnixSocketIsAnError) {
  const hoist::UniqueFd fd(dup(0));
  EXPECT_FALSE(PeerOf(fd.get(), std::nullopt).ok());
}

TEST(GroupByName, FindsGroupsAndSaysHowToMakeOne) {
  ASSERT_OK_AND_ASSIGN(const gid_t root, GroupByName("root"));
  EXPECT_EQ(root, 0u);
  EXPECT_THAT(
      GroupByName("no-such-group-here"),
      StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr("groupadd")));
}

}  // namespace hoistd::testing::peer_process_test
