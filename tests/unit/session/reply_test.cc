#include "daemon/session/reply.h"

#include <fcntl.h>

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hoist/v1/session.pb.h"
#include "tests/support/raw_session.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing::reply_test {

using ::testing::HasSubstr;
using ::testing::Not;

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
    ASSERT_OK_AND_ASSIGN(const Owned<LeaseGrant> owned, Own(std::move(grant)));
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
  EXPECT_FALSE(Own(std::move(grant)).ok());
  EXPECT_EQ(OpenFdCount(), before);
}

hoist::UniqueFd Null() {
  return hoist::UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

SlabUse MemfdSlab(uint64_t id, int fd) {
  SlabUse use;
  use.slab.id = SlabId(id);
  use.share.fd = fd;
  return use;
}

SlabUse IpcSlab(uint64_t id) {
  SlabUse use;
  use.slab.id = SlabId(id);
  use.share.backing = Backing::kIpc;
  return use;
}

// One streamed group, whose ring lies in `slabs`; with its lane.
OpenedPlan Streaming(std::vector<SlabUse> slabs) {
  OpenedPlan opened;
  opened.grant.id = PlanId(8);
  opened.grant.groups = {{GroupIndex(4), false, {0, 4096}, 4096}};
  opened.grant.lane_order = {0};
  opened.grant.new_slabs = std::move(slabs);
  opened.lane = Null();
  opened.wake = Null();
  return opened;
}

Reply ReplyOf(Owned<PlanGrant> owned) {
  Reply reply;
  reply.ticket.request_id = 6;
  reply.body = std::move(owned);
  return reply;
}

TEST(OwnPlan, CopiesTheSlabsAndTakesTheLanesOwnDescriptors) {
  const hoist::UniqueFd slab = Null();
  const size_t before = OpenFdCount();
  {
    OpenedPlan opened =
        Streaming({MemfdSlab(1, slab.get()), MemfdSlab(2, slab.get())});
    const int lane = opened.lane.get(), wake = opened.wake.get();
    ASSERT_OK_AND_ASSIGN(const Owned<PlanGrant> owned, Own(std::move(opened)));
    ASSERT_EQ(owned.fds.size(), 4u);
    EXPECT_NE(owned.fds[0].get(), slab.get());
    EXPECT_NE(fcntl(owned.fds[1].get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_EQ(owned.grant.new_slabs[0].share.fd, owned.fds[0].get());
    EXPECT_EQ(owned.grant.new_slabs[1].share.fd, owned.fds[1].get());
    EXPECT_EQ(owned.fds[2].get(), lane);
    EXPECT_EQ(owned.fds[3].get(), wake);
  }
  EXPECT_EQ(OpenFdCount(), before);
  EXPECT_GE(fcntl(slab.get(), F_GETFD), 0);
}

TEST(OwnPlan, ADescriptorThatCannotBeCopiedLeaksNone) {
  const hoist::UniqueFd slab = Null();
  const size_t before = OpenFdCount();
  EXPECT_THAT(
      Own(Streaming({MemfdSlab(1, slab.get()), MemfdSlab(2, 1'000'000'000)})),
      Not(IsOk()));
  EXPECT_EQ(OpenFdCount(), before);
}

// The lane's two descriptors go with the slabs', in one message.
TEST(OwnPlan, ARingInMoreSlabsThanAMessageCarriesIsRefusedWithoutLeaks) {
  const hoist::UniqueFd slab = Null();
  const size_t before = OpenFdCount();
  std::vector<SlabUse> slabs(kMaxSlabFdsPerLease - 1, MemfdSlab(1, slab.get()));
  EXPECT_THAT(Own(Streaming(slabs)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("larger slabs")));
  EXPECT_EQ(OpenFdCount(), before);
  slabs.pop_back();
  // What has no descriptor takes no place.
  slabs.resize(slabs.size() + 100, IpcSlab(2));
  ASSERT_OK_AND_ASSIGN(const Owned<PlanGrant> owned, Own(Streaming(slabs)));
  EXPECT_EQ(owned.fds.size(), kMaxSlabFdsPerLease);
}

TEST(EncodeReply, APlansDescriptorsAreItsSlabsThenTheLaneThenItsWake) {
  const hoist::UniqueFd slab = Null();
  ASSERT_OK_AND_ASSIGN(Owned<PlanGrant> owned,
                       Own(Streaming({MemfdSlab(1, slab.get()), IpcSlab(2),
                                      MemfdSlab(3, slab.get())})));
  std::vector<int> want;
  for (const hoist::UniqueFd& fd : owned.fds) want.push_back(fd.get());
  const Outbound packet = EncodeReply(ReplyOf(std::move(owned)));
  const auto message = Parse(packet);
  EXPECT_EQ(message.request_id(), 6u);
  EXPECT_EQ(message.code(), 0);
  const auto& plan = message.plan();
  EXPECT_EQ(plan.id(), 8u);
  ASSERT_EQ(plan.slabs_size(), 3);
  EXPECT_EQ(plan.slabs(0).fd_index(), 0u);
  EXPECT_EQ(plan.slabs(2).fd_index(), 1u);
  EXPECT_EQ(plan.lane_fd_index(), 2u);
  EXPECT_EQ(plan.wake_fd_index(), 3u);
  std::vector<int> got;
  for (const hoist::UniqueFd& fd : packet.fds) got.push_back(fd.get());
  EXPECT_EQ(got, want);
}

TEST(EncodeReply, ALaneWithoutNewSlabsComesFirst) {
  ASSERT_OK_AND_ASSIGN(Owned<PlanGrant> owned, Own(Streaming({})));
  const Outbound packet = EncodeReply(ReplyOf(std::move(owned)));
  EXPECT_EQ(packet.fds.size(), 2u);
  EXPECT_EQ(Parse(packet).plan().lane_fd_index(), 0u);
  EXPECT_EQ(Parse(packet).plan().wake_fd_index(), 1u);
}

TEST(EncodeReply, APlanOfResidentsHasNoLaneAndNoDescriptors) {
  OpenedPlan opened;
  opened.grant.id = PlanId(8);
  opened.grant.groups = {{GroupIndex(4), true, {}, 4096}};
  ASSERT_OK_AND_ASSIGN(Owned<PlanGrant> owned, Own(std::move(opened)));
  EXPECT_TRUE(owned.fds.empty());
  const Outbound packet = EncodeReply(ReplyOf(std::move(owned)));
  EXPECT_TRUE(packet.fds.empty());
  const auto message = Parse(packet);
  EXPECT_EQ(message.body_case(), hoist::v1::DaemonMessage::kPlan);
  EXPECT_EQ(message.plan().id(), 8u);
  EXPECT_EQ(message.plan().lane_fd_index(), 0u);
  EXPECT_EQ(message.plan().wake_fd_index(), 0u);
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

}  // namespace hoistd::testing::reply_test
