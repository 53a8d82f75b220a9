// Words on CUDA streams. Runs over the fake driver where there is no GPU.
#include "client/src/device/stream_order.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"
#include "tests/unit/client/on_gpu.h"

namespace hoist::stream_order_test {

using Kind = WordOp::Kind;

// Each test with stream memory operations, and with host functions.
class CudaOrder : public testing::OnGpu<::testing::TestWithParam<const char*>> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (context_ == nullptr) return;
    ASSERT_EQ(driver_.push_context(context_->context()), cuda::kSuccess);
    for (cuda::Stream& stream : streams_) {
      ASSERT_EQ(driver_.stream_create(&stream, cuda::kStreamNonBlocking),
                cuda::kSuccess);
    }
    cuda::Context popped = nullptr;
    ASSERT_EQ(driver_.pop_context(&popped), cuda::kSuccess);
    setenv("HOIST_STREAM_OPS", GetParam(), 1);
    auto order = CreateCudaOrder(uuid_);
    unsetenv("HOIST_STREAM_OPS");
    ASSERT_TRUE(order.ok()) << order.status().ToString();
    order_ = std::move(order).value();
    memory_ = CreateMemfd("words", 4096).value();
    mapping_ =
        Mapping::OfFd(memory_.get(), 4096, Mapping::Access::kReadWrite).value();
    ASSERT_TRUE(order_->Register(mapping_.span()).ok());
  }

  void TearDown() override {
    if (context_ == nullptr) return;
    EXPECT_TRUE(order_->SynchronizeAll().ok());
    order_->Unregister(mapping_.span());
    const cuda::ScopedContext current(driver_, context_->context());
    for (cuda::Stream stream : streams_) driver_.stream_destroy(stream);
  }

  lane::Word& word(size_t i) {
    return reinterpret_cast<lane::Word*>(mapping_.data())[i];
  }
  WordOp Wait(size_t i, uint32_t value) {
    return {Kind::kWait, &word(i), value};
  }
  WordOp Write(size_t i, uint32_t value) {
    return {Kind::kWrite, &word(i), value};
  }
  bool Idle(cuda::Stream stream) {
    const cuda::ScopedContext current(driver_, context_->context());
    return driver_.stream_query(stream) == cuda::kSuccess;
  }

  std::unique_ptr<StreamOrder> order_;
  UniqueFd memory_;
  Mapping mapping_;
  std::array<cuda::Stream, 2> streams_ = {};
};

TEST_P(CudaOrder, AStreamWaitsForAWordAndThenWrites) {
  const std::array<WordOp, 3> ops = {{Wait(0, 5), Write(1, 7), Write(2, 8)}};
  ASSERT_TRUE(order_->Put(streams_[0], ops).ok());
  EXPECT_FALSE(Idle(streams_[0]));
  EXPECT_EQ(word(1).load(), 0u);
  word(0).store(5);
  ASSERT_TRUE(order_->Synchronize(streams_[0]).ok());
  EXPECT_EQ(word(1).load(), 7u);
  EXPECT_EQ(word(2).load(), 8u);
}

TEST_P(CudaOrder, WordsAreComparedAsWrappingCounters) {
  word(0).store(2);
  const std::array<WordOp, 2> ops = {{Wait(0, 0xfffffffe), Write(1, 1)}};
  ASSERT_TRUE(order_->Put(streams_[0], ops).ok());
  ASSERT_TRUE(order_->Synchronize(streams_[0]).ok());
  EXPECT_EQ(word(1).load(), 1u);
}

TEST_P(CudaOrder, OneStreamRunsBehindAnother) {
  const std::array<WordOp, 2> first = {{Wait(0, 1), Write(1, 1)}};
  const WordOp second = Write(1, 2);
  ASSERT_TRUE(order_->Put(streams_[0], first).ok());
  ASSERT_TRUE(order_->After(streams_[1], streams_[0]).ok());
  ASSERT_TRUE(order_->Put(streams_[1], {&second, 1}).ok());
  EXPECT_FALSE(Idle(streams_[1]));
  word(0).store(1);
  ASSERT_TRUE(order_->Synchronize(streams_[1]).ok());
  EXPECT_EQ(word(1).load(), 2u);
}

TEST_P(CudaOrder, AMarkIsOfTheWorkBeforeIt) {
  const std::array<WordOp, 2> first = {{Wait(0, 1), Write(1, 1)}};
  const WordOp second = Wait(0, 2);
  ASSERT_TRUE(order_->Put(streams_[0], first).ok());
  const auto mark = order_->MarkWork(streams_[0]);
  ASSERT_TRUE(mark.ok());
  ASSERT_TRUE(order_->Put(streams_[0], {&second, 1}).ok());
  word(0).store(1);
  ASSERT_TRUE(order_->Await(mark.value()).ok());
  EXPECT_EQ(word(1).load(), 1u);
  EXPECT_FALSE(Idle(streams_[0]));
  word(0).store(2);
}

TEST_P(CudaOrder, NothingIsCapturedUnlessItIs) {
  const Result<bool> capturing = order_->IsCapturing(streams_[0]);
  ASSERT_TRUE(capturing.ok());
  EXPECT_FALSE(capturing.value());
}

TEST_P(CudaOrder, SaysWhetherItsWaitsShareAThread) {
  EXPECT_EQ(order_->one_at_a_time(), std::string(GetParam()) == "0");
  EXPECT_FALSE(order_->on_cpu());
}

INSTANTIATE_TEST_SUITE_P(
    Both, CudaOrder, ::testing::Values("1", "0"),
    [](const ::testing::TestParamInfo<const char*>& which) {
      return std::string(which.param[0] == '1' ? "MemOps" : "HostFunctions");
    });

TEST(EmulatedOrder, AWordThatNeverComesEndsTheWait) {
  const auto order = CreateEmulatedOrder(std::chrono::milliseconds(1));
  lane::Word word{0};
  const WordOp wait = {Kind::kWait, &word, 1};
  EXPECT_EQ(order->Put(nullptr, {&wait, 1}).code(), Code::kDeadlineExceeded);
  word.store(1);
  EXPECT_TRUE(order->Put(nullptr, {&wait, 1}).ok());
}

}  // namespace hoist::stream_order_test
