#include "daemon/session/peer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/check.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing {
namespace {

TEST(PeerOf, TellsThisProcessAsItIs) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const hoist::UniqueFd a(ends[0]), b(ends[1]);
  ASSERT_OK_AND_ASSIGN(const PeerProcess process,
                       PeerOf(a.get(), std::nullopt));
  EXPECT_EQ(process.peer.uid.number(), geteuid());
  EXPECT_EQ(process.peer.pid, getpid());
  EXPECT_TRUE(process.peer.admin);  // Our own uid.
  ASSERT_TRUE(process.pidfd.valid());
  pollfd alive = {process.pidfd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&alive, 1, 0), 0);
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

}  // namespace
}  // namespace hoistd::testing
