// Work that is held between passes: on the CPU, and on streams of a (fake) GPU.
#include "client/src/in_place/pass_boundary.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/src/device/word_wait.h"
#include "gtest/gtest.h"
#include "hoist/shared/packet_socket.h"
#include "tests/unit/client/on_gpu.h"

namespace hoist::pass_boundary_test {

using std::chrono::milliseconds;

constexpr milliseconds kSoon{1};
constexpr milliseconds kAtLast{60'000};  // Whoever waits so long has lost.

const std::atomic<bool> kNever{false};

// The emulated device: a pass is whatever its thread does.
class EmulatedBoundary : public ::testing::Test {
 protected:
  // A pass waits for so long at most.
  void Make(milliseconds limit) {
    order_ = CreateEmulatedOrder(limit);
    auto boundary = PassBoundary::Create(order_.get());
    ASSERT_TRUE(boundary.ok()) << boundary.status().ToString();
    boundary_ = std::move(boundary).value();
  }

  std::unique_ptr<StreamOrder> order_;
  std::unique_ptr<PassBoundary> boundary_;
};

TEST_F(EmulatedBoundary, NobodyIsHeldWhereNobodyStands) {
  Make(kSoon);
  EXPECT_FALSE(boundary_->Hold(kSoon, kNever));
  EXPECT_FALSE(boundary_->Hold(milliseconds(0), kNever));
  const std::atomic<bool> cancelled{true};
  EXPECT_FALSE(boundary_->Hold(kAtLast, cancelled));
  // In vain, it left nothing forbidden.
  EXPECT_TRUE(boundary_->Put(nullptr).ok());
}

TEST_F(EmulatedBoundary, AWaitHasItsLimit) {
  Make(kSoon);
  std::thread pass([&] {
    while (boundary_->Put(nullptr).ok()) {
    }
  });
  EXPECT_TRUE(boundary_->Hold(kAtLast, kNever));
  pass.join();  // DeadlineExceeded.
  boundary_->Release();
}

// Passes follow each other without a gap, and yet it gets its turns, alone.
// What both touch is not atomic: a race is what TSan would see, and a torn pass
// what the numbers show.
TEST_F(EmulatedBoundary, TurnsComeBetweenPassesAndNobodyIsInOneMeanwhile) {
  Make(kAtLast);
  constexpr int kTurns = 300;
  std::vector<int> range(64, 0);
  std::atomic<bool> over{false};
  std::atomic<int> passes{0};
  std::thread worker([&] {
    while (!over) {
      ASSERT_TRUE(boundary_->Put(nullptr).ok());
      const int first = range.front();
      for (const int piece : range) ASSERT_EQ(piece, first) << "a torn pass";
      ++passes;
    }
  });
  for (int turn = 1; turn <= kTurns || passes < kTurns; ++turn) {
    ASSERT_TRUE(boundary_->Hold(kAtLast, kNever)) << "turn " << turn;
    for (int& piece : range) piece = turn;
    boundary_->Release();
  }
  over = true;
  worker.join();
}

// Who gives up is as if it had not been.
TEST_F(EmulatedBoundary, PassesGoOnBesideOneThatGivesUp) {
  Make(kAtLast);
  std::atomic<bool> over{false};
  std::thread closer([&] {
    while (!over) {
      if (boundary_->Hold(milliseconds(0), kNever)) boundary_->Release();
    }
  });
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(boundary_->Put(nullptr).ok());
  }
  over = true;
  closer.join();
}

// With stream memory operations, and with host functions.
class CudaBoundary
    : public testing::OnGpu<::testing::TestWithParam<const char*>> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (context_ == nullptr) return;
    setenv("HOIST_STREAM_OPS", GetParam(), 1);
    auto order = CreateCudaOrder(uuid_);
    unsetenv("HOIST_STREAM_OPS");
    ASSERT_TRUE(order.ok()) << order.status().ToString();
    order_ = std::move(order).value();
    memory_ = Mapping::OfFd(CreateMemfd("words", 4096).value().get(), 4096,
                            Mapping::Access::kReadWrite)
                  .value();
    ASSERT_TRUE(order_->Register(memory_.span()).ok());
    auto boundary = PassBoundary::Create(order_.get());
    ASSERT_TRUE(boundary.ok()) << boundary.status().ToString();
    boundary_ = std::move(boundary).value();
    const cuda::ScopedContext current(driver_, context_->context());
    ASSERT_EQ(driver_.stream_create(&stream_, cuda::kStreamNonBlocking),
              cuda::kSuccess);
  }
  void TearDown() override {
    if (boundary_ == nullptr) return;
    EXPECT_TRUE(order_->SynchronizeAll().ok());
    boundary_.reset();
    order_->Unregister(memory_.span());
    const cuda::ScopedContext current(driver_, context_->context());
    driver_.stream_destroy(stream_);
  }
  lane::Word& word(size_t i) {
    return reinterpret_cast<lane::Word*>(memory_.data())[i];
  }
  // A kernel: it begins, and ends when it is told to.
  void PutKernel() {
    const std::array<WordOp, 3> ops = {
        {{WordOp::Kind::kWrite, &word(0), ++kernels_},
         {WordOp::Kind::kWait, &word(1), kernels_},
         {WordOp::Kind::kWrite, &word(2), kernels_}}};
    ASSERT_TRUE(order_->Put(stream_, ops).ok());
  }
  bool Began(uint32_t kernel) {
    return WaitWord(word(0), kernel,
                    std::chrono::steady_clock::now() + kAtLast);
  }
  void End(uint32_t kernel) {
    word(1).store(kernel);
    WakeWord(word(1));
  }

  std::unique_ptr<StreamOrder> order_;
  std::unique_ptr<PassBoundary> boundary_;
  Mapping memory_;
  cuda::Stream stream_ = nullptr;
  uint32_t kernels_ = 0;
};

