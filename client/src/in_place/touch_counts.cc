#include "client/src/in_place/touch_counts.h"

#include <atomic>
#include <utility>

#include "client/src/device/cuda_context.h"

namespace hoist {
namespace {

class CpuCounts final : public TouchCounts {
 public:
  CpuCounts(const uint32_t* counts, uint64_t length)
      : TouchCounts(length), counts_(counts) {}

 private:
  Status Read(std::span<uint32_t> into) override {
    for (size_t i = 0; i < into.size(); ++i) {
      // Kernels add meanwhile: each counter is read once, atomically.
      into[i] = reinterpret_cast<const std::atomic<uint32_t>*>(counts_)[i].load(
          std::memory_order_relaxed);
    }
    return Status();
  }

  const uint32_t* const counts_;
};

class GpuCounts final : public TouchCounts {
 public:
  GpuCounts(std::unique_ptr<CudaContext> context, cuda::Address counts,
            uint64_t length)
      : TouchCounts(length), context_(std::move(context)), counts_(counts) {}
  GpuCounts(const GpuCounts&) = delete;
  GpuCounts& operator=(const GpuCounts&) = delete;
  ~GpuCounts() override {
    if (context_->forked() || stream_ == nullptr) return;
    const cuda::ScopedContext current(driver(), context_->context());
    driver().stream_destroy(stream_);
  }

 private:
  const cuda::Driver& driver() const { return context_->driver(); }

  Status Read(std::span<uint32_t> into) override {
    const cuda::ScopedContext current(driver(), context_->context());
    if (current.error() != cuda::kSuccess) {
      return driver().Check(current.error(), "enter the GPU's context");
    }
    cuda::Error error = cuda::kSuccess;
    if (stream_ == nullptr) {
      error = driver().stream_create(&stream_, cuda::kStreamNonBlocking);
    }
    if (error == cuda::kSuccess) {
      error = driver().copy_out_async(into.data(), counts_, into.size_bytes(),
                                      stream_);
    }
    if (error == cuda::kSuccess) error = driver().stream_sync(stream_);
    return driver().Check(error, "read what was touched");
  }

  const std::unique_ptr<CudaContext> context_;
  const cuda::Address counts_;
  cuda::Stream stream_ = nullptr;
};

}  // namespace

Result<std::span<const uint32_t>> TouchCounts::Take() {
  if (Status s = Read(now_); !s.ok()) return s;
  for (size_t i = 0; i < now_.size(); ++i) added_[i] = now_[i] - before_[i];
  now_.swap(before_);
  return std::span<const uint32_t>(added_);
}

Result<std::unique_ptr<TouchCounts>> CountsOnCpu(const void* counts,
                                                 uint64_t length) {
  return std::unique_ptr<TouchCounts>(std::make_unique<CpuCounts>(
      static_cast<const uint32_t*>(counts), length));
}

Result<std::unique_ptr<TouchCounts>> CountsOnGpu(
    const std::array<uint8_t, 16>& uuid, const void* counts, uint64_t length) {
  Result<std::unique_ptr<CudaContext>> context = CudaContext::Open(uuid);
  if (!context.ok()) return context.status();
  return std::unique_ptr<TouchCounts>(std::make_unique<GpuCounts>(
      std::move(context).value(), reinterpret_cast<cuda::Address>(counts),
      length));
}

}  // namespace hoist
