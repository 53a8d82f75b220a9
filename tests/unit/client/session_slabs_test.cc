// libhoist.so closes the slabs that a daemon asks for, and no others.
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "tests/unit/client/fake_daemon.h"

namespace hoist_test::session_slabs_test {

using ::testing::ElementsAre;

struct Worker {
  explicit Worker(const FakeDaemon& daemon)
      : session(*hoist::Session::Connect(To(daemon))),
        model(*session.DescribeModel("m")) {}
  static hoist::ConnectOptions To(const FakeDaemon& daemon) {
    hoist::ConnectOptions options;
    options.socket_path = daemon.path();
    return options;
  }
  // The daemon knows no such model, and asks for slabs before it says so.
  void BeAsked() { (void)session.DescribeModel("ask"); }

  hoist::Session session;
  hoist::Model model;
};

pb::DaemonMessage Ask(uint64_t number, std::vector<uint64_t> slabs) {
  pb::DaemonMessage message;
  message.mutable_close_slabs()->set_number(number);
  for (const uint64_t id : slabs) {
    message.mutable_close_slabs()->add_slab_ids(id);
  }
  return message;
}

// A daemon that asks for slabs before it answers describe_model of "ask", and
// keeps what it is told.
class AskingDaemon {
 public:
  explicit AskingDaemon(std::vector<uint64_t> slabs = {1})
      : slabs_(std::move(slabs)) {}
  FakeDaemon::Script script() {
    return [this](Peer& peer, const pb::ClientMessage& message,
                  const std::vector<int>&) {
      if (message.has_slabs_closed()) {
        const std::lock_guard<std::mutex> lock(mu_);
        closed_.push_back(message.slabs_closed());
        told_.notify_all();
        pb::DaemonMessage reply;
        reply.set_request_id(message.request_id());
        peer.Send(reply);
        return true;
      }
      if (!message.has_describe_model() ||
          message.describe_model().name() != "ask") {
        return false;
      }
      peer.slab_sent = false;  // As a daemon that counts on the answer.
      peer.Send(Ask(7, slabs_));
      return false;
    };
  }
  // The n-th answer.
  pb::SlabsClosedRequest Answer(size_t n) {
    std::unique_lock<std::mutex> lock(mu_);
    told_.wait(lock, [&] { return closed_.size() > n; });
    return closed_[n];
  }

 private:
  const std::vector<uint64_t> slabs_;
  std::mutex mu_;
  std::condition_variable told_;
  std::vector<pb::SlabsClosedRequest> closed_;
};

// Whether memory of this process is mapped there.
bool IsReadable(const void* address) {
  int fds[2];
  if (pipe(fds) != 0) return false;
  const bool readable = write(fds[1], address, 1) == 1;
  close(fds[0]);
  close(fds[1]);
  return readable;
}

TEST(SessionSlabs, AnIdleSlabIsClosedWhenItIsAskedFor) {
  AskingDaemon asks;
  FakeDaemon daemon(asks.script());
  Worker worker(daemon);
  auto lease = worker.session.Stage(worker.model, "b");
  ASSERT_TRUE(lease.ok());
  const void* address = lease->data();
  EXPECT_TRUE(IsReadable(address));
  ASSERT_TRUE(lease->Release().ok());
  worker.BeAsked();
  EXPECT_THAT(asks.Answer(0).slab_ids(), ElementsAre(1));
  EXPECT_EQ(asks.Answer(0).number(), 7u);
  EXPECT_FALSE(IsReadable(address));
  // It is mapped again with the next lease that brings it.
  auto again = worker.session.Stage(worker.model, "b");
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->data(), address);
  EXPECT_EQ(*static_cast<const uint8_t*>(again->data()), FakeDaemon::Byte(1));
}

TEST(SessionSlabs, ALeasedSlabIsKeptThoughItIsAskedFor) {
  AskingDaemon asks;
  FakeDaemon daemon(asks.script());
  Worker worker(daemon);
  auto lease = worker.session.Stage(worker.model, "b");
  ASSERT_TRUE(lease.ok());
  worker.BeAsked();
  EXPECT_THAT(asks.Answer(0).slab_ids(), ElementsAre());
  EXPECT_EQ(*static_cast<const uint8_t*>(lease->data()), FakeDaemon::Byte(1));
}

TEST(SessionSlabs, WhatAnotherSessionOfTheProcessLeasesStaysMapped) {
  AskingDaemon asks;
  FakeDaemon daemon(asks.script());
  Worker one(daemon), two(daemon);
  auto first = one.session.Stage(one.model, "b");
  auto second = two.session.Stage(two.model, "b");
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(first->Release().ok());
  one.BeAsked();
  // The first has it no more; the second does.
  EXPECT_THAT(asks.Answer(0).slab_ids(), ElementsAre(1));
  EXPECT_EQ(*static_cast<const uint8_t*>(second->data()), FakeDaemon::Byte(1));
  const void* address = second->data();
  ASSERT_TRUE(second->Release().ok());
  two.BeAsked();
  EXPECT_THAT(asks.Answer(1).slab_ids(), ElementsAre(1));
  EXPECT_FALSE(IsReadable(address));
}

TEST(SessionSlabs, APlansRingIsKeptUntilThePlanIsCleared) {
  AskingDaemon asks;
  FakeDaemon daemon(asks.script());
  Worker worker(daemon);
  auto deep = worker.session.DescribeModel("deep");
  ASSERT_TRUE(deep.ok());
  {
    auto plan = worker.session.SetPlan(*deep);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    worker.BeAsked();
    EXPECT_THAT(asks.Answer(0).slab_ids(), ElementsAre());
  }
  worker.BeAsked();
  EXPECT_THAT(asks.Answer(1).slab_ids(), ElementsAre(1));
}

TEST(SessionSlabs, WhatIsNotMappedHereIsClosed) {
  AskingDaemon asks({5, 9});
  FakeDaemon daemon(asks.script());
  Worker worker(daemon);
  auto lease = worker.session.Stage(worker.model, "b");
  ASSERT_TRUE(lease.ok());
  worker.BeAsked();
  EXPECT_THAT(asks.Answer(0).slab_ids(), ElementsAre(5, 9));
  EXPECT_TRUE(IsReadable(lease->data()));
}

}  // namespace hoist_test::session_slabs_test
