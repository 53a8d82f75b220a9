// The CUDA device over a fake driver: errors, what is left behind, and what
// several devices share. Copies and processes are the conformance suite's.
#include "daemon/device/cuda_device.h"

#include <atomic>
#include <future>

#include "client/src/device/device_map.h"
#include "daemon/base/status.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/device/fake_cuda_control.h"

namespace hoistd::cuda_device_test {

using testing::FakeCuda;
using testing::FindFakeCuda;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int kMaxCalls = 500;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_ = FindFakeCuda();
    if (!fake_) GTEST_SKIP() << "the fake driver is not first on the path";
    fake_->fail_at(0);
  }
  void TearDown() override {
    if (!fake_) return;
    fake_->fail_at(0);
    EXPECT_STREQ(fake_->held(), "");
  }

  std::optional<FakeCuda> fake_;
};

absl::Status Wait(CopyStream& stream) {
  std::promise<absl::Status> done;
  stream.Then([&](absl::Status status) { done.set_value(std::move(status)); });
  return done.get_future().get();
}

// One of everything. Where a call fails, its error comes out, and nobody hangs.
absl::Status UseEverything() {
  HOIST_ASSIGN_OR_RETURN(auto devices, FindCudaDevices({}));
  if (devices.size() != 1) return absl::InternalError("not one device");
  Device& device = *devices[0];
  HOIST_RETURN_IF_ERROR(
      device.CreateSlab({SlabId(1), 0, 2 * kMiB, Backing::kVmm}));
  HOIST_RETURN_IF_ERROR(
      device.CreateSlab({SlabId(2), 4 * kMiB, 2 * kMiB, Backing::kIpc}));
  std::vector<std::byte> host(kMiB, std::byte{5});
  HOIST_RETURN_IF_ERROR(device.RegisterHost(host));
  absl::Status status;
  {
    HOIST_ASSIGN_OR_RETURN(const auto stream, device.CreateStream());
    for (const uint64_t offset : {uint64_t{0}, 4 * kMiB}) {
      status.Update(stream->CopyIn(offset, host));
      status.Update(stream->CopyOut(host, offset));
      status.Update(Wait(*stream));
    }
  }
  status.Update(device.UnregisterHost(host));
  status.Update(device.DestroySlab(SlabId(1)));
  status.Update(device.DestroySlab(SlabId(2)));
  return status;
}

TEST_F(CudaDeviceTest, WhicheverCallFailsNothingIsLeftBehind) {
  ASSERT_OK(UseEverything());
  int failures = 0;
  for (int n = 1; n < kMaxCalls; ++n) {
    fake_->fail_at(n);
    const absl::Status status = UseEverything();
    const bool reached = fake_->calls() >= n;
    fake_->fail_at(0);
    if (!reached) break;
    failures += status.ok() ? 0 : 1;
    ASSERT_STREQ(fake_->held(), "")
        << "after a failure of call " << n << ": " << status.ToString();
  }
  EXPECT_GT(failures, 30);
}

// A word behind a copy, on a GPU that lets streams write words or does not.
absl::Status WriteOneWord(std::atomic<uint32_t>& word) {
  HOIST_ASSIGN_OR_RETURN(auto devices, FindCudaDevices({}));
  Device& device = *devices[0];
  HOIST_RETURN_IF_ERROR(
      device.CreateSlab({SlabId(1), 0, 2 * kMiB, Backing::kVmm}));
  const std::span<std::byte> memory = {reinterpret_cast<std::byte*>(&word),
                                       sizeof(word)};
  HOIST_RETURN_IF_ERROR(device.RegisterHost(memory));
  const std::vector<std::byte> host(kMiB, std::byte{5});
  absl::Status status;
  {
    HOIST_ASSIGN_OR_RETURN(const auto stream, device.CreateStream());
    const WordWrite write = {&word, 7};
    status.Update(stream->CopyIn(0, host));
    status.Update(stream->WriteWords({&write, 1}));
    status.Update(Wait(*stream));
    status.Update(stream->Health());
  }
  status.Update(device.UnregisterHost(memory));
  status.Update(device.DestroySlab(SlabId(1)));
  return status;
}

