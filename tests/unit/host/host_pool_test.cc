#include "daemon/host/host_pool.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "daemon/base/status.h"
#include "daemon/device/emulated_device.h"
#include "daemon/host/pool_memory.h"
#include "gmock/gmock.h"
#include "hoist/shared/mapping.h"
#include "tests/support/status_matchers.h"

namespace hoistd::host_pool_test {

absl::StatusOr<std::unique_ptr<HostPool>> MakePool(
    const HostPoolOptions& options, std::vector<Device*> devices) {
  HOIST_ASSIGN_OR_RETURN(const hoist::UniqueFd memory,
                         MakeHostMemory(options.bytes, PageKind::kSmall, 1));
  return HostPool::Create(options, std::move(devices), memory);
}

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Says it is CUDA's, and notes what is registered with it.
class PinningDevice final : public Device {
 public:
  PinningDevice() { info_.kind = DeviceKind::kCuda; }

  const DeviceInfo& info() const override { return info_; }
  absl::Status CreateSlab(const SlabSpec&) override { return Unused(); }
  absl::Status AdoptSlab(const SlabSpec&, hoist::UniqueFd) override {
    return Unused();
  }
  absl::Status DestroySlab(SlabId) override { return Unused(); }
  absl::Status ZeroSlab(SlabId) override { return Unused(); }
  absl::StatusOr<SlabShare> Share(SlabId) const override { return Unused(); }
  absl::StatusOr<std::unique_ptr<CopyStream>> CreateStream() override {
    return Unused();
  }
  absl::Status RegisterHost(std::span<std::byte> memory) override {
    const absl::MutexLock lock(&mu_);
    ++calls_;
    while (calls_ > allowed_) changed_.Wait(&mu_);
    if (calls_ == refuse_at_) return absl::ResourceExhaustedError("memlock");
    pinned_.push_back(memory);
    sizes_.push_back(memory.size());
    changed_.SignalAll();
    return absl::OkStatus();
  }
  absl::Status UnregisterHost(std::span<std::byte> memory) override {
    const absl::MutexLock lock(&mu_);
    const auto erased = std::erase_if(pinned_, [&](const auto& one) {
      return one.data() == memory.data() && one.size() == memory.size();
    });
    return erased == 1 ? absl::OkStatus() : absl::NotFoundError("not pinned");
  }

  // Lets the first `calls` registrations through; the next one waits.
  void Allow(int calls) {
    const absl::MutexLock lock(&mu_);
    allowed_ = calls;
    changed_.SignalAll();
  }
  void RefuseNth(int call) {
    const absl::MutexLock lock(&mu_);
    refuse_at_ = call;
  }
  size_t pinned() const {
    const absl::MutexLock lock(&mu_);
    return pinned_.size();
  }
  void WaitForPinned(size_t count) {
    const absl::MutexLock lock(&mu_);
    while (pinned_.size() < count) changed_.Wait(&mu_);
  }
  std::vector<std::byte*> starts() const {
    const absl::MutexLock lock(&mu_);
    std::vector<std::byte*> starts;
    for (const auto& one : pinned_) starts.push_back(one.data());
    return starts;
  }
  std::vector<uint64_t> sizes() const {
    const absl::MutexLock lock(&mu_);
    return sizes_;
  }

 private:
  static absl::Status Unused() { return absl::InternalError("not used here"); }

  DeviceInfo info_;
  mutable absl::Mutex mu_;
  absl::CondVar changed_;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  int allowed_ ABSL_GUARDED_BY(mu_) = 1000;
  int refuse_at_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::span<std::byte>> pinned_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> sizes_ ABSL_GUARDED_BY(mu_);
};

// Collects what OnGrown was told.
class Growth {
 public:
  explicit Growth(uint64_t goal) : goal_(goal) {}
  HostPool::OnGrown Callback() {
    return [this](uint64_t ready) {
      const absl::MutexLock lock(&mu_);
      told_.push_back(ready);
    };
  }
  void WaitFor(size_t count) {
    const absl::MutexLock lock(&mu_);
    const auto enough = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return told_.size() >= count;
    };
    mu_.Await(absl::Condition(&enough));
  }
  void WaitForAll() {
    const absl::MutexLock lock(&mu_);
    const auto all = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return !told_.empty() && told_.back() == goal_;
    };
    mu_.Await(absl::Condition(&all));
  }
  std::vector<uint64_t> told() const {
    const absl::MutexLock lock(&mu_);
    return told_;
  }

 private:
  const uint64_t goal_;
  mutable absl::Mutex mu_;
  std::vector<uint64_t> told_ ABSL_GUARDED_BY(mu_);
};