TEST_P(CudaBoundary, APassThatIsNeverMadeIsNotWaitedFor) {
  EXPECT_FALSE(boundary_->Hold(kSoon, kNever));
  ASSERT_TRUE(boundary_->Put(stream_).ok());
  PutKernel();
  End(1);
  ASSERT_TRUE(order_->Synchronize(stream_).ok());
  EXPECT_FALSE(boundary_->Hold(kSoon, kNever));
}

// Passes that were all put before: none waits for the host between them. What
// was put before the place has run, and what comes after has not. Whoever holds
// lets the one go that stands there at its first look, so each turn may take
// the end of several kernels.
TEST_P(CudaBoundary, TurnsComeBetweenQueuedPasses) {
  constexpr uint32_t kPasses = 100, kTurns = 20;
  for (uint32_t i = 0; i < kPasses; ++i) {
    ASSERT_TRUE(boundary_->Put(stream_).ok());
    PutKernel();
  }
  ASSERT_TRUE(Began(1));
  EXPECT_FALSE(boundary_->Hold(kSoon, kNever)) << "in the middle of a pass";
  uint32_t last = 0;  // Which was told to end.
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    ASSERT_TRUE(Began(last + 1));
    std::promise<void> held;
    {
      // The one that follows too, if it began before it was forbidden.
      std::jthread ends([&, done = held.get_future()] {
        do {
          End(++last);
        } while (done.wait_for(milliseconds(100)) != std::future_status::ready);
      });
      EXPECT_TRUE(boundary_->Hold(kAtLast, kNever));
      // No pass is in the middle.
      EXPECT_EQ(word(0).load(), word(2).load());
      EXPECT_LT(word(2).load(), kPasses);
      held.set_value();
    }
    boundary_->Release();
    ASSERT_FALSE(HasFailure());
  }
  End(kPasses);
  ASSERT_TRUE(order_->Synchronize(stream_).ok());
  EXPECT_EQ(word(2).load(), kPasses);
}

INSTANTIATE_TEST_SUITE_P(
    Both, CudaBoundary, ::testing::Values("1", "0"),
    [](const ::testing::TestParamInfo<const char*>& which) {
      return std::string(which.param[0] == '1' ? "MemOps" : "HostFunctions");
    });

}  // namespace hoist::pass_boundary_test
