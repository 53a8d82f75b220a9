#include "daemon/session/reply.h"

#include <fcntl.h>

#include "gtest/gtest.h"
#include "hoist/v1/session.pb.h"
#include "tests/support/raw_session.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing {
namespace {

hoist::v1::DaemonMessage Parse(const Outbound& packet) {
  hoist::v1::DaemonMessage message;
  EXPECT_TRUE(message.ParseFromString(packet.body));
  return message;
}

TEST(OwnGrant, CopiesDescriptorsAndKeepsTheEnginesOpen) {
  const hoist::UniqueFd slab(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const size_t before = OpenFdCount();
  LeaseGrant grant;
  SlabUse use;
  use.share.fd = slab.get();
  grant.new_slabs = {use, use};
  {
    ASSERT_OK_AND_ASSIGN(const OwnedGrant owned, OwnGrant(std::move(grant)));
    ASSERT_EQ(owned.fds.size(), 2u);
    EXPECT_EQ(owned.grant.new_slabs[1].share.fd, owned.fds[1].get());
    EXPECT_NE(owned.fds[0].get(), slab.get());
    EXPECT_NE(fcntl(owned.fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(OpenFdCount(), before);
  EXPECT_GE(fcntl(slab.get(), F_GETFD), 0);
}

TEST(OwnGrant, ADescriptorThatCannotBeCopiedLeaksNone) {
  const hoist::UniqueFd slab(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const size_t before = OpenFdCount();
  LeaseGrant grant;
  SlabUse good, bad;
  good.share.fd = slab.get();
  bad.share.fd = 1'000'000'000;
  grant.new_slabs = {good, bad};
  EXPECT_FALSE(OwnGrant(std::move(grant)).ok());
  EXPECT_EQ(OpenFdCount(), before);
}

TEST(EncodeError, CarriesCodeAndMessageOfBoundedLength) {
  const auto message =
      Parse(EncodeError(5, absl::DataLossError(std::string(100'000, 'x'))));
  EXPECT_EQ(message.request_id(), 5u);
  EXPECT_EQ(message.code(), 15);
  EXPECT_GT(message.message().size(), 1000u);
  EXPECT_LT(message.message().size(), 10'000u);
  EXPECT_EQ(message.body_case(), hoist::v1::DaemonMessage::BODY_NOT_SET);
}

TEST(EncodeReply, AnOkWithoutAValueHasNoBody) {
  Reply reply;
  reply.ticket.request_id = 6;
  const auto message = Parse(EncodeReply(std::move(reply)));
  EXPECT_EQ(message.request_id(), 6u);
  EXPECT_EQ(message.code(), 0);
  EXPECT_EQ(message.body_case(), hoist::v1::DaemonMessage::BODY_NOT_SET);
}

}  // namespace
}  // namespace hoistd::testing
