#include "tests/conformance/device/rig.h"

#include <atomic>
#include <future>
#include <map>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/device/cuda_device.h"
#include "daemon/device/emulated_device.h"
#include "daemon/device/in_place_device.h"
#include "hoist/shared/cuda_driver.h"
#include "tests/conformance/device/share_text.h"

namespace hoistd::testing {
namespace {

// The program's devices, made when first asked for.
class Devices : public ::testing::Environment {
 public:
  // nullptr: this host has none.
  absl::StatusOr<Device*> Get(const DeviceCase& which) {
    HOIST_ASSIGN_OR_RETURN(Device* const reader, Reader(which.backing));
    if (reader == nullptr || !which.in_place) return reader;
    std::unique_ptr<InPlaceDevice>& in_place = in_place_[which.backing];
    if (!in_place) {
      InPlaceOptions options;
      options.index = DeviceIndex(1);
      options.total_bytes = 256 * kMiB;
      options.span_bytes = 4 * options.total_bytes;
      options.gpus = which.backing == Backing::kMemfd ? 0 : 1;
      HOIST_ASSIGN_OR_RETURN(in_place, InPlaceDevice::Create(options));
    }
    return in_place.get();
  }
  // Whose kernels read slabs of that backing.
  absl::StatusOr<Device*> Reader(Backing backing) {
    if (backing == Backing::kMemfd) {
      if (!emulated_) {
        HOIST_ASSIGN_OR_RETURN(
            emulated_, EmulatedDevice::Create({.total_bytes = 256 * kMiB}));
      }
      return emulated_.get();
    }
    if (!looked_) {
      looked_ = true;
      cuda_ = FindCudaDevices({});
    }
    HOIST_RETURN_IF_ERROR(cuda_.status());
    if (cuda_->empty()) return nullptr;
    return cuda_->front().get();
  }

  void TearDown() override {
    in_place_.clear();
    emulated_.reset();
    cuda_ = std::vector<std::unique_ptr<Device>>();
  }

