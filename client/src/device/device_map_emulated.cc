// The emulated device's memory: memfds, mapped for reading.
#include <sys/stat.h>

#include <cerrno>
#include <mutex>
#include <string>
#include <utility>

#include "client/src/device/device_map.h"
#include "client/src/device/slab_ranges.h"
#include "hoist/shared/mapping.h"

namespace hoist {
namespace {

class EmulatedDeviceMap final : public DeviceMap {
 public:
  EmulatedDeviceMap(Mapping span, uint64_t span_bytes)
      : slabs_(span_bytes), span_(std::move(span)) {}

  Status Import(SlabImport slab) override {
    if (slab.backing != SlabBacking::kMemfd) {
      return Status(Code::kInvalidArgument,
                    "an emulated device's slabs come as memfds only");
    }
    const std::lock_guard<std::mutex> lock(mu_);
    if (slabs_.Find(slab.id) != nullptr) return Status();
    if (Status s = slabs_.CheckFree(slab); !s.ok()) return s;
    // A read past the end of the file raises SIGBUS.
    struct stat info;
    if (fstat(slab.fd.get(), &info) != 0) {
      return ErrnoStatus(errno, "slab " + std::to_string(slab.id));
    }
    if (static_cast<uint64_t>(info.st_size) < slab.bytes) {
      return Status(Code::kInvalidArgument,
                    "slab " + std::to_string(slab.id) + " holds " +
                        std::to_string(info.st_size) + " bytes, not " +
                        std::to_string(slab.bytes));
    }
    // The mapping keeps the memory; the descriptor goes with `slab`.
    if (Status s = span_.PlaceFd(slab.offset, slab.fd.get(), slab.bytes,
                                 Mapping::Access::kRead);
        !s.ok()) {
      return s;
    }
    slabs_.Add({slab.id, slab.offset, slab.bytes, slab.backing,
                reinterpret_cast<uint64_t>(span_.data()) + slab.offset,
                slab.apart});
    return Status();
  }

  Result<SlabHandle> Handle(uint64_t offset) const override {
    const std::lock_guard<std::mutex> lock(mu_);
    const SlabRange* slab = slabs_.At(offset);
    if (slab == nullptr || !slab->apart || slab->offset != offset) {
      return Status(Code::kNotFound,
                    "no slab apart begins at " + std::to_string(offset));
    }
    return SlabHandle{slab->bytes, span_.data() + offset, 0};
  }

  Status Drop(uint64_t slab_id) override {
    const std::lock_guard<std::mutex> lock(mu_);
    const SlabRange* slab = slabs_.Find(slab_id);
    if (slab == nullptr) {
      return Status(Code::kNotFound, "no slab " + std::to_string(slab_id));
    }
    if (Status s = span_.Unplace(slab->offset, slab->bytes); !s.ok()) return s;
    slabs_.Remove(slab_id);
    return Status();
  }

  const void* Address(uint64_t offset) const override {
    const std::lock_guard<std::mutex> lock(mu_);
    if (slabs_.At(offset) == nullptr) return nullptr;
    return span_.data() + offset;
  }

 private:
  mutable std::mutex mu_;
  SlabRanges slabs_;  // Guarded by mu_.
  Mapping span_;      // Its pages, too; its place is fixed.
};

}  // namespace

Result<std::unique_ptr<DeviceMap>> CreateEmulatedDeviceMap(
    uint64_t span_bytes) {
  Result<Mapping> span = Mapping::Reserve(span_bytes);
  if (!span.ok()) return span.status();
  return std::unique_ptr<DeviceMap>(
      std::make_unique<EmulatedDeviceMap>(std::move(span).value(), span_bytes));
}

}  // namespace hoist
