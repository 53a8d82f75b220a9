// What the conformance suite does not say: options, totals, the link.
#include "daemon/device/emulated_device.h"

#include <atomic>
#include <future>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace hoistd::emulated_device_test {

using ::testing::HasSubstr;
using testing::StatusIs;

constexpr uint64_t kMiB = uint64_t{1} << 20;

absl::StatusOr<std::unique_ptr<EmulatedDevice>> Make(uint32_t index,
                                                     const char* pool) {
  return EmulatedDevice::Create(
      {.index = DeviceIndex(index), .pool = pool, .total_bytes = 8 * kMiB});
}

TEST(EmulatedDevice, TheUuidIsThatOfPoolAndIndex) {
  ASSERT_OK_AND_ASSIGN(const auto a, Make(0, "x"));
  ASSERT_OK_AND_ASSIGN(const auto again, Make(0, "x"));
  ASSERT_OK_AND_ASSIGN(const auto other_index, Make(1, "x"));
  ASSERT_OK_AND_ASSIGN(const auto other_pool, Make(0, "y"));
  EXPECT_EQ(a->info().uuid, again->info().uuid);
  EXPECT_NE(a->info().uuid, other_index->info().uuid);
  EXPECT_NE(a->info().uuid, other_pool->info().uuid);
}

TEST(EmulatedDevice, OddSizesAreRefused) {
  for (const uint64_t total : {uint64_t{0}, kMiB, 3 * kMiB}) {
    EXPECT_THAT(EmulatedDevice::Create({.total_bytes = total}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(
      EmulatedDevice::Create({.total_bytes = 8 * kMiB, .span_bytes = 4 * kMiB}),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(EmulatedDevice, SlabsTogetherNeverExceedTheTotal) {
  ASSERT_OK_AND_ASSIGN(const auto device, Make(0, "x"));
  const auto slab = [&](uint64_t id, uint64_t bytes) {
    return device->CreateSlab({SlabId(id), id * 8 * kMiB, bytes});
  };
  ASSERT_OK(slab(0, 6 * kMiB));
  EXPECT_THAT(slab(1, 4 * kMiB),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("2097152 of 8388608 bytes are free")));
  ASSERT_OK(slab(1, 2 * kMiB));
  ASSERT_OK(device->DestroySlab(SlabId(0)));
  EXPECT_OK(slab(2, 6 * kMiB));
}

// Moves on by a millisecond each time that it is asked.
class SteppingClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::Milliseconds(++asked_);
  }
  int asked() const { return asked_; }

 private:
  mutable std::atomic<int> asked_ = 0;
};

TEST(EmulatedDevice, ACopyEndsWhenTheLinksTimeIsOverOnTheGivenClock) {
  SteppingClock clock;
  ASSERT_OK_AND_ASSIGN(
      const auto device,
      EmulatedDevice::Create({.total_bytes = 8 * kMiB,
                              .link_bytes_per_second = 200 * kMiB,  // 10 ms.
                              .clock = &clock}));
  ASSERT_OK(device->CreateSlab({SlabId(1), 0, 2 * kMiB}));
  ASSERT_OK_AND_ASSIGN(const auto stream, device->CreateStream());
  const std::vector<std::byte> from(2 * kMiB, std::byte{7});
  ASSERT_OK(stream->CopyIn(0, from));  // Asks for the first time: 1 ms.
  std::promise<int> done;
  stream->Then([&](const absl::Status&) { done.set_value(clock.asked()); });
  EXPECT_GE(done.get_future().get(), 11);
}

}  // namespace hoistd::emulated_device_test
