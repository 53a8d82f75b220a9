// What the conformance suite does not say of memory in place: options, and
// what is left behind where the (fake) driver refuses.
#include "daemon/device/in_place_device.h"

#include <fcntl.h>

#include <cstring>
#include <future>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/device/cuda_device.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/device/fake_cuda_control.h"

namespace hoistd::in_place_device_test {

using testing::FakeCuda;
using testing::FindFakeCuda;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int kMaxCalls = 500;

InPlaceOptions Options(int gpus) {
  InPlaceOptions options;
  options.index = DeviceIndex(3);
  options.total_bytes = 8 * kMiB;
  options.span_bytes = 32 * kMiB;
  options.gpus = gpus;
  return options;
}

TEST(InPlaceDevice, OddSizesAreRefused) {
  for (const uint64_t total : {uint64_t{0}, kMiB, 3 * kMiB, 64 * kMiB}) {
    InPlaceOptions options = Options(0);
    options.total_bytes = total;
    EXPECT_THAT(InPlaceDevice::Create(options),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

// By its uuid a successor knows that it is the same.
TEST(InPlaceDevice, ItIsTheSameWhateverOtherDevicesThereAre) {
  ASSERT_OK_AND_ASSIGN(const auto one, InPlaceDevice::Create(Options(0)));
  InPlaceOptions options = Options(0);
  options.index = DeviceIndex(1);
  ASSERT_OK_AND_ASSIGN(const auto other, InPlaceDevice::Create(options));
  EXPECT_EQ(one->info().uuid, other->info().uuid);
  EXPECT_EQ(one->info().kind, DeviceKind::kInPlace);
  EXPECT_EQ(one->info().backing, Backing::kMemfd);
  EXPECT_FALSE(one->info().ipc);
}

class InPlaceOnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_ = FindFakeCuda();
    if (!fake_) GTEST_SKIP() << "the fake driver is not first on the path";
    fake_->fail_at(0);
  }
  void TearDown() override {
    if (!fake_) return;
    fake_->fail_at(0);
    fake_->set_host_memory(true);
    EXPECT_STREQ(fake_->held(), "");
  }

  std::optional<FakeCuda> fake_;
};

// A slab that is filled, copied to a GPU, kept and adopted.
absl::Status UseEverything() {
  HOIST_ASSIGN_OR_RETURN(auto gpus, FindCudaDevices({}));
  if (gpus.size() != 1) return absl::InternalError("not one device");
  HOIST_ASSIGN_OR_RETURN(auto device, InPlaceDevice::Create(Options(1)));
  const SlabSpec slab = {SlabId(1), 4 * kMiB, 2 * kMiB, Backing::kVmm, true};
  HOIST_RETURN_IF_ERROR(device->CreateSlab(slab));
  const auto bytes = device->span().subspan(slab.offset, slab.bytes);
  std::memset(bytes.data(), 7, bytes.size());
  HOIST_RETURN_IF_ERROR(
      gpus[0]->CreateSlab({SlabId(2), 0, 2 * kMiB, Backing::kVmm}));
  std::vector<std::byte> out(bytes.size());
  absl::Status status;
  {
    HOIST_ASSIGN_OR_RETURN(const auto stream, gpus[0]->CreateStream());
    status.Update(stream->CopyIn(0, bytes));
    status.Update(stream->CopyOut(out, 0));
    std::promise<absl::Status> done;
    stream->Then([&](absl::Status s) { done.set_value(std::move(s)); });
    status.Update(done.get_future().get());
  }
  status.Update(gpus[0]->DestroySlab(SlabId(2)));
  HOIST_RETURN_IF_ERROR(status);
  if (std::memcmp(out.data(), bytes.data(), out.size()) != 0) {
    return absl::DataLossError("other bytes");
  }
  HOIST_ASSIGN_OR_RETURN(const SlabShare share, device->Share(slab.id));
  hoist::UniqueFd kept(fcntl(share.keep_fd, F_DUPFD_CLOEXEC, 0));
  HOIST_RETURN_IF_ERROR(device->DestroySlab(slab.id));
  HOIST_RETURN_IF_ERROR(device->AdoptSlab(slab, std::move(kept)));
  const auto again = device->span().subspan(slab.offset, slab.bytes);
  return again[5] == std::byte{7} ? absl::OkStatus()
                                  : absl::DataLossError("not what was kept");
}

// Nor by a device that goes with slabs in it, as those of a hoistd that stops.
TEST_F(InPlaceOnGpus, WhicheverCallFailsNothingIsLeftBehind) {
  ASSERT_OK(UseEverything());
  ASSERT_STREQ(fake_->held(), "");
  int failures = 0;
  for (int n = 1; n < kMaxCalls; ++n) {
    fake_->fail_at(n);
    const absl::Status status = UseEverything();
    const bool reached = fake_->calls() >= n;
    fake_->fail_at(0);
    if (!reached) break;
    failures += status.ok() ? 0 : 1;
    EXPECT_NE(status.code(), absl::StatusCode::kDataLoss) << "call " << n;
    ASSERT_STREQ(fake_->held(), "")
        << "after a failure of call " << n << ": " << status.ToString();
  }
  EXPECT_GT(failures, 30);
}

TEST_F(InPlaceOnGpus, ADriverWithoutSharedHostMemorySaysSo) {
  fake_->set_host_memory(false);
  EXPECT_THAT(InPlaceDevice::Create(Options(1)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("cannot be shared with GPUs here")));
}

TEST_F(InPlaceOnGpus, SlabsTogetherNeverExceedTheTotal) {
  ASSERT_OK_AND_ASSIGN(const auto device, InPlaceDevice::Create(Options(1)));
  const auto slab = [&](uint64_t id, uint64_t bytes) {
    return device->CreateSlab(
        {SlabId(id), id * 8 * kMiB, bytes, Backing::kVmm, true});
  };
  ASSERT_OK(slab(0, 6 * kMiB));
  EXPECT_THAT(slab(1, 4 * kMiB),
              StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_OK(slab(1, 2 * kMiB));
}

}  // namespace hoistd::in_place_device_test
