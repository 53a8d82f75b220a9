#include <map>
#include <string>
#include <utility>

#include "client/src/cuda_context.h"
#include "client/src/piece_range.h"
#include "hoist/shared/cuda_driver.h"

namespace hoist {
namespace {

constexpr uint64_t kAlignment = uint64_t{2} << 20;

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
    // At exit the driver may be gone, and all of this with it.
    for (const auto& [offset, bytes] : placed_) {
      driver().unmap(base_ + offset, bytes);
    }
    driver().unreserve(base_, bytes_);
  }

  const void* address() const override {
    return reinterpret_cast<const void*>(static_cast<uintptr_t>(base_));
  }

  Status Place(uint64_t offset, const SlabHandle& slab) override {
    const cuda::ScopedContext current(driver(), context_->context());
    if (current.error() != cuda::kSuccess) {
      return driver().Check(current.error(), "enter the GPU's context");
    }
    // Others may be capturing; what changes here is in their graphs by its
    // address alone.
    int mode = cuda::kCaptureRelaxed;
    driver().exchange_capture_mode(&mode);
    Status status = Exchange(base_ + offset, offset, slab);
    driver().exchange_capture_mode(&mode);
    return status;
  }

 private:
  const cuda::Driver& driver() const { return context_->driver(); }

  Status Exchange(cuda::Address at, uint64_t offset, const SlabHandle& slab) {
    if (const auto old = placed_.find(offset); old != placed_.end()) {
      if (const cuda::Error error = driver().unmap(at, old->second);
          error != cuda::kSuccess) {
        return driver().Check(error, "unmap a piece");
      }
      placed_.erase(old);
    }
    cuda::Error error = driver().map(at, slab.bytes, 0, slab.allocation, 0);
    if (error != cuda::kSuccess) return driver().Check(error, "map a piece");
    placed_[offset] = slab.bytes;
    const cuda::AccessDesc access = {
        {cuda::kLocationDevice, context_->device()}, cuda::kAccessRead};
    error = driver().set_access(at, slab.bytes, &access, 1);
    return driver().Check(error, "make a piece readable");
  }

  const std::unique_ptr<CudaContext> context_;
  const cuda::Address base_;
  const uint64_t bytes_;
  std::map<uint64_t, uint64_t> placed_;  // Bytes, by offset.
};

}  // namespace

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
            ? driver.reserve(&base, bytes, kAlignment, 0, 0)
            : current.error();
    if (error != cuda::kSuccess) {
      return driver.Check(error, "reserve GPU address space");
    }
  }
  return std::unique_ptr<PieceRange>(
      std::make_unique<CudaRange>(std::move(context).value(), base, bytes));
}

}  // namespace hoist