uint64_t ResidentBytes(const HostPool& pool) {
  std::vector<unsigned char> resident(pool.bytes() / 4096);
  EXPECT_EQ(mincore(pool.Address(0), pool.bytes(), resident.data()), 0);
  return 4096 * static_cast<uint64_t>(std::ranges::count(resident, 1));
}

HostPool::OnNote NoNotes() {
  return [](const std::string& note) { ADD_FAILURE() << note; };
}

HostPoolOptions Options() {
  return {.bytes = 20 * kMiB,
          .first_piece_bytes = 2 * kMiB,
          .piece_bytes = 8 * kMiB,
          .touch_threads = 2};
}

TEST(HostPool, WithEmulatedDevicesItIsWholeAtOnceAndTakesNoMemory) {
  ASSERT_OK_AND_ASSIGN(const auto device,
                       EmulatedDevice::Create({.total_bytes = 2 * kMiB}));
  ASSERT_OK_AND_ASSIGN(const auto pool,
                       MakePool({.bytes = uint64_t{64} << 30}, {device.get()}));
  EXPECT_EQ(pool->ready_bytes(), uint64_t{64} << 30);
  Growth growth(pool->bytes());
  ASSERT_OK(pool->Start(
      growth.Callback(), [] { return 0.0; }, NoNotes()));
  EXPECT_THAT(growth.told(), ElementsAre(uint64_t{64} << 30));
  // The last byte is there when it is wanted, and no sooner.
  std::byte* const last = pool->Address(pool->bytes() - 1);
  EXPECT_EQ(*last, std::byte{0});
  *last = std::byte{9};
  EXPECT_EQ(pool->span().back(), std::byte{9});
}

TEST(HostPool, PiecesAreRegisteredInOrderAndThePoolGrowsWithThem) {
  PinningDevice device;
  {
    ASSERT_OK_AND_ASSIGN(const auto pool, MakePool(Options(), {&device}));
    EXPECT_EQ(pool->ready_bytes(), 0u);
    Growth growth(pool->bytes());
    ASSERT_OK(pool->Start(
        growth.Callback(), [] { return 0.0; }, NoNotes()));
    growth.WaitForAll();
    EXPECT_THAT(growth.told(),
                ElementsAre(2 * kMiB, 10 * kMiB, 18 * kMiB, 20 * kMiB));
    EXPECT_THAT(device.sizes(),
                ElementsAre(2 * kMiB, 8 * kMiB, 8 * kMiB, 2 * kMiB));
    EXPECT_EQ(pool->ready_bytes(), pool->bytes());
    EXPECT_EQ(ResidentBytes(*pool), pool->bytes());
    EXPECT_EQ(device.pinned(), 4u);
  }
  EXPECT_EQ(device.pinned(), 0u);
}

TEST(HostPool, TheFirstPieceServesBeforeTheRestIsThere) {
  PinningDevice device;
  device.Allow(1);
  ASSERT_OK_AND_ASSIGN(auto pool, MakePool(Options(), {&device}));
  Growth growth(pool->bytes());
  ASSERT_OK(pool->Start(
      growth.Callback(), [] { return 0.0; }, NoNotes()));
  growth.WaitFor(1);
  EXPECT_EQ(pool->ready_bytes(), 2 * kMiB);
  std::memset(pool->Address(0), 7, 2 * kMiB);
  device.Allow(1000);
  growth.WaitForAll();
  // Bring-up has not written over it.
  EXPECT_EQ(*pool->Address(2 * kMiB - 1), std::byte{7});
}

