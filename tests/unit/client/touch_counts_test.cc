// Counters that kernels add to, on the CPU and over a (fake) GPU.
#include "client/src/in_place/touch_counts.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/on_gpu.h"

namespace hoist::touch_counts_test {

using ::testing::Each;
using ::testing::ElementsAre;

std::vector<uint32_t> Take(TouchCounts& counts) {
  Result<std::span<const uint32_t>> added = counts.Take();
  EXPECT_TRUE(added.ok()) << added.status().ToString();
  if (!added.ok()) return {};
  return {added->begin(), added->end()};
}

TEST(TouchCounts, TellsWhatWasAddedSinceTheLastCall) {
  std::vector<uint32_t> counts = {3, 0, 5};
  const auto taken = CountsOnCpu(counts.data(), counts.size()).value();
  EXPECT_THAT(Take(*taken), ElementsAre(3, 0, 5));
  EXPECT_THAT(Take(*taken), Each(0));
  counts = {4, 7, 5};
  EXPECT_THAT(Take(*taken), ElementsAre(1, 7, 0));
}

TEST(TouchCounts, ACounterMayWrap) {
  std::vector<uint32_t> counts = {UINT32_MAX - 1};
  const auto taken = CountsOnCpu(counts.data(), counts.size()).value();
  Take(*taken);
  counts[0] += 5;  // It wraps.
  EXPECT_THAT(Take(*taken), ElementsAre(5));
  counts[0] += UINT32_MAX;
  EXPECT_THAT(Take(*taken), ElementsAre(UINT32_MAX));
}

// Each touch is told once, whoever adds meanwhile.
TEST(TouchCounts, NothingThatIsAddedMeanwhileIsLost) {
  constexpr uint32_t kTouches = 100'000;
  std::vector<std::atomic<uint32_t>> counts(4);
  const auto taken = CountsOnCpu(counts.data(), counts.size()).value();
  std::thread adds([&] {
    for (uint32_t i = 0; i < kTouches; ++i) counts[i % 4].fetch_add(1);
  });
  uint64_t seen = 0;
  const auto take = [&] {
    for (const uint32_t added : Take(*taken)) seen += added;
  };
  for (int i = 0; i < 1000; ++i) take();
  adds.join();
  take();
  EXPECT_EQ(seen, kTouches);
}

class CudaTouchCounts : public testing::OnGpu<> {
 protected:
  static constexpr size_t kCounts = 4;

  void SetUp() override {
    OnGpu::SetUp();
    if (context_ == nullptr) return;
    const cuda::ScopedContext current(driver_, context_->context());
    ASSERT_EQ(driver_.alloc(&at_, kCounts * sizeof(uint32_t)), cuda::kSuccess);
    auto counts =
        CountsOnGpu(uuid_, reinterpret_cast<const void*>(at_), kCounts);
    ASSERT_TRUE(counts.ok()) << counts.status().ToString();
    counts_ = std::move(counts).value();
  }
  void TearDown() override {
    if (at_ == 0) return;
    counts_.reset();
    const cuda::ScopedContext current(driver_, context_->context());
    driver_.free(at_);
  }
  void Set(const std::vector<uint32_t>& counts) {
    const cuda::ScopedContext current(driver_, context_->context());
    ASSERT_EQ(driver_.copy_in(at_, counts.data(), kCounts * sizeof(uint32_t)),
              cuda::kSuccess);
  }

  cuda::Address at_ = 0;
  std::unique_ptr<TouchCounts> counts_;
};

TEST_F(CudaTouchCounts, AreReadFromTheGpusMemory) {
  Set({1, 2, 3, UINT32_MAX});
  EXPECT_THAT(Take(*counts_), ElementsAre(1, 2, 3, UINT32_MAX));
  Set({1, 3, 3, 1});
  EXPECT_THAT(Take(*counts_), ElementsAre(0, 1, 0, 2));
}

}  // namespace hoist::touch_counts_test
