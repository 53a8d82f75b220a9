// libhoist.so where the system starts no thread: an error, and hoistd has its
// grants back.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "hoist/hoist_copy_permit.h"
#include "tests/support/no_threads.h"
#include "tests/unit/client/fake_in_place.h"
#include "tests/unit/client/fake_permit.h"
#include "tests/unit/client/plan_worker.h"

namespace hoist_test::no_thread_test {

using Code = hoist::Code;
using hoistd::testing::NoThreads;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void ExpectNoThread(const hoist::Status& status) {
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("ulimit -u"));
}

// Counts the plans that hoistd has back.
FakeDaemon::Script CountCleared(std::atomic<int>& cleared) {
  return [&cleared](Peer&, const pb::ClientMessage& message,
                    const std::vector<int>&) {
    if (message.has_clear_plan()) ++cleared;
    return false;
  };
}

TEST(NoThread, AConnectionSaysSo) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / "no_thread";
  std::filesystem::create_directories(folder);
  const std::string path = folder / "socket";
  std::filesystem::remove(path);
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
  sockaddr_un at = {};
  at.sun_family = AF_UNIX;
  std::strncpy(at.sun_path, path.c_str(), sizeof(at.sun_path) - 1);
  ASSERT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  ASSERT_EQ(listen(socket, 1), 0);
  hoist::ConnectOptions options;
  options.socket_path = path;
  {
    const NoThreads none;
    ExpectNoThread(hoist::Session::Connect(options).status());
  }
  close(socket);
}

TEST(NoThread, APlanIsGivenBack) {
  std::atomic<int> cleared{0};
  FakeDaemon daemon(CountCleared(cleared));
  hoist::Session session = ConnectTo(daemon);
  const hoist::Model model = *session.DescribeModel("deep");
  {
    const NoThreads none;
    ExpectNoThread(session.SetPlan(model, {.order = {0, 1}}).status());
  }
  EXPECT_EQ(cleared, 1);
  EXPECT_TRUE(session.SetPlan(model, {.order = {0, 1}}).ok());
}

TEST(NoThread, APlanThatCannotStreamHasEnded) {
  std::atomic<int> cleared{0};
  FakeDaemon daemon(CountCleared(cleared));
  daemon.PlanAs({.residents = {0, 1, 2, 3, 4, 5}});
  {
    PlanWorker worker(daemon, {0, 1, 2, 3, 4, 5});
    ASSERT_TRUE(worker.Use(0).ok());
    daemon.PlanAs({});
    {
      const NoThreads none;
      ExpectNoThread(worker.plan.SetBudget(8192));
    }
    ExpectNoThread(worker.plan.Check());
    ExpectNoThread(worker.Use(0));
  }
  EXPECT_EQ(cleared, 1);
}

TEST(NoThread, AResidentPlanStagesAtFirstUse) {
  FakeDaemon daemon;
  daemon.PlanAs({.residents = {0, 1}});
  hoist::Session session = ConnectTo(daemon);
  const hoist::Model model = *session.DescribeModel("deep");
  const NoThreads none;
  auto plan = session.SetPlan(model, {.order = {0, 1}});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  for (const uint32_t group : {0, 1}) {
    EXPECT_TRUE(plan->Stage(group).ok());
    EXPECT_TRUE(plan->Done(group).ok());
  }
}

TEST(NoThread, PiecesInPlaceAreGivenBack) {
  FakeInPlace daemon;
  hoist::ConnectOptions options;
  options.socket_path = daemon.path();
  hoist::Session session = *hoist::Session::Connect(options);
  const hoist::Model model = *session.DescribeModel("moe");
  const std::vector<uint32_t> pieces = {0, 1, 2};
  hoist_in_place_tensor tensor = {};
  tensor.struct_size = sizeof(tensor);
  tensor.groups = pieces.data();
  tensor.group_count = pieces.size();
  hoist_in_place_options wanted = {};
  wanted.struct_size = sizeof(wanted);
  wanted.deadline_ms = 60'000;
  hoist_in_place* in_place = nullptr;
  {
    const NoThreads none;
    EXPECT_EQ(hoist_in_place_create(session.get(), model.get(), &tensor, 1,
                                    &wanted, &in_place, nullptr),
              HOIST_RESOURCE_EXHAUSTED);
  }
  EXPECT_EQ(daemon.stages(FakeInPlace::kInPlace), 3u);
  daemon.AwaitLeased(FakeInPlace::kInPlace, {});
}

TEST(NoThread, AFetchSaysSo) {
  FakeDaemon daemon;
  hoist::Session session = ConnectTo(daemon);
  const hoist::Model model = *session.DescribeModel("m");
  {
    const NoThreads none;
    ExpectNoThread(session.StartFetch(model, {0}).status());
  }
  EXPECT_TRUE(session.StartFetch(model, {0}).ok());
}

TEST(NoThread, APermitIsGivenBack) {
  PermitScript script;
  FakeDaemon daemon(script.script());
  hoist::Session session = ConnectTo(daemon);
  {
    const NoThreads none;
    ExpectNoThread(hoist::CopyPermit::Open(session, {}).status());
  }
  EXPECT_THAT(script.closed(), ElementsAre(601u));
  // Without a listener that was freed.
  EXPECT_TRUE(hoist::CopyPermit::Open(session, {}).ok());
}

TEST(NoThread, AContentIsComputedWithoutHelp) {
  const std::vector<std::byte> bytes((size_t{40} << 20) + 3, std::byte{7});
  hoist::PublishOptions options;
  options.group = "g";
  options.tensors = {{"w",
                      hoist::DType::kU8,
                      {static_cast<int64_t>(bytes.size())},
                      bytes.data()}};
  const auto want = hoist::GroupContent(options);
  ASSERT_TRUE(want.ok());
  const NoThreads none;
  const auto alone = hoist::GroupContent(options);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(*alone, *want);
}

}  // namespace hoist_test::no_thread_test
