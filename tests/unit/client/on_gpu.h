// Tests that need a GPU.
#ifndef HOIST_TESTS_UNIT_CLIENT_ON_GPU_H_
#define HOIST_TESTS_UNIT_CLIENT_ON_GPU_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "client/src/device/cuda_context.h"
#include "gtest/gtest.h"
#include "hoist/shared/cuda_driver.h"

namespace hoist::testing {

// The first GPU. Skips a test without a driver: `context_` is nullptr then.
template <typename Base = ::testing::Test>
class OnGpu : public Base {
 protected:
  void SetUp() override {
    Result<cuda::Driver> driver = cuda::Driver::Load();
    if (!driver.ok()) GTEST_SKIP() << driver.status().ToString();
    driver_ = *driver;
    cuda::DeviceId device = 0;
    cuda::Uuid uuid = {};
    ASSERT_EQ(driver_.device_get(&device, 0), cuda::kSuccess);
    ASSERT_EQ(driver_.device_uuid(&uuid, device), cuda::kSuccess);
    auto context = CudaContext::Open(uuid.bytes);
    ASSERT_TRUE(context.ok()) << context.status().ToString();
    uuid_ = uuid.bytes;
    context_ = std::move(context).value();
  }

  cuda::Driver driver_ = {};
  std::array<uint8_t, 16> uuid_ = {};
  std::unique_ptr<CudaContext> context_;
};

}  // namespace hoist::testing

#endif  // HOIST_TESTS_UNIT_CLIENT_ON_GPU_H_
