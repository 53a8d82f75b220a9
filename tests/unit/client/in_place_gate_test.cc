// Who may be in a range whose pieces change places: on the CPU, and on streams
// of a (fake) GPU.
#include "client/src/in_place_gate.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/src/cuda_context.h"
#include "client/src/word_wait.h"
#include "gtest/gtest.h"
#include "hoist/shared/packet_socket.h"

namespace hoist {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSoon{1};
constexpr milliseconds kAtLast{60'000};  // Whoever waits so long has lost.

// The emulated device: a pass is whatever its thread does.
class EmulatedGate : public ::testing::Test {
 protected:
  // A pass waits for so long at most.
  void Make(milliseconds limit) {
    order_ = CreateEmulatedOrder(limit);
    auto gate = InPlaceGate::Create(order_.get());
    ASSERT_TRUE(gate.ok()) << gate.status().ToString();
    gate_ = std::move(gate).value();
  }

  std::unique_ptr<StreamOrder> order_;
  std::unique_ptr<InPlaceGate> gate_;
};

TEST_F(EmulatedGate, WhoIsInsideKeepsItOpen) {
  Make(kSoon);
  ASSERT_TRUE(gate_->Enter(nullptr).ok());
  EXPECT_FALSE(gate_->Close(kSoon));
  EXPECT_FALSE(gate_->Close(milliseconds(0)));
  // In vain, it left nothing closed.
  ASSERT_TRUE(gate_->Leave(nullptr).ok());
  ASSERT_TRUE(gate_->Enter(nullptr).ok());
  ASSERT_TRUE(gate_->Leave(nullptr).ok());
  EXPECT_TRUE(gate_->Close(kSoon));
}

TEST_F(EmulatedGate, WhoComesWaitsUntilItOpens) {
  Make(kSoon);
  ASSERT_TRUE(gate_->Close(kAtLast));
  EXPECT_EQ(gate_->Enter(nullptr).code(), Code::kDeadlineExceeded);
  gate_->Open();
  EXPECT_TRUE(gate_->Enter(nullptr).ok());
  EXPECT_TRUE(gate_->Leave(nullptr).ok());
}

TEST_F(EmulatedGate, WhoWaitsGoesOnWhenItOpens) {
  Make(kAtLast);
  ASSERT_TRUE(gate_->Close(kAtLast));
  std::atomic<bool> inside{false};
  std::thread pass([&] {
    EXPECT_TRUE(gate_->Enter(nullptr).ok());
    inside = true;
    EXPECT_TRUE(gate_->Leave(nullptr).ok());
  });
  EXPECT_FALSE(inside);
  gate_->Open();
  pass.join();
  EXPECT_TRUE(inside);
}

// Passes follow each other without a gap, and yet the closer gets in, alone.
// What both touch is not atomic: a race is what TSan would see, and a torn pass
// what the numbers show.
TEST_F(EmulatedGate, TheCloserGetsItsTurnsAndNobodyIsThereTogetherWithIt) {
  Make(kAtLast);
  constexpr int kTurns = 300;
  std::vector<int> range(64, 0);
  std::atomic<bool> over{false};
  std::atomic<int> passes{0};
  std::thread worker([&] {
    while (!over) {
      ASSERT_TRUE(gate_->Enter(nullptr).ok());
      const int first = range.front();
      for (const int piece : range) ASSERT_EQ(piece, first) << "a torn pass";
      ASSERT_TRUE(gate_->Leave(nullptr).ok());
      ++passes;
    }
  });
  for (int turn = 1; turn <= kTurns || passes < kTurns; ++turn) {
    ASSERT_TRUE(gate_->Close(kAtLast)) << "turn " << turn;
    for (int& piece : range) piece = turn;
    gate_->Open();
  }
  over = true;
  worker.join();
}

// Closers that give up are as if they had not been.
TEST_F(EmulatedGate, PassesGoOnBesideACloserThatGivesUp) {
  Make(kAtLast);
  std::atomic<bool> over{false};
  std::thread closer([&] {
    while (!over) {
      if (gate_->Close(milliseconds(0))) gate_->Open();
    }
  });
  int inside = 0;
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(gate_->Enter(nullptr).ok());
    ++inside;
    ASSERT_TRUE(gate_->Leave(nullptr).ok());
  }
  over = true;
  closer.join();
  EXPECT_EQ(inside, 20'000);
}

// With stream memory operations, and with host functions.
class CudaGate : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    Result<cuda::Driver> driver = cuda::Driver::Load();
    if (!driver.ok()) GTEST_SKIP() << driver.status().ToString();
    driver_ = *driver;
    cuda::DeviceId device = 0;
    cuda::Uuid uuid = {};
    ASSERT_EQ(driver_.device_get(&device, 0), cuda::kSuccess);
    ASSERT_EQ(driver_.device_uuid(&uuid, device), cuda::kSuccess);
    auto context = CudaContext::Open(uuid.bytes);
    ASSERT_TRUE(context.ok()) << context.status().ToString();
    context_ = std::move(context).value();
    setenv("HOIST_STREAM_OPS", GetParam(), 1);
    auto order = CreateCudaOrder(uuid.bytes);
    unsetenv("HOIST_STREAM_OPS");
    ASSERT_TRUE(order.ok()) << order.status().ToString();
    order_ = std::move(order).value();
    memory_ = Mapping::OfFd(CreateMemfd("words", 4096).value().get(), 4096,
                            Mapping::Access::kReadWrite)
                  .value();
    ASSERT_TRUE(order_->Register(memory_.span()).ok());
    auto gate = InPlaceGate::Create(order_.get());
    ASSERT_TRUE(gate.ok()) << gate.status().ToString();
    gate_ = std::move(gate).value();
    const cuda::ScopedContext current(driver_, context_->context());
    ASSERT_EQ(driver_.stream_create(&stream_, cuda::kStreamNonBlocking),
              cuda::kSuccess);
  }
  void TearDown() override {
    if (gate_ == nullptr) return;
    EXPECT_TRUE(order_->SynchronizeAll().ok());
    gate_.reset();
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

  cuda::Driver driver_ = {};
  std::unique_ptr<CudaContext> context_;
  std::unique_ptr<StreamOrder> order_;
  std::unique_ptr<InPlaceGate> gate_;
  Mapping memory_;
  cuda::Stream stream_ = nullptr;
  uint32_t kernels_ = 0;
};

TEST_P(CudaGate, WhatIsOnTheStreamIsInsideUntilItHasRun) {
  ASSERT_TRUE(gate_->Enter(stream_).ok());
  PutKernel();
  ASSERT_TRUE(gate_->Leave(stream_).ok());
  ASSERT_TRUE(Began(1));
  EXPECT_FALSE(gate_->Close(kSoon));
  End(1);
  ASSERT_TRUE(gate_->Close(kAtLast));
  EXPECT_EQ(word(2).load(), 1u);
  gate_->Open();
}

TEST_P(CudaGate, WhatIsPutWhileItIsClosedRunsWhenItOpens) {
  ASSERT_TRUE(gate_->Close(kAtLast));
  ASSERT_TRUE(gate_->Enter(stream_).ok());
  PutKernel();
  ASSERT_TRUE(gate_->Leave(stream_).ok());
  End(1);
  EXPECT_EQ(word(0).load(), 0u);
  gate_->Open();
  ASSERT_TRUE(order_->Synchronize(stream_).ok());
  EXPECT_EQ(word(2).load(), 1u);
}

// Passes that were all put before: none waits for the host between them.
TEST_P(CudaGate, TheCloserGetsItsTurnBetweenQueuedPasses) {
  constexpr uint32_t kPasses = 100, kTurns = 20;
  for (uint32_t i = 0; i < kPasses; ++i) {
    ASSERT_TRUE(gate_->Enter(stream_).ok());
    PutKernel();
    ASSERT_TRUE(gate_->Leave(stream_).ok());
  }
  uint32_t last = 0;  // Which was told to end.
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    ASSERT_TRUE(Began(last + 1));
    std::promise<void> closed;
    {
      // The one that follows too, if it began before the closer did.
      std::jthread ends([&, done = closed.get_future()] {
        do {
          End(++last);
        } while (done.wait_for(milliseconds(100)) != std::future_status::ready);
      });
      EXPECT_TRUE(gate_->Close(kAtLast));
      // No pass is in the middle.
      EXPECT_EQ(word(0).load(), word(2).load());
      EXPECT_LT(word(2).load(), kPasses);
      closed.set_value();
    }
    gate_->Open();
    ASSERT_FALSE(HasFailure());
  }
  End(kPasses);
  ASSERT_TRUE(order_->Synchronize(stream_).ok());
  EXPECT_EQ(word(2).load(), kPasses);
}

INSTANTIATE_TEST_SUITE_P(
    Both, CudaGate, ::testing::Values("1", "0"),
    [](const ::testing::TestParamInfo<const char*>& which) {
      return std::string(which.param[0] == '1' ? "MemOps" : "HostFunctions");
    });

}  // namespace
}  // namespace hoist