TEST(HostPool, APieceThatCannotBePinnedIsNotedAndUsed) {
  PinningDevice device;
  device.RefuseNth(2);
  ASSERT_OK_AND_ASSIGN(const auto pool, MakePool(Options(), {&device}));
  Growth growth(pool->bytes());
  std::vector<std::string> notes;
  ASSERT_OK(pool->Start(
      growth.Callback(), [] { return 0.0; },
      [&](std::string note) { notes.push_back(std::move(note)); }));
  growth.WaitForAll();
  EXPECT_EQ(device.pinned(), 3u);
  EXPECT_EQ(pool->unpinned_bytes(), 8 * kMiB);
  EXPECT_THAT(notes, ElementsAre(AllOf(HasSubstr("bytes 2097152 + 8388608"),
                                       HasSubstr("LimitMEMLOCK"))));
}

TEST(HostPool, DestructionStopsBringUpWhereverItIs) {
  for (int started = 0; started < 4; ++started) {
    PinningDevice device;
    device.Allow(started);
    ASSERT_OK_AND_ASSIGN(auto pool, MakePool(Options(), {&device}));
    Growth growth(pool->bytes());
    ASSERT_OK(pool->Start(
        growth.Callback(), [] { return 0.0; }, NoNotes()));
    growth.WaitFor(started);
    device.Allow(1000);  // A driver call cannot be stopped.
    pool.reset();
    EXPECT_EQ(device.pinned(), 0u);
  }
}

TEST(HostPool, BesideCopiesPiecesAreSmallAndLittleIsTouchedAhead) {
  PinningDevice device;
  device.Allow(0);
  HostPoolOptions options = Options();
  options.bytes = 64 * kMiB;
  options.first_piece_bytes = 8 * kMiB;
  options.shy_piece_bytes = 2 * kMiB;
  options.touch_threads = 8;
  std::atomic<double> demand = 0.5;  // The pool asks until it ends.
  ASSERT_OK_AND_ASSIGN(const auto pool, MakePool(options, {&device}));
  Growth growth(pool->bytes());
  ASSERT_OK(pool->Start(
      growth.Callback(), [&] { return demand.load(); }, NoNotes()));
  for (int calls = 1; calls < 10; ++calls) {
    device.Allow(calls);
    growth.WaitFor(static_cast<size_t>(calls));
    EXPECT_LE(ResidentBytes(*pool),
              // And what a thread has in hand.
              (static_cast<uint64_t>(calls) + HostPool::kShyPiecesAhead + 1) *
                  options.shy_piece_bytes);
  }
  EXPECT_THAT(device.sizes(), ::testing::Each(2 * kMiB));
  demand = 0;
  device.Allow(1000);
  growth.WaitForAll();
  EXPECT_EQ(device.sizes().back(), 64 * kMiB - growth.told().end()[-2]);
  EXPECT_EQ(ResidentBytes(*pool), pool->bytes());
  EXPECT_THAT(device.sizes(), ::testing::Contains(8 * kMiB));
}

TEST(HostPool, PinningTakesTheTimeThatCopiesLeaveAndAPartOfItAtTheLeast) {
  const absl::Duration took = absl::Milliseconds(40);
  EXPECT_EQ(HostPool::PauseAfter(took, 0), absl::Milliseconds(1));
  EXPECT_EQ(HostPool::PauseAfter(took, 0.5), took);
  EXPECT_EQ(HostPool::PauseAfter(took, 0.75), 3 * took);
  const absl::Duration longest = HostPool::PauseAfter(took, 1);
  EXPECT_NEAR(absl::FDivDuration(took, took + longest), HostPool::kLeastPart,
              1e-6);
  EXPECT_EQ(HostPool::PauseAfter(took, 0.999), longest);
}

TEST(HostPool, APoolThatWasNeverStartedGoes) {
  PinningDevice device;
  EXPECT_OK(MakePool(Options(), {&device}));
}

