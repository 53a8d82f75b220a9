#include <map>
#include <string>
#include <utility>

#include "client/src/device/cuda_context.h"
#include "client/src/device/device_map.h"
#include "client/src/device/piece_range.h"
#include "hoist/shared/cuda_driver.h"

namespace hoist {
namespace {

// Bytes made readable by one call: enough that the cost of the call itself does
// not matter, and less than what is asked for ahead, so that hoistd goes on.
constexpr uint64_t kOpenAtOnce = uint64_t{64} << 20;

class CudaRange final : public PieceRange {
 public:
  CudaRange(std::unique_ptr<CudaContext> context, cuda::Address base,
            uint64_t bytes)
      : context_(std::move(context)), base_(base), bytes_(bytes) {}
  CudaRange(const CudaRange&) = delete;
  CudaRange& operator=(const CudaRange&) = delete;
  ~CudaRange() override {
    // The child of a fork has the object and not the context.
    if (context_->forked()) return;
    const cuda::ScopedContext current(driver(), context_->context());
    // At exit the driver, and with it the mappings, may be gone already.
    for (const auto& slabs : {placed_, own_}) {
      for (const auto& [offset, bytes] : slabs) {
        driver().unmap(base_ + offset, bytes);
      }
    }
    driver().unreserve(base_, bytes_);
  }

  const void* address() const override {
    return reinterpret_cast<const void*>(static_cast<uintptr_t>(base_));
  }

  Status Place(uint64_t offset, const SlabHandle& slab) override {
    return InContext([&] {
      if (Status s = Unmap(offset); !s.ok()) return s;
      if (Status s = Map(offset, slab); !s.ok()) return s;
      return MakeReadable(offset, slab.bytes);
    });
  }

  Status Lay(uint64_t offset, const SlabHandle& slab) override {
    return InContext([&] {
      if (Status s = Map(offset, slab); !s.ok()) return s;
      const uint64_t end = offset + slab.bytes;
      return end - open_to_ < kOpenAtOnce ? Status() : OpenTo(end);
    });
  }

  Status Open() override {
    return InContext([&] {
      const auto last = placed_.rbegin();
      return last == placed_.rend() ? Status()
                                    : OpenTo(last->first + last->second);
    });
  }

  Status LayOwn(uint64_t offset, const SlabHandle& own) override {
    return InContext([&] {
      const cuda::Error error =
          driver().map(base_ + offset, own.bytes, 0, own.allocation, 0);
      if (error != cuda::kSuccess) {
        return driver().Check(error, "map the worker's own memory");
      }
      own_[offset] = own.bytes;
      return SetAccess(offset, own.bytes, cuda::kAccessReadWrite);
    });
  }

  void DropOwn() override {
    (void)InContext([&] {
      for (const auto& [offset, bytes] : own_) {
        driver().unmap(base_ + offset, bytes);
      }
      own_.clear();
      return Status();
    });
  }

  Status Clear() override {
    return InContext([&] {
      open_to_ = 0;
      while (!placed_.empty()) {
        if (Status s = Unmap(placed_.begin()->first); !s.ok()) return s;
      }
      return Status();
    });
  }

 private:
  const cuda::Driver& driver() const { return context_->driver(); }

  template <typename Work>
  Status InContext(const Work& work) {
    const cuda::ScopedContext current(driver(), context_->context());
    if (current.error() != cuda::kSuccess) {
      return driver().Check(current.error(), "enter the GPU's context");
    }
    return work();
  }

  Status Unmap(uint64_t offset) {
    const auto old = placed_.find(offset);
    if (old == placed_.end()) return Status();
    const cuda::Error error = driver().unmap(base_ + offset, old->second);
    if (error == cuda::kSuccess) placed_.erase(old);
    return driver().Check(error, "unmap a piece");
  }

  Status Map(uint64_t offset, const SlabHandle& slab) {
    const cuda::Error error =
        driver().map(base_ + offset, slab.bytes, 0, slab.allocation, 0);
    if (error == cuda::kSuccess) placed_[offset] = slab.bytes;
    return driver().Check(error, "map a piece");
  }

  Status OpenTo(uint64_t end) {
    if (end == open_to_) return Status();
    Status opened = MakeReadable(open_to_, end - open_to_);
    if (opened.ok()) open_to_ = end;
    return opened;
  }

  Status MakeReadable(uint64_t offset, uint64_t bytes) {
    return SetAccess(offset, bytes, cuda::kAccessRead);
  }

  Status SetAccess(uint64_t offset, uint64_t bytes, int flags) {
    const cuda::AccessDesc access = {
        {cuda::kLocationDevice, context_->device()}, flags};
    return driver().Check(
        driver().set_access(base_ + offset, bytes, &access, 1),
        "make pieces readable");
  }

  const std::unique_ptr<CudaContext> context_;
  const cuda::Address base_;
  const uint64_t bytes_;
  std::map<uint64_t, uint64_t> placed_;  // Bytes, by offset.
  std::map<uint64_t, uint64_t> own_;     // Likewise.
  uint64_t open_to_ = 0;                 // Laid slabs before it are readable.
};

}  // namespace

Result<OwnSlab> CreateCudaSlab(const std::array<uint8_t, 16>& uuid,
                               uint64_t bytes) {
  Result<std::unique_ptr<CudaContext>> opened = CudaContext::Open(uuid);
  if (!opened.ok()) return opened.status();
  const std::shared_ptr<CudaContext> context = std::move(opened).value();
  const cuda::Driver& driver = context->driver();
  const cuda::ScopedContext current(driver, context->context());
  cuda::AllocationProp wanted;
  wanted.location.id = context->device();
  SlabHandle made;
  made.bytes = bytes;
  const cuda::Error error =
      current.error() == cuda::kSuccess
          ? driver.create(&made.allocation, bytes, &wanted, 0)
          : current.error();
  if (error != cuda::kSuccess) {
    return driver.Check(error, "get " + std::to_string(bytes >> 20) +
                                   " MiB for copies of cold units");
  }
  return OwnSlab(new SlabHandle(made), [context](const SlabHandle* slab) {
    if (!context->forked()) context->driver().release(slab->allocation);
    delete slab;
  });
}

Result<std::unique_ptr<PieceRange>> CreateCudaRange(
    const std::array<uint8_t, 16>& uuid, uint64_t bytes) {
  Result<std::unique_ptr<CudaContext>> context = CudaContext::Open(uuid);
  if (!context.ok()) return context.status();
  const cuda::Driver& driver = (*context)->driver();
  cuda::Address base = 0;
  {
    const cuda::ScopedContext current(driver, (*context)->context());
    const cuda::Error error =
        current.error() == cuda::kSuccess
            ? driver.reserve(&base, bytes, kSlabAlignment, 0, 0)
            : current.error();
    if (error != cuda::kSuccess) {
      return driver.Check(error, "reserve GPU address space");
    }
  }
  return std::unique_ptr<PieceRange>(
      std::make_unique<CudaRange>(std::move(context).value(), base, bytes));
}

}  // namespace hoist
