#include "client/src/device/cuda_context.h"

#include <unistd.h>

#include <string>

namespace hoist {
namespace {

std::string UuidText(const std::array<uint8_t, 16>& uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid[i] >> 4];
    text += kDigits[uuid[i] & 15];
  }
  return text;
}

Result<cuda::DeviceId> FindDevice(const cuda::Driver& driver,
                                  const std::array<uint8_t, 16>& uuid) {
  int count = 0;
  if (const cuda::Error error = driver.device_count(&count);
      error != cuda::kSuccess) {
    return driver.Check(error, "count the GPUs");
  }
  for (int i = 0; i < count; ++i) {
    cuda::DeviceId device = 0;
    cuda::Uuid found = {};
    if (driver.device_get(&device, i) == cuda::kSuccess &&
        driver.device_uuid(&found, device) == cuda::kSuccess &&
        found.bytes == uuid) {
      return device;
    }
  }
  return Status(Code::kNotFound,
                "none of the " + std::to_string(count) +
                    " GPUs that this process sees is the daemon's " +
                    UuidText(uuid) +
                    "; see that CUDA_VISIBLE_DEVICES (or the "
                    "container) shows it");
}

}  // namespace

Result<std::unique_ptr<CudaContext>> CudaContext::Open(
    const std::array<uint8_t, 16>& uuid) {
  Result<cuda::Driver> driver = cuda::Driver::Load();
  if (!driver.ok()) return driver.status();
  Result<cuda::DeviceId> device = FindDevice(*driver, uuid);
  if (!device.ok()) return device.status();
  cuda::Context context = nullptr;
  if (const cuda::Error error = driver->primary_retain(&context, *device);
      error != cuda::kSuccess) {
    return driver->Check(error, "open the GPU's primary context");
  }
  return std::unique_ptr<CudaContext>(
      new CudaContext(*driver, *device, context));
}

CudaContext::CudaContext(const cuda::Driver& driver, cuda::DeviceId device,
                         cuda::Context context)
    : driver_(driver), device_(device), context_(context), pid_(getpid()) {}

CudaContext::~CudaContext() {
  if (!forked()) driver_.primary_release(device_);
}

bool CudaContext::forked() const { return getpid() != pid_; }

}  // namespace hoist