TEST_F(CudaDeviceTest, AGpuWhoseStreamsWriteNoWordsHasThemWritten) {
  for (const bool can : {true, false}) {
    fake_->set_stream_mem_ops(can);
    std::atomic<uint32_t> word = 0;
    const absl::Status status = WriteOneWord(word);
    fake_->set_stream_mem_ops(true);
    EXPECT_OK(status);
    EXPECT_EQ(word, 7u);
  }
}

TEST_F(CudaDeviceTest, WordsAreWrittenOrTheErrorIsTold) {
  for (const bool can : {true, false}) {
    fake_->set_stream_mem_ops(can);
    int failures = 0;
    for (int n = 1; n < kMaxCalls; ++n) {
      fake_->fail_at(n);
      std::atomic<uint32_t> word = 0;
      const absl::Status status = WriteOneWord(word);
      const bool reached = fake_->calls() >= n;
      fake_->fail_at(0);
      if (!reached) break;
      failures += status.ok() ? 0 : 1;
      EXPECT_EQ(status.ok() ? word.load() : 7u, 7u) << "call " << n;
      ASSERT_STREQ(fake_->held(), "") << "after a failure of call " << n;
    }
    EXPECT_GT(failures, 15);
  }
  fake_->set_stream_mem_ops(true);
}

