#include "daemon/session/connection.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <memory>

#include "daemon/base/check.h"
#include "gtest/gtest.h"
#include "tests/support/raw_session.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing::connection_test {

using ::testing::HasSubstr;

class ConnectionTest : public ::testing::Test {
 protected:
  // The far end is `peer_`.
  Connection Make(ConnectionLimits limits) {
    int ends[2];
    HOIST_CHECK(socketpair(AF_UNIX,
                           SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                           ends) == 0);
    peer_ = hoist::UniqueFd(ends[1]);
    return Connection(ConnectionId(1), hoist::UniqueFd(ends[0]), {}, limits,
                      of_uid_);
  }

  hoist::UniqueFd peer_;
  const std::shared_ptr<Load> of_uid_ = std::make_shared<Load>();
};

TEST_F(ConnectionTest, APeerThatDoesNotReadIsFoundOut) {
  Connection connection = Make({.max_outbound_bytes = 100'000});
  absl::Status status;
  size_t sent = 0;
  while (status.ok() && sent < 1'000'000) {
    status = connection.Send({std::string(10'000, 'x'), {}});
    ++sent;
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("does not read")));
}

TEST_F(ConnectionTest, AUsersConnectionsShareOneBound) {
  ConnectionLimits limits;
  limits.max_in_flight_of_uid = 3;
  limits.max_in_flight_fds_of_uid = 10;
  limits.max_outbound_bytes_of_uid = 1'000'000;
  Connection other = Make(limits);
  const hoist::UniqueFd others_peer = std::move(peer_);
  {
    Connection connection = Make(limits);
    ASSERT_OK(other.Admit(4));
    ASSERT_OK(connection.Admit(5));
    EXPECT_THAT(connection.Admit(2),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("your uid's sessions hold 9")));
    ASSERT_OK(connection.Admit(0));
    EXPECT_THAT(other.Admit(0), StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("3 requests of your uid")));
    // What waits for one's client counts for all.
    while (connection.Send({std::string(10'000, 'x'), {}}).ok()) {
    }
    EXPECT_GT(of_uid_->outbound_bytes, 1'000'000u);
    EXPECT_OK(other.Send({"one is always taken", {}}));
  }
  // It left, and all that it held is free.
  EXPECT_EQ(of_uid_->in_flight, 1u);
  EXPECT_EQ(of_uid_->in_flight_fds, 4u);
  EXPECT_EQ(of_uid_->outbound_bytes, 0u);
  EXPECT_OK(other.Admit(6));
}

TEST_F(ConnectionTest, EmptyMessagesCountToo) {
  Connection connection = Make({.max_outbound_bytes = 100'000});
  absl::Status status;
  size_t sent = 0;
  while (status.ok() && sent < 1'000'000) {
    status = connection.Send({});
    ++sent;
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(ConnectionTest, DescriptorsThatWaitAreBounded) {
  Connection connection = Make({});
  const size_t before = OpenFdCount();
  absl::Status status;
  size_t sent = 0;
  while (status.ok() && sent < 100'000) {
    Outbound message;
    for (int i = 0; i < 20; ++i) {
      message.fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    }
    status = connection.Send(std::move(message));
    ++sent;
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("descriptors")));
  EXPECT_LE(OpenFdCount(), before + 4 * hoist::kMaxFdsPerMessage + 20);
}

TEST_F(ConnectionTest, WhatWaitedIsSentInOrderOnceThePeerReads) {
  Connection connection = Make({});
  int sent = 0;
  while (!connection.wants_write()) {
    ASSERT_OK(connection.Send({std::to_string(sent++), {}}));
  }
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(connection.Send({std::to_string(sent++), {}}));
  }
  for (int i = 0; i < sent; ++i) {
    hoist::Result<std::optional<hoist::Packet>> packet =
        hoist::ReceivePacket(peer_.get());
    ASSERT_TRUE(packet.ok() && packet->has_value()) << i;
    EXPECT_EQ((**packet).body, std::to_string(i));
    ASSERT_OK(connection.Flush());
  }
  EXPECT_FALSE(connection.wants_write());
}

TEST_F(ConnectionTest, SendingToADeadPeerIsAnError) {
  Connection connection = Make({});
  peer_.reset();
  EXPECT_THAT(connection.Send({"x", {}}),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(ConnectionTest, TheEndIsToldFromNothingToRead) {
  Connection connection = Make({});
  ASSERT_OK_AND_ASSIGN(const auto nothing, connection.Receive(1 << 20));
  EXPECT_FALSE(nothing.has_value());
  peer_.reset();
  EXPECT_THAT(connection.Receive(1 << 20),
              StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(ConnectionTest, AReplyIsReadThoughTheConnectionHungUpOnUnreadPackets) {
  {
    Connection connection = Make({});
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(hoist::SendPacket(peer_.get(), "unread", {}).ok());
    }
    connection.HangUp({"last words", {}});
  }
  hoist::Result<std::optional<hoist::Packet>> packet =
      hoist::ReceivePacket(peer_.get());
  ASSERT_TRUE(packet.ok()) << packet.status().ToString();
  EXPECT_EQ((**packet).body, "last words");
}

TEST_F(ConnectionTest, AdmitsUpToItsLimitsAndAgainOnceFinished) {
  Connection connection = Make({.max_in_flight = 2, .max_in_flight_fds = 3});
  ASSERT_OK(connection.Admit(3));
  EXPECT_THAT(connection.Admit(1),
              StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_OK(connection.Admit(0));
  EXPECT_THAT(connection.Admit(0),
              StatusIs(absl::StatusCode::kResourceExhausted));
  connection.Finish({ConnectionId(1), 1, 3});
  EXPECT_OK(connection.Admit(1));
}

}  // namespace hoistd::testing::connection_test
