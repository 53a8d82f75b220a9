// A process goes on after its hoistd has ended: handles of the one and of the
// next side by side, through hoist.h.
#include <unistd.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "tests/unit/client/fake_daemon.h"

namespace hoist_test::again_test {

using hoist::Code;
using ::testing::HasSubstr;

// Mappings of memory that a daemon gave; its own are of the same memory.
size_t MappedSlabs() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:fake-slab") != std::string::npos) ++count;
  }
  return count;
}

bool FillImage(Peer& peer, const pb::ClientMessage& message,
               const std::vector<int>& fds) {
  if (!message.has_read_image()) return false;
  const int fd = fds.at(message.read_image().fd_index());
  const std::string image(
      static_cast<size_t>(lseek(fd, 0, SEEK_END)),
      static_cast<char>(FakeDaemon::Byte(message.read_image().group())));
  EXPECT_EQ(pwrite(fd, image.data(), image.size(), 0),
            static_cast<ssize_t>(image.size()));
  pb::DaemonMessage reply;
  reply.set_request_id(message.request_id());
  peer.Send(reply);
  return true;
}

struct Handles {
  explicit Handles(const FakeDaemon& daemon)
      : session(*hoist::Session::Connect(To(daemon))),
        model(*session->DescribeModel("deep")),
        lease(*session->Stage(model, 0u)),
        plan(*session->SetPlan(model)),
        image(*session->ReserveHostImage(model, 1)) {}
  static hoist::ConnectOptions To(const FakeDaemon& daemon) {
    hoist::ConnectOptions options;
    options.socket_path = daemon.path();
    return options;
  }
  std::optional<hoist::Session> session;
  hoist::Model model;
  std::optional<hoist::Lease> lease;
  std::optional<hoist::Plan> plan;
  std::optional<hoist::HostImage> image;
};

void ExpectEnded(Handles& old) {
  EXPECT_EQ(old.session->Check().code(), Code::kUnavailable);
  EXPECT_EQ(old.session->DescribeModel("deep").status().code(),
            Code::kUnavailable);
  EXPECT_EQ(old.lease->Check().code(), Code::kUnavailable);
  EXPECT_EQ(old.lease->data(), nullptr);
  EXPECT_EQ(old.plan->Check().code(), Code::kUnavailable);
  EXPECT_EQ(old.plan->Stage(0).status().code(), Code::kUnavailable);
  EXPECT_EQ(old.plan->SetBudget(1 << 20).code(), Code::kUnavailable);
  EXPECT_EQ(old.image->Load().code(), Code::kUnavailable);
}

void ExpectAlive(Handles& now) {
  EXPECT_TRUE(now.session->Check().ok());
  EXPECT_TRUE(now.lease->Check().ok());
  EXPECT_NE(now.lease->data(), nullptr);
  EXPECT_EQ(*static_cast<const volatile uint8_t*>(now.lease->data()),
            FakeDaemon::Byte(0));
  EXPECT_TRUE(now.plan->Check().ok());
}

TEST(Again, OldHandlesAnswerAndNewOnesWorkInWhicheverOrderTheyGo) {
  for (int order = 0; order < 6; ++order) {
    SCOPED_TRACE(order);
    const size_t before = MappedSlabs();
    auto first = std::make_unique<FakeDaemon>();
    Handles old(*first);
    first.reset();
    ExpectEnded(old);
    FakeDaemon second;
    const size_t daemons = MappedSlabs();
    Handles now(second);
    const size_t both = MappedSlabs();
    EXPECT_GT(both, daemons);
    ExpectEnded(old);
    ExpectAlive(now);
    // The old map goes with the last of these, whichever it is.
    const int last = order % 3;
    if (last != 0) old.session.reset();
    if (last != 1) old.plan.reset();
    if (last != 2) old.lease.reset();
    old.image.reset();
    EXPECT_EQ(MappedSlabs(), both);
    if (order < 3) ExpectAlive(now);
    if (order >= 3) {  // The new ones first.
      now.plan.reset();
      now.lease.reset();
      now.image.reset();
      now.session.reset();
      EXPECT_EQ(MappedSlabs(), daemons);
    }
    old.session.reset();
    old.plan.reset();
    old.lease.reset();
    EXPECT_LT(MappedSlabs(), order < 3 ? both : daemons);
    if (order < 3) ExpectAlive(now);
    (void)before;
  }
}

TEST(Again, AClosedSessionIsToldFromOneThatHoistdEnded) {
  auto daemon = std::make_unique<FakeDaemon>();
  Handles closed(*daemon), ended(*daemon);
  closed.session->Close();
  daemon.reset();
  EXPECT_EQ(closed.session->Check().code(), Code::kFailedPrecondition);
  EXPECT_EQ(ended.session->Check().code(), Code::kUnavailable);
}

TEST(Again, AnotherHoistdsModelsAreRefused) {
  FakeDaemon first, second;
  Handles old(first), now(second);
  const hoist::Status refusals[] = {
      now.session->Stage(old.model, 0u).status(),
      now.session->SetPlan(old.model).status(),
      now.session->ReserveHostImage(old.model, 0).status(),
      now.session->Prefetch(old.model, {0}),
      now.session->SetOrder(old.model, {0}),
      now.session->Forget(old.model),
      now.image->Move(*now.session, old.model, 1)};
  for (const hoist::Status& refusal : refusals) {
    EXPECT_EQ(refusal.code(), Code::kFailedPrecondition);
    EXPECT_THAT(refusal.message(), HasSubstr("another hoistd"));
  }
  // Sessions with one hoistd share its models.
  Handles same(first);
  EXPECT_TRUE(same.session->Stage(old.model, 0u).ok());
}

TEST(Again, AHostImageMovesAndKeepsItsAddressAndWhatIsLoaded) {
  auto first = std::make_unique<FakeDaemon>(FillImage);
  Handles old(*first);
  const void* const address = old.image->data();
  ASSERT_TRUE(old.image->Load().ok());
  first.reset();
  FakeDaemon second(FillImage);
  Handles now(second);
  EXPECT_TRUE(old.image->Move(*now.session, now.model, 1).ok());
  EXPECT_TRUE(old.image->loaded());
  EXPECT_EQ(old.image->data(), address);
  EXPECT_EQ(*static_cast<const volatile uint8_t*>(address),
            FakeDaemon::Byte(1));
  old.image->Drop();
  ASSERT_TRUE(old.image->Load().ok());  // By the new session.
  EXPECT_EQ(*static_cast<const volatile uint8_t*>(address),
            FakeDaemon::Byte(1));
}

TEST(Again, AHostImageDoesNotMoveToTensorsThatLieOtherwise) {
  auto first = std::make_unique<FakeDaemon>(FillImage);
  Handles old(*first);
  first.reset();
  FakeDaemon second(FillImage);
  Handles now(second);
  const hoist::Model other = *now.session->DescribeModel("m");
  EXPECT_EQ(old.image->Move(*now.session, other, 0).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(old.image->Move(*now.session, now.model, 100).code(),
            Code::kOutOfRange);
  EXPECT_EQ(old.image->Load().code(), Code::kUnavailable);  // As it was.
  EXPECT_TRUE(old.image->Move(*now.session, now.model, 1).ok());
  EXPECT_TRUE(old.image->Load().ok());
}

}  // namespace hoist_test::again_test