TEST_F(CudaDeviceTest, WordsOutsideRegisteredMemoryAreRefused) {
  ASSERT_OK_AND_ASSIGN(auto devices, FindCudaDevices({}));
  ASSERT_OK_AND_ASSIGN(const auto stream, devices[0]->CreateStream());
  std::atomic<uint32_t> word = 0;
  const WordWrite write = {&word, 7};
  EXPECT_THAT(stream->WriteWords({&write, 1}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(CudaDeviceTest, TheErrorSaysWhatTheDriverSaid) {
  ASSERT_OK_AND_ASSIGN(auto devices, FindCudaDevices({}));
  EXPECT_THAT(devices[0]->CreateSlab({SlabId(1), 0, 512 * kMiB, Backing::kVmm}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("268435456 of 268435456 bytes are free")));
}

TEST_F(CudaDeviceTest, HostMemoryIsRegisteredOnceForAllDevices) {
  ASSERT_OK_AND_ASSIGN(auto driver, ToAbsl(hoist::cuda::Driver::Load()));
  const auto ranges = std::make_shared<CudaHostRanges>(driver);
  ASSERT_OK_AND_ASSIGN(
      auto first, CudaDevice::Create(driver, 0, DeviceIndex(0), {}, ranges));
  ASSERT_OK_AND_ASSIGN(
      auto second, CudaDevice::Create(driver, 0, DeviceIndex(1), {}, ranges));
  std::vector<std::byte> host(kMiB);
  const std::span<std::byte> half = std::span(host).first(kMiB / 2);
  EXPECT_OK(first->RegisterHost(host));
  EXPECT_OK(second->RegisterHost(host));
  EXPECT_THAT(first->RegisterHost(host),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(second->RegisterHost(half),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(ranges->Prefix(host.data() + 10, kMiB - 10), kMiB - 10);
  EXPECT_OK(first->UnregisterHost(host));
  EXPECT_THAT(std::string(fake_->held()), HasSubstr("registered 1"));
  EXPECT_OK(second->UnregisterHost(host));
  EXPECT_THAT(std::string(fake_->held()), HasSubstr("registered 0"));
  EXPECT_THAT(second->UnregisterHost(host),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(CudaDeviceTest, ADeviceUndoesItsRegistrationsWhenItGoes) {
  std::vector<std::byte> host(kMiB);
  ASSERT_OK_AND_ASSIGN(auto devices, FindCudaDevices({}));
  ASSERT_OK(devices[0]->RegisterHost(host));
  devices.clear();
  EXPECT_STREQ(fake_->held(), "");
}

TEST_F(CudaDeviceTest, ACopyIsCutAtTheEdgesOfRegisteredMemory) {
  ASSERT_OK_AND_ASSIGN(auto driver, ToAbsl(hoist::cuda::Driver::Load()));
  CudaHostRanges ranges(driver);
  ASSERT_OK_AND_ASSIGN(auto devices, FindCudaDevices({}));  // For a context.
  hoist::cuda::Context context = nullptr;
  ASSERT_EQ(driver.primary_retain(&context, 0), 0);
  {
    const hoist::cuda::ScopedContext current(driver, context);
    std::vector<std::byte> host(1000);
    const auto all = std::span(host);
    ASSERT_OK(ranges.Register(all.subspan(100, 200)));
    ASSERT_OK(ranges.Register(all.subspan(300, 100)));
    EXPECT_EQ(ranges.Prefix(host.data(), 50), 50u);
    EXPECT_EQ(ranges.Prefix(host.data(), 1000), 100u);
    EXPECT_EQ(ranges.Prefix(host.data() + 100, 900), 200u);
    EXPECT_EQ(ranges.Prefix(host.data() + 299, 2), 1u);
    EXPECT_EQ(ranges.Prefix(host.data() + 350, 650), 50u);
    EXPECT_EQ(ranges.Prefix(host.data() + 400, 600), 600u);
    EXPECT_EQ(ranges.Prefix(host.data() + 400, 0), 0u);
    ASSERT_OK(ranges.Unregister(all.subspan(100, 200)));
    ASSERT_OK(ranges.Unregister(all.subspan(300, 100)));
  }
  driver.primary_release(0);
}

TEST_F(CudaDeviceTest, AWorkersMapLeavesNothingBehindWhicheverCallFails) {
  ASSERT_OK_AND_ASSIGN(auto devices, FindCudaDevices({}));
  Device& device = *devices[0];
  ASSERT_OK(device.CreateSlab({SlabId(1), 0, 2 * kMiB, Backing::kVmm}));
  ASSERT_OK(device.CreateSlab({SlabId(2), 4 * kMiB, 2 * kMiB, Backing::kIpc}));
  ASSERT_OK_AND_ASSIGN(const SlabShare vmm, device.Share(SlabId(1)));
  ASSERT_OK_AND_ASSIGN(const SlabShare ipc, device.Share(SlabId(2)));
  const auto use = [&]() -> hoist::Status {
    auto map = hoist::CreateCudaDeviceMap(device.info().uuid,
                                          device.info().span_bytes);
    if (!map.ok()) return map.status();
    hoist::SlabImport one = {.id = 1,
                             .offset = 0,
                             .bytes = 2 * kMiB,
                             .backing = hoist::SlabBacking::kVmm,
                             .fd = hoist::UniqueFd(dup(vmm.fd))};
    if (auto s = (*map)->Import(std::move(one)); !s.ok()) return s;
    hoist::SlabImport two = {.id = 2,
                             .offset = 4 * kMiB,
                             .bytes = 2 * kMiB,
                             .backing = hoist::SlabBacking::kIpc,
                             .ipc_handle = ipc.ipc_handle};
    if (auto s = (*map)->Import(std::move(two)); !s.ok()) return s;
    return (*map)->Drop(1);  // The destructor closes the other.
  };
  const std::string before = fake_->held();
  ASSERT_TRUE(use().ok()) << use().ToString();
  for (int n = 1; n < kMaxCalls; ++n) {
    fake_->fail_at(n);
    const hoist::Status status = use();
    const bool reached = fake_->calls() >= n;
    fake_->fail_at(0);
    if (!reached) break;
    ASSERT_EQ(fake_->held(), before)
        << "after a failure of call " << n << ": " << status.ToString();
  }
}

TEST_F(CudaDeviceTest, AnotherGpuIsNotFoundAndTheMessageSaysWhereToLook) {
  const auto map = hoist::CreateCudaDeviceMap({1, 2, 3}, 64 * kMiB);
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.status().code(), hoist::Code::kNotFound);
  EXPECT_THAT(map.status().message(),
              HasSubstr("GPU-01020300-0000-0000-0000-000000000000"));
  EXPECT_THAT(map.status().message(), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

}  // namespace hoistd::cuda_device_test
