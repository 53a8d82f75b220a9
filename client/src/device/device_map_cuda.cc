// A CUDA device's memory: VMM slabs mapped for reading, and legacy IPC slabs.
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "client/src/device/cuda_context.h"
#include "client/src/device/device_map.h"
#include "client/src/device/slab_ranges.h"
#include "hoist/shared/cuda_driver.h"

namespace hoist {
namespace {

class CudaDeviceMap final : public DeviceMap {
 public:
  CudaDeviceMap(std::unique_ptr<CudaContext> context, uint64_t span_bytes)
      : opened_(std::move(context)),
        driver_(opened_->driver()),
        device_(opened_->device()),
        context_(opened_->context()),
        span_bytes_(span_bytes),
        slabs_(span_bytes) {}
  CudaDeviceMap(const CudaDeviceMap&) = delete;
  CudaDeviceMap& operator=(const CudaDeviceMap&) = delete;
  ~CudaDeviceMap() override;

  Status Import(SlabImport slab) override;
  Status Drop(uint64_t slab_id) override;
  const void* Address(uint64_t offset) const override;
  Result<SlabHandle> Handle(uint64_t offset) const override;

 private:
  Status CheckProcess() const;
  Status ReserveSpan();
  Result<cuda::Allocation> ImportVmm(const SlabImport& slab);
  Status MapVmm(const SlabImport& slab);
  Result<cuda::Address> OpenIpc(const SlabImport& slab);
  Status Close(const SlabRange& slab);

