// Arenas' order on CUDA streams, and memfds that a worker pins. Runs over the
// fake driver where there is no GPU.
#include "client/src/device/arena_memory.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "gtest/gtest.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"
#include "tests/unit/client/on_gpu.h"

namespace hoist::arena_memory_test {

constexpr uint64_t kSlab = uint64_t{2} << 20;

std::vector<SlabImport> Memfds(int count) {
  std::vector<SlabImport> slabs(static_cast<size_t>(count));
  for (SlabImport& slab : slabs) {
    slab.bytes = kSlab;
    slab.fd = CreateMemfd("slab", kSlab).value();
  }
  return slabs;
}

TEST(EmulatedArenaMemory, SlabsLieSideBySideAndUsesAreOverWhenTheyAreTold) {
  std::vector<SlabImport> slabs = Memfds(2);
  const int second = slabs[1].fd.get();
  UniqueFd kept(dup(second));
  const auto memory = CreateEmulatedArenaMemory(std::move(slabs)).value();
  std::memset(memory->base(), 7, 2 * kSlab);
  const Mapping seen =
      Mapping::OfFd(kept.get(), kSlab, Mapping::Access::kRead).value();
  EXPECT_EQ(std::memcmp(seen.data(), memory->base() + kSlab, kSlab), 0);
  EXPECT_EQ(memory->pinned_bytes(), 2 * kSlab);
  EXPECT_EQ(memory->MarkOn(nullptr).value(), nullptr);
}

// Whoever touches what lies behind its end would be killed.
TEST(EmulatedArenaMemory, AMemfdThatIsTooShortIsRefused) {
  std::vector<SlabImport> slabs = Memfds(1);
  slabs[0].bytes = 2 * kSlab;
  EXPECT_EQ(CreateEmulatedArenaMemory(std::move(slabs)).status().code(),
            Code::kInvalidArgument);
  std::vector<SlabImport> none(1);
  none[0].bytes = kSlab;
  EXPECT_EQ(CreateEmulatedArenaMemory(std::move(none)).status().code(),
            Code::kInvalidArgument);
}

class CudaArena : public testing::OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (context_ == nullptr) return;
    const cuda::ScopedContext current(driver_, context_->context());
    for (cuda::Stream& stream : streams_) {
      ASSERT_EQ(driver_.stream_create(&stream, cuda::kStreamNonBlocking),
                cuda::kSuccess);
    }
  }
  void TearDown() override {
    if (context_ == nullptr) return;
    hold_ = false;
    const cuda::ScopedContext current(driver_, context_->context());
    for (cuda::Stream stream : streams_) {
      driver_.stream_sync(stream);
      driver_.stream_destroy(stream);
    }
  }
  // What is put on the stream from now on waits until Let().
  void Hold(cuda::Stream stream) {
    hold_ = true;
    const cuda::ScopedContext current(driver_, context_->context());
    ASSERT_EQ(driver_.launch_host_function(stream, &WaitUntilLet, this),
              cuda::kSuccess);
  }
  void Let() {
    hold_ = false;
    hold_.notify_all();
  }
  bool Idle(cuda::Stream stream) {
    const cuda::ScopedContext current(driver_, context_->context());
    return driver_.stream_query(stream) == cuda::kSuccess;
  }
  void Sync(cuda::Stream stream) {
    const cuda::ScopedContext current(driver_, context_->context());
    ASSERT_EQ(driver_.stream_sync(stream), cuda::kSuccess);
  }

  std::array<cuda::Stream, 2> streams_ = {};

 private:
  static void WaitUntilLet(void* test) {
    static_cast<CudaArena*>(test)->hold_.wait(true);
  }

  std::atomic<bool> hold_{false};
};

TEST_F(CudaArena, AStreamWaitsForTheUseOfAnother) {
  const auto memory = CreateCudaArenaMemory(uuid_, Memfds(1)).value();
  Hold(streams_[0]);
  const ArenaRanges::Mark mark = memory->MarkOn(streams_[0]).value();
  ASSERT_NE(mark, nullptr);
  ASSERT_TRUE(memory->WaitFor({{1, mark}}, streams_[1]).ok());
  EXPECT_FALSE(Idle(streams_[1]));
  Let();
  Sync(streams_[1]);
  EXPECT_TRUE(memory->Synchronize({{1, mark}}).ok());
}

// An event that is used again stands for its later use; who waits for the
// first one does not wait for that.
TEST_F(CudaArena, AMarkThatNobodyHasIsUsedAgain) {
  const auto memory = CreateCudaArenaMemory(uuid_, Memfds(1)).value();
  const void* first = memory->MarkOn(streams_[0]).value().get();
  const ArenaRanges::Mark second = memory->MarkOn(streams_[0]).value();
  EXPECT_EQ(second.get(), first);
  EXPECT_NE(memory->MarkOn(streams_[0]).value().get(), first);
}

TEST_F(CudaArena, MemfdsArePinnedInTheBackgroundAndLetGo) {
  std::vector<SlabImport> slabs = Memfds(3);
  for (int round = 0; round < 2; ++round) {
    std::vector<SlabImport> own(slabs.size());
    for (size_t i = 0; i < slabs.size(); ++i) {
      own[i].bytes = kSlab;
      own[i].fd = UniqueFd(dup(slabs[i].fd.get()));
    }
    const auto memory = CreateCudaArenaMemory(uuid_, std::move(own)).value();
    memory->base()[0] = std::byte{5};  // At any time.
    while (memory->pinned_bytes() == 0) std::this_thread::yield();
    EXPECT_EQ(memory->pinned_bytes(), 3 * kSlab);
    EXPECT_EQ(memory->base()[0], std::byte{5});
  }
}

}  // namespace hoist::arena_memory_test