TEST(HostPool, OddSizesAreRefused) {
  for (const uint64_t bytes : {uint64_t{0}, kMiB, 3 * kMiB}) {
    EXPECT_THAT(MakePool({.bytes = bytes}, {}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(MakePool({.bytes = 4 * kMiB, .piece_bytes = 1}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(HostPool, WhatIsFoundIsUsableAtOnceAndRegisteredBehindThat) {
  HostPoolOptions options = Options();
  options.found = true;
  PinningDevice device;
  device.Allow(0);
  ASSERT_OK_AND_ASSIGN(const auto pool, MakePool(options, {&device}));
  EXPECT_EQ(pool->ready_bytes(), pool->bytes());
  Growth growth(pool->bytes());
  ASSERT_OK(pool->Start(
      growth.Callback(), [] { return 0.0; }, NoNotes()));
  EXPECT_THAT(growth.told(), ElementsAre(pool->bytes()));
  device.Allow(1000);
  device.WaitForPinned(3);
  EXPECT_THAT(device.sizes(), ElementsAre(8 * kMiB, 8 * kMiB, 4 * kMiB));
  EXPECT_THAT(growth.told(), ElementsAre(pool->bytes()));
}

TEST(HostPool, WhoCopiesFromWhatIsFoundPinsItFirst) {
  HostPoolOptions options = Options();
  options.found = true;
  options.shy_piece_bytes = 2 * kMiB;
  PinningDevice device;
  ASSERT_OK_AND_ASSIGN(const auto pool, MakePool(options, {&device}));
  const auto part = [&](uint64_t offset, uint64_t bytes) {
    return pool->span().subspan(offset, bytes);
  };
  pool->Pin(part(5 * kMiB, 1));
  EXPECT_THAT(device.starts(), ElementsAre(pool->Address(4 * kMiB)));
  pool->Pin(part(3 * kMiB, 4 * kMiB));  // Beside that, and at both its sides.
  EXPECT_THAT(device.starts(),
              ElementsAre(pool->Address(4 * kMiB), pool->Address(2 * kMiB),
                          pool->Address(6 * kMiB)));
  std::array<std::byte, 8> elsewhere;
  pool->Pin(elsewhere);
  pool->Pin({});
  pool->Pin(part(19 * kMiB, kMiB));
  EXPECT_EQ(device.pinned(), 4u);
  // Bring-up fills the gaps.
  Growth growth(pool->bytes());
  ASSERT_OK(pool->Start(
      growth.Callback(), [] { return 0.0; }, NoNotes()));
  device.WaitForPinned(7);
  EXPECT_THAT(device.sizes(),
              ElementsAre(2 * kMiB, 2 * kMiB, 2 * kMiB, 2 * kMiB, 2 * kMiB,
                          8 * kMiB, 2 * kMiB));
}

TEST(HostPool, WhatIsBeingPinnedIsWaitedFor) {
  HostPoolOptions options = Options();
  options.found = true;
  PinningDevice device;
  device.Allow(0);
  ASSERT_OK_AND_ASSIGN(const auto pool, MakePool(options, {&device}));
  Growth growth(pool->bytes());
  ASSERT_OK(pool->Start(
      growth.Callback(), [] { return 0.0; }, NoNotes()));
  std::vector<std::thread> permits;
  for (int i = 0; i < 4; ++i) {
    permits.emplace_back([&] {
      pool->Pin(pool->span());
      EXPECT_EQ(device.pinned(), 3u);
    });
  }
  device.Allow(1000);
  for (std::thread& permit : permits) permit.join();
}

TEST(HostPool, MemoryThatIsOlderIsAsItWas) {
  ASSERT_OK_AND_ASSIGN(const hoist::UniqueFd memory,
                       MakeHostMemory(4 * kMiB, PageKind::kSmall, 1));
  const HostPoolOptions options = {.bytes = 4 * kMiB};
  {
    ASSERT_OK_AND_ASSIGN(const auto pool,
                         HostPool::Create(options, {}, memory));
    std::memset(pool->Address(kMiB), 7, kMiB);
  }
  ASSERT_OK_AND_ASSIGN(const auto pool, HostPool::Create(options, {}, memory));
  EXPECT_EQ(*pool->Address(2 * kMiB - 1), std::byte{7});
  EXPECT_THAT(HostPool::Create({.bytes = 8 * kMiB}, {}, memory),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace hoistd::host_pool_test