  const std::unique_ptr<CudaContext> opened_;
  const cuda::Driver& driver_;
  const cuda::DeviceId device_;
  const cuda::Context context_;
  const uint64_t span_bytes_;
  mutable std::mutex mu_;
  cuda::Address base_ = 0;  // Guarded by mu_. 0: no VMM slab came yet.
  SlabRanges slabs_;        // Guarded by mu_.
};

CudaDeviceMap::~CudaDeviceMap() {
  // After a fork the child has the object but not the context.
  if (opened_->forked()) return;
  const cuda::ScopedContext current(driver_, context_);
  // At exit the driver, and with it the memory, may be gone already. There is
  // no one left to report an error to.
  for (const auto& [offset, slab] : slabs_.by_offset()) (void)Close(slab);
  if (base_ != 0) driver_.unreserve(base_, span_bytes_);
}

// Called for the first VMM slab: a GPU with IPC slabs only may not support VMM.
Status CudaDeviceMap::ReserveSpan() {
  if (base_ != 0) return Status();
  return driver_.Check(
      driver_.reserve(&base_, span_bytes_, kSlabAlignment, 0, 0),
      "reserve GPU address space");
}

Status CudaDeviceMap::CheckProcess() const {
  if (!opened_->forked()) return Status();
  return Status(Code::kFailedPrecondition,
                "CUDA cannot be used after a fork; connect anew in the child "
                "after an exec");
}

Status CudaDeviceMap::Import(SlabImport slab) {
  if (Status s = CheckProcess(); !s.ok()) return s;
  const std::lock_guard<std::mutex> lock(mu_);
  if (slabs_.Find(slab.id) != nullptr) return Status();
  if (Status s = slabs_.CheckFree(slab); !s.ok()) return s;
  const cuda::ScopedContext current(driver_, context_);
  if (current.error() != cuda::kSuccess) {
    return driver_.Check(current.error(), "enter the GPU's context");
  }
  cuda::Address address = 0;
  if (slab.apart && slab.backing == SlabBacking::kVmm) {
    Result<cuda::Allocation> allocation = ImportVmm(slab);
    if (!allocation.ok()) return allocation.status();
    slabs_.Add(
        {slab.id, slab.offset, slab.bytes, slab.backing, 0, true, *allocation});
    return Status();
  }
  switch (slab.backing) {
    case SlabBacking::kMemfd:
      return Status(Code::kInvalidArgument,
                    "a CUDA device has no slabs of memfd backing");
    case SlabBacking::kVmm:
      if (Status s = MapVmm(slab); !s.ok()) return s;
      address = base_ + slab.offset;
      break;
    case SlabBacking::kIpc: {
      Result<cuda::Address> opened = OpenIpc(slab);
      if (!opened.ok()) return opened.status();
      address = *opened;
      break;
    }
  }
  slabs_.Add({slab.id, slab.offset, slab.bytes, slab.backing, address});
  return Status();
}

Result<cuda::Allocation> CudaDeviceMap::ImportVmm(const SlabImport& slab) {
  const std::string name = "slab " + std::to_string(slab.id);
  if (!slab.fd.valid()) {
    return Status(Code::kInvalidArgument, name + " came without descriptor");
  }
  cuda::Allocation allocation = 0;
  const cuda::Error error = driver_.import_handle(
      &allocation,
      reinterpret_cast<void*>(static_cast<uintptr_t>(slab.fd.get())),
      cuda::kHandlePosixFd);
  if (error != cuda::kSuccess) return driver_.Check(error, "import " + name);
  return allocation;
}

Status CudaDeviceMap::MapVmm(const SlabImport& slab) {
  const std::string name = "slab " + std::to_string(slab.id);
  const Result<cuda::Allocation> allocation = ImportVmm(slab);
  if (!allocation.ok()) return allocation.status();
  Status reserved = ReserveSpan();
  const cuda::Address at = base_ + slab.offset;
  cuda::Error error = cuda::kSuccess;
  if (reserved.ok())
    error = driver_.map(at, slab.bytes, 0, allocation.value(), 0);
  // The mapping keeps the memory; neither handle nor descriptor is needed.
  driver_.release(allocation.value());
  if (!reserved.ok()) return reserved;
  if (error != cuda::kSuccess) return driver_.Check(error, "map " + name);
  const cuda::AccessDesc access = {{cuda::kLocationDevice, device_},
                                   cuda::kAccessRead};
  error = driver_.set_access(at, slab.bytes, &access, 1);
  if (error != cuda::kSuccess) {
    driver_.unmap(at, slab.bytes);
    return driver_.Check(error, "make " + name + " readable");
  }
  return Status();
}

Result<cuda::Address> CudaDeviceMap::OpenIpc(const SlabImport& slab) {
  cuda::IpcHandle handle;
  for (size_t i = 0; i < handle.bytes.size(); ++i) {
    handle.bytes[i] = static_cast<char>(slab.ipc_handle[i]);
  }
  cuda::Address address = 0;
  const cuda::Error error =
      driver_.ipc_open(&address, handle, cuda::kIpcLazyPeerAccess);
  if (error != cuda::kSuccess) {
    return driver_.Check(error, "open slab " + std::to_string(slab.id));
  }
  return address;
}

Status CudaDeviceMap::Close(const SlabRange& slab) {
  const std::string name = "slab " + std::to_string(slab.id);
  if (slab.backing == SlabBacking::kIpc) {
    return driver_.Check(driver_.ipc_close(slab.address), "close " + name);
  }
  if (slab.apart) {
    return driver_.Check(driver_.release(slab.allocation), "release " + name);
  }
  return driver_.Check(driver_.unmap(slab.address, slab.bytes),
                       "unmap " + name);
}

Status CudaDeviceMap::Drop(uint64_t slab_id) {
  if (Status s = CheckProcess(); !s.ok()) return s;
  const std::lock_guard<std::mutex> lock(mu_);
  const SlabRange* slab = slabs_.Find(slab_id);
  if (slab == nullptr) {
    return Status(Code::kNotFound, "no slab " + std::to_string(slab_id));
  }
  const cuda::ScopedContext current(driver_, context_);
  if (current.error() != cuda::kSuccess) {
    return driver_.Check(current.error(), "enter the GPU's context");
  }
  if (Status s = Close(*slab); !s.ok()) return s;
  slabs_.Remove(slab_id);
  return Status();
}

const void* CudaDeviceMap::Address(uint64_t offset) const {
  const std::lock_guard<std::mutex> lock(mu_);
  const SlabRange* slab = slabs_.At(offset);
  if (slab == nullptr || slab->address == 0) return nullptr;
  return reinterpret_cast<const void*>(slab->address + (offset - slab->offset));
}

Result<SlabHandle> CudaDeviceMap::Handle(uint64_t offset) const {
  const std::lock_guard<std::mutex> lock(mu_);
  const SlabRange* slab = slabs_.At(offset);
  if (slab == nullptr || slab->allocation == 0 || slab->offset != offset) {
    return Status(Code::kNotFound,
                  "no slab apart begins at " + std::to_string(offset));
  }
  return SlabHandle{slab->bytes, nullptr, slab->allocation};
}

}  // namespace

Result<std::unique_ptr<DeviceMap>> CreateCudaDeviceMap(
    const std::array<uint8_t, 16>& uuid, uint64_t span_bytes) {
  Result<std::unique_ptr<CudaContext>> context = CudaContext::Open(uuid);
  if (!context.ok()) return context.status();
  return std::unique_ptr<DeviceMap>(
      std::make_unique<CudaDeviceMap>(std::move(context).value(), span_bytes));
}

}  // namespace hoist
