// Images of weights that do not lie in host memory. The GPU's part runs over
// the fake driver where there is none.
#include "client/src/model/published_image.h"

#include <unistd.h>

#include <cstring>
#include <span>
#include <vector>

#include "client/src/device/cuda_context.h"
#include "gtest/gtest.h"
#include "hoist/shared/cuda_driver.h"

namespace hoist::published_image_test {

constexpr uint64_t kBytes = 20 << 20;

std::vector<uint8_t> Pattern() {
  std::vector<uint8_t> bytes(kBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(i * 31 + i / 4096);
  }
  return bytes;
}

std::vector<SourceTensor> OneTensor(const void* data) {
  SourceTensor tensor;
  tensor.entry.name = "w";
  tensor.entry.dtype = DType::kU8;
  tensor.entry.shape = {static_cast<int64_t>(kBytes)};
  tensor.entry.strides = {1};
  tensor.data = data;
  return {tensor};
}

std::vector<uint8_t> BytesOf(const PublishedImage& image) {
  std::vector<uint8_t> bytes(kBytes);
  EXPECT_EQ(pread(image.memfd.get(), bytes.data(), kBytes,
                  static_cast<off_t>(image.group.tensors[0].offset_bytes)),
            static_cast<ssize_t>(kBytes));
  return bytes;
}

// At addresses that cannot be read here.
TEST(PublishedImage, IsReadInPiecesFromWhereTheDataLie) {
  const std::vector<uint8_t> source = Pattern();
  auto* const elsewhere = reinterpret_cast<const std::byte*>(uintptr_t{4096});
  size_t pieces = 0;
  const ReadBytes read = [&](const void* from, std::span<std::byte> to) {
    ++pieces;
    const auto at = static_cast<const std::byte*>(from) - elsewhere;
    std::memcpy(to.data(), source.data() + at, to.size());
    return Status();
  };
  auto image = BuildImage("g", OneTensor(elsewhere), read);
  ASSERT_TRUE(image.ok()) << image.status().ToString();
  EXPECT_EQ(BytesOf(*image), source);
  EXPECT_GT(pieces, 1u);
}

TEST(PublishedImage, SaysWhyItsDataCannotBeRead) {
  const ReadBytes read = [](const void*, std::span<std::byte>) {
    return Status(Code::kInternal, "the GPU is gone");
  };
  const std::vector<uint8_t> source = Pattern();
  auto image = BuildImage("g", OneTensor(source.data()), read);
  EXPECT_EQ(image.status().message(), "the GPU is gone");
}

TEST(PublishedImage, OfAnEmulatedDeviceIsReadAsItIs) {
  auto read = ReadFrom({.name = "", .kind = DeviceKind::kEmulated});
  ASSERT_TRUE(read.ok());
  EXPECT_FALSE(*read);
}

TEST(CudaPublishedImage, IsReadFromTheGpu) {
  Result<cuda::Driver> driver = cuda::Driver::Load();
  if (!driver.ok()) GTEST_SKIP() << driver.status().ToString();
  cuda::DeviceId device = 0;
  cuda::Uuid uuid = {};
  ASSERT_EQ(driver->device_get(&device, 0), cuda::kSuccess);
  ASSERT_EQ(driver->device_uuid(&uuid, device), cuda::kSuccess);
  auto context = CudaContext::Open(uuid.bytes);
  ASSERT_TRUE(context.ok()) << context.status().ToString();
  const std::vector<uint8_t> source = Pattern();
  cuda::Address there = 0;
  {
    const cuda::ScopedContext current(*driver, (*context)->context());
    ASSERT_EQ(driver->alloc(&there, kBytes), cuda::kSuccess);
    ASSERT_EQ(driver->copy_in(there, source.data(), kBytes), cuda::kSuccess);
  }
  auto read =
      ReadFrom({.name = "", .uuid = uuid.bytes, .kind = DeviceKind::kCuda});
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  auto image =
      BuildImage("g", OneTensor(reinterpret_cast<const void*>(there)), *read);
  ASSERT_TRUE(image.ok()) << image.status().ToString();
  EXPECT_EQ(BytesOf(*image), source);
  const cuda::ScopedContext current(*driver, (*context)->context());
  EXPECT_EQ(driver->free(there), cuda::kSuccess);
}

}  // namespace hoist::published_image_test
