#include "client/src/device/stream_copies.h"

#include <cstring>
#include <utility>

#include "client/src/device/cuda_context.h"

namespace hoist {
namespace {

class EmulatedCopies final : public StreamCopies {
 public:
  Status ToDevice(void* to, const void* from, uint64_t bytes,
                  cuda::Stream) override {
    std::memcpy(to, from, bytes);
    return Status();
  }
  Status ToHost(void* to, const void* from, uint64_t bytes,
                cuda::Stream) override {
    std::memcpy(to, from, bytes);
    return Status();
  }
};

class CudaCopies final : public StreamCopies {
 public:
  explicit CudaCopies(std::unique_ptr<CudaContext> context)
      : context_(std::move(context)) {}

  Status ToDevice(void* to, const void* from, uint64_t bytes,
                  cuda::Stream stream) override {
    return Run("copy to the device", [&](const cuda::Driver& driver) {
      return driver.copy_in_async(reinterpret_cast<cuda::Address>(to), from,
                                  bytes, stream);
    });
  }
  Status ToHost(void* to, const void* from, uint64_t bytes,
                cuda::Stream stream) override {
    return Run("copy from the device", [&](const cuda::Driver& driver) {
      return driver.copy_out_async(to, reinterpret_cast<cuda::Address>(from),
                                   bytes, stream);
    });
  }

 private:
  template <typename Call>
  Status Run(const char* what, const Call& call) const {
    const cuda::Driver& driver = context_->driver();
    const cuda::ScopedContext current(driver, context_->context());
    return driver.Check(
        current.error() == cuda::kSuccess ? call(driver) : current.error(),
        what);
  }

  const std::unique_ptr<CudaContext> context_;
};

}  // namespace

std::unique_ptr<StreamCopies> CreateEmulatedCopies() {
  return std::make_unique<EmulatedCopies>();
}

Result<std::unique_ptr<StreamCopies>> CreateCudaCopies(
    const std::array<uint8_t, 16>& uuid) {
  Result<std::unique_ptr<CudaContext>> context = CudaContext::Open(uuid);
  if (!context.ok()) return context.status();
  return std::unique_ptr<StreamCopies>(
      std::make_unique<CudaCopies>(std::move(context).value()));
}

}  // namespace hoist