 private:
  std::unique_ptr<Device> emulated_;
  bool looked_ = false;
  absl::StatusOr<std::vector<std::unique_ptr<Device>>> cuda_;
  std::map<Backing, std::unique_ptr<InPlaceDevice>> in_place_;
};

Devices* const devices =
    static_cast<Devices*>(::testing::AddGlobalTestEnvironment(new Devices));

// Ids are never reused.
SlabId NextId() {
  static std::atomic<uint64_t> last = 0;
  return SlabId(++last);
}

}  // namespace

std::string CaseName(const ::testing::TestParamInfo<DeviceCase>& info) {
  switch (info.param.backing) {
    case Backing::kMemfd:
      return info.param.in_place ? "in_place_memfd" : "emulated";
    case Backing::kVmm:
      return info.param.in_place ? "cuda_in_place" : "cuda_vmm";
    case Backing::kIpc:
      return "cuda_ipc";
  }
  return "";
}

void DeviceConformance::SetUp() {
  absl::StatusOr<Device*> found = devices->Get(GetParam());
  if (absl::IsUnimplemented(found.status())) {
    GTEST_SKIP() << found.status().message();
  }
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  if (*found == nullptr) {
    GTEST_SKIP() << "no CUDA driver or no GPU on this host";
  }
  device_ = *found;
  if (backing() == Backing::kIpc && !device_->info().ipc) {
    GTEST_SKIP() << "this GPU has no legacy IPC";
  }
}

InPlaceDevice* DeviceConformance::InPlaceBeside() {
  const absl::StatusOr<Device*> found = devices->Get({backing(), true});
  return found.ok() ? static_cast<InPlaceDevice*>(*found) : nullptr;
}

void DeviceConformance::TearDown() {
  // Some tests destroy their slabs themselves.
  for (const SlabId id : made_) device_->DestroySlab(id).IgnoreError();
}

SlabSpec DeviceConformance::Spec(uint64_t offset, uint64_t bytes) const {
  return {NextId(), offset, bytes, backing()};
}

absl::StatusOr<SlabSpec> DeviceConformance::MakeSlab(uint64_t offset,
                                                     uint64_t bytes) {
  const SlabSpec spec = Spec(offset, bytes);
  HOIST_RETURN_IF_ERROR(device_->CreateSlab(spec));
  made_.push_back(spec.id);
  return spec;
}

std::string DeviceConformance::kind() const {
  return backing() == Backing::kMemfd ? "emulated" : "cuda";
}

std::string DeviceConformance::DeviceCommand() const {
  return absl::StrCat("device ", kind(),
                      GetParam().in_place ? " in-place" : "");
}

std::string DeviceConformance::MapCommand() const {
  // A worker maps what is read in place for the device that reads it.
  const Device& reader = **devices->Reader(backing());
  return absl::StrCat("map ", kind(), " ", device_->info().span_bytes, " ",
                      ToHex(reader.info().uuid));
}

absl::StatusOr<std::unique_ptr<Peer>> DeviceConformance::SpawnWorker() {
  HOIST_ASSIGN_OR_RETURN(std::unique_ptr<Peer> worker, Peer::Spawn());
  HOIST_RETURN_IF_ERROR(worker->Call(MapCommand()).status());
  return worker;
}

absl::Status DeviceConformance::Import(Peer& worker, const SlabSpec& spec) {
  return Import(worker, spec, *device_);
}

absl::Status DeviceConformance::Import(Peer& worker, const SlabSpec& spec,
                                       const Device& device) {
  HOIST_ASSIGN_OR_RETURN(const SlabShare share, device.Share(spec.id));
  std::vector<int> fds;
  if (share.fd >= 0) fds.push_back(share.fd);
  return worker.Call("import " + SlabText(spec, share), fds).status();
}

absl::Status DeviceConformance::WaitFor(CopyStream& stream) {
  std::promise<absl::Status> done;
  stream.Then([&](absl::Status status) { done.set_value(std::move(status)); });
  return done.get_future().get();
}

absl::Status DeviceConformance::CopyIn(uint64_t to,
                                       std::span<const std::byte> from) {
  return CopyIn(*device_, to, from);
}

absl::Status DeviceConformance::CopyIn(Device& device, uint64_t to,
                                       std::span<const std::byte> from) {
  HOIST_ASSIGN_OR_RETURN(auto stream, device.CreateStream());
  HOIST_RETURN_IF_ERROR(stream->CopyIn(to, from));
  return WaitFor(*stream);
}

absl::StatusOr<std::vector<std::byte>> DeviceConformance::CopyOut(
    uint64_t from, uint64_t bytes) {
  std::vector<std::byte> to(bytes);
  HOIST_ASSIGN_OR_RETURN(auto stream, device_->CreateStream());
  HOIST_RETURN_IF_ERROR(stream->CopyOut(to, from));
  HOIST_RETURN_IF_ERROR(WaitFor(*stream));
  return to;
}

uint64_t DeviceConformance::FreeDeviceBytes() const {
  if (backing() == Backing::kMemfd) return 0;
  auto driver = hoist::cuda::Driver::Load();
  if (!driver.ok()) return 0;
  hoist::cuda::Context context = nullptr;
  size_t free = 0;
  size_t total = 0;
  // The suite uses the first GPU, whose context the device has retained.
  if (driver->primary_retain(&context, 0) != hoist::cuda::kSuccess) return 0;
  {
    const hoist::cuda::ScopedContext current(*driver, context);
    driver->memory_info(&free, &total);
  }
  driver->primary_release(0);
  return free;
}

INSTANTIATE_TEST_SUITE_P(, DeviceConformance, ::testing::ValuesIn(kDeviceCases),
                         CaseName);

}  // namespace hoistd::testing
