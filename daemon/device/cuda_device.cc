#include "daemon/device/cuda_device.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/round.h"
#include "daemon/base/status.h"
#include "daemon/device/cuda_stream.h"

namespace hoistd {
namespace {

using hoist::cuda::kSuccess;
using hoist::cuda::ScopedContext;

constexpr uint64_t kMinGranularity = uint64_t{2} << 20;

absl::Status CheckDriver(const hoist::cuda::Driver& driver,
                         hoist::cuda::Error error, const char* what) {
  return ToAbsl(driver.Check(error, what));
}

// Does not need a context.
absl::StatusOr<DeviceInfo> Describe(const hoist::cuda::Driver& driver,
                                    hoist::cuda::DeviceId device) {
  DeviceInfo info;
  info.kind = DeviceKind::kCuda;
  char name[256] = "";
  HOIST_RETURN_IF_ERROR(CheckDriver(
      driver, driver.device_name(name, sizeof(name), device), "name"));
  info.name = name;
  hoist::cuda::Uuid uuid = {};
  HOIST_RETURN_IF_ERROR(
      CheckDriver(driver, driver.device_uuid(&uuid, device), "uuid"));
  info.uuid = uuid.bytes;
  size_t total = 0;
  HOIST_RETURN_IF_ERROR(
      CheckDriver(driver, driver.device_total(&total, device), "memory"));
  info.total_bytes = total;
  return info;
}

hoist::cuda::AllocationProp PropOf(hoist::cuda::DeviceId device) {
  hoist::cuda::AllocationProp prop;
  prop.location.id = device;
  return prop;
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Device>>> FindCudaDevices(
    const CudaDeviceOptions& options) {
  hoist::Result<hoist::cuda::Driver> driver = hoist::cuda::Driver::Load();
  if (driver.ok()) return FindCudaDevices(options, *driver);
  if (driver.status().code() == hoist::Code::kUnavailable) {
    return std::vector<std::unique_ptr<Device>>();
  }
  return Annotate(ToAbsl(driver.status()),
                  "there is a CUDA driver, but it cannot be used (set device "
                  "= \"emulated\" to do without)");
}

absl::StatusOr<std::vector<std::unique_ptr<Device>>> FindCudaDevices(
    const CudaDeviceOptions& options, const hoist::cuda::Driver& driver) {
  int count = 0;
  HOIST_RETURN_IF_ERROR(
      CheckDriver(driver, driver.device_count(&count), "count the GPUs"));
  const auto host = std::make_shared<CudaHostRanges>(driver);
  std::vector<std::unique_ptr<Device>> devices;
  for (int i = 0; i < count; ++i) {
    const DeviceIndex index(options.first_index.number() +
                            static_cast<uint32_t>(i));
    auto device = CudaDevice::Create(driver, i, index, options, host);
    if (!device.ok()) {
      return Annotate(device.status(), absl::StrCat("GPU ", i));
    }
    devices.push_back(*std::move(device));
  }
  return devices;
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(
    const hoist::cuda::Driver& driver, int ordinal, DeviceIndex index,
    const CudaDeviceOptions& options, std::shared_ptr<CudaHostRanges> host) {
  hoist::cuda::DeviceId id = 0;
  HOIST_RETURN_IF_ERROR(
      CheckDriver(driver, driver.device_get(&id, ordinal), "find"));
  HOIST_ASSIGN_OR_RETURN(DeviceInfo info, Describe(driver, id));
  const hoist::cuda::AllocationProp prop = PropOf(id);
  size_t granularity = 0;  // Stays so on a GPU without VMM.
  driver.granularity(&granularity, &prop, hoist::cuda::kGranularityMinimum);
  info.index = index;
  info.backing = options.backing;
  info.granularity = std::max<uint64_t>(granularity, kMinGranularity);
  info.span_bytes = RoundUp(
      options.span_bytes != 0 ? options.span_bytes : 4 * info.total_bytes,
      info.granularity);
  info.stream_words = driver.HasStreamWords(id);
  info.ipc = true;  // Until the probe says otherwise.

  hoist::cuda::Context context = nullptr;
  HOIST_RETURN_IF_ERROR(CheckDriver(driver, driver.primary_retain(&context, id),
                                    "open its context"));
  hoist::cuda::Address base = 0;
  {
    const ScopedContext current(driver, context);
    size_t free = 0, total = 0;
    if (driver.memory_info(&free, &total) == kSuccess) info.free_bytes = free;
    if (driver.reserve(&base, info.span_bytes, info.granularity, 0, 0) !=
        kSuccess) {
      base = 0;
    }
  }
  auto device = absl::WrapUnique(new CudaDevice(
      driver, id, context, std::move(info), base, std::move(host)));
  HOIST_RETURN_IF_ERROR(device->Probe());
  return device;
}

CudaDevice::CudaDevice(const hoist::cuda::Driver& driver,
                       hoist::cuda::DeviceId device,
                       hoist::cuda::Context context, DeviceInfo info,
                       hoist::cuda::Address base,
                       std::shared_ptr<CudaHostRanges> host)
    : driver_(driver),
      device_(device),
      context_(context),
      info_(std::move(info)),
      base_(base),
      host_(std::move(host)),
      slabs_(info_.granularity, info_.span_bytes) {}

CudaDevice::~CudaDevice() {
  absl::flat_hash_map<SlabId, Memory> left;
  absl::flat_hash_map<std::byte*, size_t> registered;
  {
    const absl::MutexLock lock(&mu_);
    left.swap(memory_);
    registered.swap(registered_);
  }
  {
    const ScopedContext current(driver_, context_);
    // A registration that cannot be undone ends with the context or the
    // process.
    for (const auto& [start, bytes] : registered) {
      host_->Unregister({start, bytes}).IgnoreError();
    }
    for (const auto& [id, memory] : left) FreeMemory(memory).IgnoreError();
    if (base_ != 0) driver_.unreserve(base_, info_.span_bytes);
  }
  driver_.primary_release(device_);
}

// The GPU may have an attribute that containers, MIG or old drivers still
// refuse. So this makes one small slab of each kind, once.
absl::Status CudaDevice::Probe() {
  const SlabSpec vmm = {SlabId(0), 0, info_.granularity, Backing::kVmm};
  const SlabSpec ipc = {SlabId(0), 0, info_.granularity, Backing::kIpc};
  absl::Status made = CreateSlab(ipc);
  if (made.ok()) made = DestroySlab(ipc.id);
  info_.ipc = made.ok();
  if (info_.backing == Backing::kIpc) {
    if (made.ok()) return made;
    return absl::FailedPreconditionError(
        absl::StrCat("it has no legacy IPC; set device.share = \"vmm\": ",
                     std::string(made.message())));
  }
  made = CreateSlab(vmm);
  if (made.ok()) return DestroySlab(vmm.id);
  return absl::FailedPreconditionError(absl::StrCat(
      "it cannot share memory by descriptor; ",
      info_.ipc ? "set device.share = \"ipc\"" : "use device = \"emulated\"",
      ": ", std::string(made.message())));
}

absl::Status CudaDevice::CheckBacking(Backing backing) const {
  if (backing == Backing::kMemfd || (backing == Backing::kVmm && base_ == 0) ||
      (backing == Backing::kIpc && !info_.ipc)) {
    return absl::UnimplementedError(
        absl::StrCat("GPU ", info_.index.number(), " (", info_.name,
                     ") has no slabs of this backing; it has",
                     base_ != 0 ? " vmm" : "", info_.ipc ? " ipc" : ""));
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::CreateSlab(const SlabSpec& spec) {
  HOIST_RETURN_IF_ERROR(CheckBacking(spec.backing));
  return AddSlab(spec, [&] { return MakeCleared(spec); });
}

absl::Status CudaDevice::AdoptSlab(const SlabSpec& spec, hoist::UniqueFd fd) {
  HOIST_RETURN_IF_ERROR(CheckBacking(spec.backing));
  if (spec.backing == Backing::kIpc) {
    return absl::UnimplementedError(
        "legacy IPC memory goes with the process that made it");
  }
  return AddSlab(spec, [&] { return ImportVmm(spec, std::move(fd)); });
}

// Workers write only to host memory.
absl::Status CudaDevice::ZeroSlab(SlabId) {
  return absl::UnimplementedError("a GPU's slabs are not written by workers");
}

absl::Status CudaDevice::AddSlab(
    const SlabSpec& spec, absl::FunctionRef<absl::StatusOr<Memory>()> make) {
  {
    const absl::MutexLock lock(&mu_);
    HOIST_RETURN_IF_ERROR(slabs_.CheckNew(spec));
    slabs_.Add(spec);
  }
  absl::StatusOr<Memory> memory = make();
  const absl::Status status = Explain(memory.status(), spec);
  const absl::MutexLock lock(&mu_);
  if (status.ok()) {
    memory_.emplace(spec.id, *std::move(memory));
  } else {
    slabs_.Remove(spec.id);
  }
  return status;
}

absl::StatusOr<CudaDevice::Memory> CudaDevice::MakeCleared(
    const SlabSpec& spec) {
  absl::StatusOr<Memory> memory =
      spec.backing == Backing::kVmm ? MakeVmm(spec) : MakeIpc(spec);
  if (!memory.ok()) return memory;
  if (absl::Status s = Zero(*memory); !s.ok()) {
    FreeMemory(*memory).IgnoreError();  // The first error says more.
    return s;
  }
  return memory;
}

absl::StatusOr<CudaDevice::Memory> CudaDevice::MakeVmm(const SlabSpec& spec) {
  const ScopedContext current(driver_, context_);
  HOIST_RETURN_IF_ERROR(Check(current.error(), "enter the context"));
  Memory memory;
  memory.address = base_ + spec.offset;
  memory.bytes = spec.bytes;
  const hoist::cuda::AllocationProp prop = PropOf(device_);
  hoist::cuda::Allocation allocation = 0;
  HOIST_RETURN_IF_ERROR(Check(driver_.create(&allocation, spec.bytes, &prop, 0),
                              "allocate a slab"));
  int fd = -1;
  absl::Status status = Check(
      driver_.export_handle(&fd, allocation, hoist::cuda::kHandlePosixFd, 0),
      "export a slab");
  memory.fd = hoist::UniqueFd(fd);
  fcntl(fd, F_SETFD, FD_CLOEXEC);  // Child programs must not inherit it.
  if (!status.ok()) {
    driver_.release(allocation);
    return status;
  }
  HOIST_RETURN_IF_ERROR(MapVmm(spec, allocation));
  return memory;
}

// An imported slab cannot be exported again, so the descriptor is kept.
absl::StatusOr<CudaDevice::Memory> CudaDevice::ImportVmm(const SlabSpec& spec,
                                                         hoist::UniqueFd fd) {
  const ScopedContext current(driver_, context_);
  HOIST_RETURN_IF_ERROR(Check(current.error(), "enter the context"));
  Memory memory;
  memory.address = base_ + spec.offset;
  memory.bytes = spec.bytes;
  memory.fd = std::move(fd);
  hoist::cuda::Allocation allocation = 0;
  HOIST_RETURN_IF_ERROR(
      Check(driver_.import_handle(
                &allocation,
                reinterpret_cast<void*>(static_cast<intptr_t>(memory.fd.get())),
                hoist::cuda::kHandlePosixFd),
            "import a slab that the keeper kept"));
  HOIST_RETURN_IF_ERROR(MapVmm(spec, allocation));
  return memory;
}

absl::Status CudaDevice::MapVmm(const SlabSpec& spec,
                                hoist::cuda::Allocation allocation) {
  const hoist::cuda::Address address = base_ + spec.offset;
  absl::Status status =
      Check(driver_.map(address, spec.bytes, 0, allocation, 0), "map a slab");
  // The mapping and the descriptor keep the memory alive.
  driver_.release(allocation);
  if (!status.ok()) return status;
  const hoist::cuda::AccessDesc access = {
      {hoist::cuda::kLocationDevice, device_}, hoist::cuda::kAccessReadWrite};
  status = Check(driver_.set_access(address, spec.bytes, &access, 1),
                 "open a slab for writing");
  if (!status.ok()) driver_.unmap(address, spec.bytes);
  return status;
}

absl::StatusOr<CudaDevice::Memory> CudaDevice::MakeIpc(const SlabSpec& spec) {
  const ScopedContext current(driver_, context_);
  HOIST_RETURN_IF_ERROR(Check(current.error(), "enter the context"));
  Memory memory;
  memory.backing = Backing::kIpc;
  memory.bytes = spec.bytes;
  HOIST_RETURN_IF_ERROR(
      Check(driver_.alloc(&memory.address, spec.bytes), "allocate a slab"));
  hoist::cuda::IpcHandle handle = {};
  absl::Status status =
      Check(driver_.ipc_get(&handle, memory.address), "export a slab");
  // A handle opens the whole allocation around the slab, so the slab must be an
  // allocation of its own. The driver packs those that are smaller than 2 MiB.
  if (status.ok() && memory.address % kMinGranularity != 0) {
    status = absl::InternalError("the driver's memory is not 2 MiB aligned");
  }
  if (!status.ok()) {
    driver_.free(memory.address);
    return status;
  }
  static_assert(sizeof(handle) == sizeof(memory.ipc_handle));
  std::memcpy(memory.ipc_handle.data(), &handle, sizeof(handle));
  return memory;
}

// The driver clears memory of other processes, but not this one's own.
absl::Status CudaDevice::Zero(const Memory& memory) {
  const ScopedContext current(driver_, context_);
  HOIST_RETURN_IF_ERROR(Check(current.error(), "enter the context"));
  HOIST_RETURN_IF_ERROR(Check(
      driver_.set_bytes(memory.address, 0, memory.bytes), "clear a slab"));
  // Else the clear would overlap with copies in streams that do not wait for
  // this one.
  return Check(driver_.stream_sync(nullptr), "wait for a slab to be cleared");
}

absl::Status CudaDevice::FreeMemory(const Memory& memory) {
  const ScopedContext current(driver_, context_);
  HOIST_RETURN_IF_ERROR(Check(current.error(), "enter the context"));
  if (memory.backing == Backing::kIpc) {
    return Check(driver_.free(memory.address), "free a slab");
  }
  return Check(driver_.unmap(memory.address, memory.bytes), "unmap a slab");
}

// Adds the requested, free and total bytes to ResourceExhausted.
absl::Status CudaDevice::Explain(const absl::Status& status,
                                 const SlabSpec& spec) const {
  if (status.code() != absl::StatusCode::kResourceExhausted) return status;
  const ScopedContext current(driver_, context_);
  size_t free = 0;
  size_t total = 0;
  if (driver_.memory_info(&free, &total) != kSuccess) return status;
  return Annotate(
      status,
      absl::StrCat("a slab of ", spec.bytes, " bytes; ", free, " of ", total,
                   " bytes are free on GPU ", info_.index.number()));
}

absl::Status CudaDevice::DestroySlab(SlabId id) {
  Memory memory;
  {
    const absl::MutexLock lock(&mu_);
    const auto it = memory_.find(id);
    if (it == memory_.end()) {
      return absl::NotFoundError(absl::StrCat("no slab ", id.number()));
    }
    memory = std::move(it->second);
    memory_.erase(it);
  }
  const absl::Status status = FreeMemory(memory);
  const absl::MutexLock lock(&mu_);
  if (status.ok()) {
    slabs_.Remove(id);
  } else {
    memory_.emplace(id, std::move(memory));
  }
  return status;
}

absl::StatusOr<uint64_t> CudaDevice::OthersBytes() {
  const auto in_slabs = [this] {
    const absl::MutexLock lock(&mu_);
    return slabs_.total_bytes();
  };
  const ScopedContext current(driver_, context_);
  HOIST_RETURN_IF_ERROR(Check(current.error(), "enter the context"));
  size_t free = 0, total = 0;
  const uint64_t before = in_slabs();
  HOIST_RETURN_IF_ERROR(
      Check(driver_.memory_info(&free, &total), "ask for free memory"));
  // A slab made or freed meanwhile must not pass for another program's memory.
  const uint64_t mine = free + std::max(before, in_slabs());
  return total - std::min<uint64_t>(total, mine);
}

absl::StatusOr<SlabShare> CudaDevice::Share(SlabId id) const {
  const absl::MutexLock lock(&mu_);
  const auto it = memory_.find(id);
  if (it == memory_.end()) {
    return absl::NotFoundError(absl::StrCat("no slab ", id.number()));
  }
  SlabShare share;
  share.backing = it->second.backing;
  share.fd = it->second.fd.get();
  share.keep_fd = share.fd;
  share.ipc_handle = it->second.ipc_handle;
  return share;
}

absl::Status CudaDevice::RegisterHost(std::span<std::byte> memory) {
  const ScopedContext current(driver_, context_);
  HOIST_RETURN_IF_ERROR(Check(current.error(), "enter the context"));
  {
    const absl::MutexLock lock(&mu_);
    if (!registered_.try_emplace(memory.data(), memory.size()).second) {
      return absl::AlreadyExistsError(
          "host memory that starts here is registered already");
    }
  }
  const absl::Status status = host_->Register(memory);
  if (status.ok()) return status;
  const absl::MutexLock lock(&mu_);
  registered_.erase(memory.data());
  return status;
}

absl::Status CudaDevice::UnregisterHost(std::span<std::byte> memory) {
  const ScopedContext current(driver_, context_);
  HOIST_RETURN_IF_ERROR(Check(current.error(), "enter the context"));
  {
    const absl::MutexLock lock(&mu_);
    const auto it = registered_.find(memory.data());
    if (it == registered_.end() || it->second != memory.size()) {
      return absl::NotFoundError("this host memory is not registered");
    }
    registered_.erase(it);
  }
  return host_->Unregister(memory);
}

absl::StatusOr<std::unique_ptr<CopyStream>> CudaDevice::CreateStream() {
  const ScopedContext current(driver_, context_);
  HOIST_RETURN_IF_ERROR(Check(current.error(), "enter the context"));
  hoist::cuda::Stream stream = nullptr;
  HOIST_RETURN_IF_ERROR(
      Check(driver_.stream_create(&stream, hoist::cuda::kStreamNonBlocking),
            "create a stream"));
  auto made = std::make_unique<CudaStream>(*this, stream);
  HOIST_RETURN_IF_ERROR(made->Start());
  return made;
}

absl::StatusOr<hoist::cuda::Address> CudaDevice::Range(uint64_t offset,
                                                       uint64_t bytes) const {
  const absl::MutexLock lock(&mu_);
  HOIST_RETURN_IF_ERROR(slabs_.CheckRange(offset, bytes));
  const SlabSpec& slab = slabs_.At(offset);
  const auto it = memory_.find(slab.id);
  if (it == memory_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "slab ", slab.id.number(), " is being created or destroyed"));
  }
  return it->second.address + (offset - slab.offset);
}

absl::Status CudaDevice::Check(hoist::cuda::Error error,
                               absl::string_view what) const {
  return ToAbsl(driver_.Check(error, {what.data(), what.size()}));
}

}  // namespace hoistd
