// Lanes on a real GPU's streams and graphs, which the fake driver has not; the
// test plays hoistd.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/src/device/cuda_context.h"
#include "client/src/device/stream_order.h"
#include "client/src/plan/plan_lane.h"
#include "client/src/plan/plan_life.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_lane.h"

namespace hoist_test::plan_lane_cuda_test {

using hoist::PlanLane;
using hoist::PlanLife;
using hoist::Status;
namespace cuda = hoist::cuda;
namespace lane = hoist::lane;

using Graph = struct GraphTag*;
using Executable = struct ExecutableTag*;

// The part of CUDA's graphs that hoist itself has no use for.
struct Graphs {
  cuda::Error (*begin)(cuda::Stream, int mode) = nullptr;
  cuda::Error (*end)(cuda::Stream, Graph*) = nullptr;
  cuda::Error (*instantiate)(Executable*, Graph,
                             unsigned long long flags) = nullptr;
  cuda::Error (*launch)(Executable, cuda::Stream) = nullptr;
  cuda::Error (*destroy)(Graph) = nullptr;
  cuda::Error (*destroy_executable)(Executable) = nullptr;

  bool Find() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const auto find = [library](const char* name, auto* function) {
      *reinterpret_cast<void**>(function) = dlsym(library, name);
      return *function != nullptr;
    };
    return find("cuStreamBeginCapture_v2", &begin) &&
           find("cuStreamEndCapture", &end) &&
           find("cuGraphInstantiateWithFlags", &instantiate) &&
           find("cuGraphLaunch", &launch) && find("cuGraphDestroy", &destroy) &&
           find("cuGraphExecDestroy", &destroy_executable);
  }
};

// A lane over order 0, 1, 0, 2; with stream memory operations, and with host
// functions.
class PlanLaneOnGpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    hoist::Result<cuda::Driver> driver = cuda::Driver::Load();
    if (!driver.ok()) GTEST_SKIP() << driver.status().ToString();
    if (!graphs_.Find()) GTEST_SKIP() << "the driver has no graphs: a fake";
    driver_ = *driver;
    cuda::DeviceId device = 0;
    cuda::Uuid uuid = {};
    ASSERT_EQ(driver_.device_get(&device, 0), cuda::kSuccess);
    ASSERT_EQ(driver_.device_uuid(&uuid, device), cuda::kSuccess);
    auto context = hoist::CudaContext::Open(uuid.bytes);
    ASSERT_TRUE(context.ok()) << context.status().ToString();
    context_ = std::move(context).value();
    ASSERT_EQ(driver_.push_context(context_->context()), cuda::kSuccess);
    for (cuda::Stream& stream : streams_) {
      ASSERT_EQ(driver_.stream_create(&stream, cuda::kStreamNonBlocking),
                cuda::kSuccess);
    }
    setenv("HOIST_STREAM_OPS", GetParam(), 1);
    auto order = hoist::CreateCudaOrder(uuid.bytes);
    unsetenv("HOIST_STREAM_OPS");
    ASSERT_TRUE(order.ok()) << order.status().ToString();
    order_ = std::move(order).value();
    PlanLane::Options options;
    options.groups = 3;
    options.order = kOrder;
    options.ring_limit = std::chrono::seconds(1);
    auto made = PlanLane::Create(hoist::UniqueFd(dup(fake_.memory_fd())),
                                 hoist::UniqueFd(dup(fake_.wake_fd())),
                                 std::move(options), order_.get());
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    lane_ = std::move(made).value();
  }

  void TearDown() override {
    if (context_ == nullptr) return;
    EXPECT_TRUE(order_->SynchronizeAll().ok());
    lane_.reset();
    if (executable_ != nullptr) graphs_.destroy_executable(executable_);
    for (cuda::Stream stream : streams_) driver_.stream_destroy(stream);
    cuda::Context popped = nullptr;
    driver_.pop_context(&popped);
  }

  void Use(uint32_t group, cuda::Stream stream) {
    auto turn = lane_->Take(group, stream);
    ASSERT_TRUE(turn.ok()) << turn.status().ToString();
    const Status done = lane_->Finish(group, turn.value(), stream);
    ASSERT_TRUE(done.ok()) << done.ToString();
  }

  // One pass, captured on the first stream; its last half on the second one if
  // there are `two`.
  void Capture(bool two) {
    ASSERT_EQ(graphs_.begin(streams_[0], 0), cuda::kSuccess);
    const Status followed = lane_->FollowCapture(streams_[0], true);
    ASSERT_TRUE(followed.ok()) << followed.ToString();
    ASSERT_TRUE(lane_->captured());
    Use(kOrder[0], streams_[0]);
    Use(kOrder[1], streams_[0]);
    // As a program makes a stream part of a capture, and joins it.
    if (two) Follow(streams_[1], streams_[0]);
    Use(kOrder[2], streams_[two ? 1 : 0]);
    Use(kOrder[3], streams_[two ? 1 : 0]);
    if (two) Follow(streams_[0], streams_[1]);
    Graph graph = nullptr;
    ASSERT_EQ(graphs_.end(streams_[0], &graph), cuda::kSuccess);
    ASSERT_EQ(graphs_.instantiate(&executable_, graph, 0), cuda::kSuccess);
    graphs_.destroy(graph);
  }

  void Follow(cuda::Stream later, cuda::Stream earlier) {
    cuda::Event event = nullptr;
    ASSERT_EQ(driver_.event_create(&event, cuda::kEventDisableTiming),
              cuda::kSuccess);
    ASSERT_EQ(driver_.event_record(event, earlier), cuda::kSuccess);
    ASSERT_EQ(driver_.stream_wait_event(later, event, 0), cuda::kSuccess);
    driver_.event_destroy(event);
  }

  void AwaitWord(const lane::Word& word, uint32_t value) {
    while (word.load() != value) std::this_thread::yield();
  }

  // hoistd's part in one launch.
  void ServeOnePass() {
    for (uint32_t place = 0; place < kOrder.size(); ++place) {
      lane::GroupWords& words = fake_.group(kOrder[place]);
      AwaitWord(fake_.header().want, place + 1);
      EXPECT_EQ(words.done_flag.load(), 0u);
      words.flag.store(lane::kFlagReady);
      AwaitWord(words.done_flag, 1);
      EXPECT_EQ(words.flag.load(), lane::kFlagEmpty);
      words.done_flag.store(0);
    }
  }

  const std::vector<uint32_t> kOrder = {0, 1, 0, 2};
  FakeLane fake_{3, 4};
  Graphs graphs_;
  cuda::Driver driver_ = {};
  std::unique_ptr<hoist::CudaContext> context_;
  std::unique_ptr<hoist::StreamOrder> order_;
  std::unique_ptr<PlanLane> lane_;
  cuda::Stream streams_[2] = {};
  Executable executable_ = nullptr;
};

