// One GPU's primary context, which all of the process's CUDA code shares.
#ifndef HOIST_CLIENT_SRC_DEVICE_CUDA_CONTEXT_H_
#define HOIST_CLIENT_SRC_DEVICE_CUDA_CONTEXT_H_

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>

#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/status.h"

namespace hoist {

// Owns:     one reference to the context; in the child of a fork the object has
//           no context.
class CudaContext {
 public:
  // Unavailable: no driver. NotFound: no GPU with this UUID is visible; the
  // message names CUDA_VISIBLE_DEVICES.
  static Result<std::unique_ptr<CudaContext>> Open(
      const std::array<uint8_t, 16>& uuid);
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;
  ~CudaContext();

  const cuda::Driver& driver() const { return driver_; }
  cuda::DeviceId device() const { return device_; }
  cuda::Context context() const { return context_; }
  bool forked() const;

 private:
  CudaContext(const cuda::Driver& driver, cuda::DeviceId device,
              cuda::Context context);

  const cuda::Driver driver_;
  const cuda::DeviceId device_;
  const cuda::Context context_;
  const pid_t pid_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_DEVICE_CUDA_CONTEXT_H_