TEST_P(PlanLaneOnGpu, AStreamWaitsForItsPositions) {
  for (const uint32_t group : kOrder) Use(group, streams_[0]);
  EXPECT_EQ(driver_.stream_query(streams_[0]), cuda::kNotReady);
  for (uint64_t position = 0; position < kOrder.size(); ++position) {
    fake_.Ready(kOrder[position], position);
    AwaitWord(fake_.group(kOrder[position]).done, lane::WordOf(position));
  }
  EXPECT_TRUE(order_->Synchronize(streams_[0]).ok());
}

TEST_P(PlanLaneOnGpu, AGraphRepeatsItsPass) {
  for (const bool two : {false, true}) {
    Capture(two);
    if (HasFatalFailure()) return;
    for (int launch = 0; launch < 3; ++launch) {
      ASSERT_EQ(graphs_.launch(executable_, streams_[0]), cuda::kSuccess);
      ServeOnePass();
      ASSERT_TRUE(order_->Synchronize(streams_[0]).ok());
      EXPECT_EQ(fake_.header().want.load(), 0u);
    }
    graphs_.destroy_executable(std::exchange(executable_, nullptr));
  }
  EXPECT_EQ(fake_.header().head.load(), 1u);
}

TEST_P(PlanLaneOnGpu, AStreamOutsideTheCaptureCannotJoinIt) {
  ASSERT_EQ(graphs_.begin(streams_[0], 0), cuda::kSuccess);
  EXPECT_EQ(order_->After(streams_[1], streams_[0]).code(),
            hoist::Code::kFailedPrecondition);
  EXPECT_EQ(order_->After(streams_[0], streams_[1]).code(),
            hoist::Code::kFailedPrecondition);
  EXPECT_EQ(order_->Synchronize(streams_[0]).code(),
            hoist::Code::kFailedPrecondition);
  Graph graph = nullptr;
  graphs_.end(streams_[0], &graph);
  if (graph != nullptr) graphs_.destroy(graph);
}

TEST_P(PlanLaneOnGpu, AfterTheEndNothingHangs) {
  Use(0, streams_[1]);  // Counted, and never ready.
  Capture(false);
  PlanLife life;
  ASSERT_TRUE(life.Watch(lane_.get()).ok());
  ASSERT_EQ(graphs_.launch(executable_, streams_[0]), cuda::kSuccess);
  life.End(Status(hoist::Code::kUnavailable, "gone"));
  EXPECT_TRUE(order_->Synchronize(streams_[0]).ok());
  EXPECT_TRUE(order_->Synchronize(streams_[1]).ok());
  ASSERT_EQ(graphs_.launch(executable_, streams_[0]), cuda::kSuccess);
  EXPECT_TRUE(order_->SynchronizeAll().ok());
  ASSERT_TRUE(life.Watch(nullptr).ok());
}

// Recorded, not judged: `--gtest_output=xml` shows it.
TEST_P(PlanLaneOnGpu, StagingIsMeasured) {
  fake_.ReadyForAll();
  std::vector<int64_t> nanoseconds;
  for (int pass = 0; pass < 500; ++pass) {
    for (const uint32_t group : kOrder) {
      const auto start = std::chrono::steady_clock::now();
      ASSERT_TRUE(lane_->FollowCapture(streams_[0], true).ok());
      Use(group, streams_[0]);
      nanoseconds.push_back((std::chrono::steady_clock::now() - start).count());
    }
  }
  ASSERT_TRUE(order_->Synchronize(streams_[0]).ok());
  std::sort(nanoseconds.begin(), nanoseconds.end());
  RecordProperty("stage_and_done_median_ns",
                 std::to_string(nanoseconds[nanoseconds.size() / 2]));
  EXPECT_EQ(lane_->stats().wake_ups, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Both, PlanLaneOnGpu, ::testing::Values("1", "0"),
    [](const ::testing::TestParamInfo<const char*>& which) {
      return std::string(which.param[0] == '1' ? "MemOps" : "HostFunctions");
    });

}  // namespace hoist_test::plan_lane_cuda_test
