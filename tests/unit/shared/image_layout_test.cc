#include "hoist/shared/image_layout.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

namespace hoist::image_layout_test {

uint64_t Seed() {
  const char* seed = std::getenv("HOIST_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 20260102;
}

TEST(ImageLayout, LawsHoldForRandomSizes) {
  SCOPED_TRACE(::testing::Message() << "HOIST_TEST_SEED=" << Seed());
  std::mt19937_64 random(Seed());
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint64_t> sizes(random() % 40);
    for (uint64_t& size : sizes) size = random() >> (24 + random() % 40);
    const std::optional<ImageLayout> layout = LayOutImage(sizes);
    ASSERT_TRUE(layout.has_value());
    ASSERT_EQ(layout->offsets.size(), sizes.size());
    uint64_t end = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const uint64_t offset = layout->offsets[i];
      EXPECT_EQ(offset % kTensorAlignment, 0u);
      EXPECT_GE(offset, end) << "in order, no overlap";
      EXPECT_LT(offset - end, kTensorAlignment) << "no needless gap";
      end = offset + sizes[i];
    }
    EXPECT_EQ(layout->image_bytes % kImageAlignment, 0u);
    EXPECT_GE(layout->image_bytes, end);
    EXPECT_LT(layout->image_bytes - end, kImageAlignment);
  }
}

TEST(ImageLayout, NothingTakesNothing) {
  EXPECT_EQ(LayOutImage({})->image_bytes, 0u);
  const std::vector<uint64_t> empty = {0, 0};
  EXPECT_EQ(LayOutImage(empty)->image_bytes, 0u);
}

TEST(ImageLayout, ImagesEndAtTheLimit) {
  const std::vector<uint64_t> most = {kMaxImageBytes};
  EXPECT_EQ(LayOutImage(most)->image_bytes, kMaxImageBytes);
  for (const std::vector<uint64_t>& sizes :
       {std::vector<uint64_t>{kMaxImageBytes + 1},
        std::vector<uint64_t>{kMaxImageBytes, 1},
        std::vector<uint64_t>{1, kMaxImageBytes},
        std::vector<uint64_t>{UINT64_MAX},
        std::vector<uint64_t>{1, UINT64_MAX}}) {
    EXPECT_EQ(LayOutImage(sizes), std::nullopt);
  }
}

TEST(ContiguousBytes, IsTheProductInBytes) {
  const auto bytes = [](DType dtype, std::vector<int64_t> shape) {
    return ContiguousBytes(dtype, shape);
  };
  EXPECT_EQ(bytes(DType::kF32, {}), 4u);
  EXPECT_EQ(bytes(DType::kBF16, {3, 5}), 30u);
  EXPECT_EQ(bytes(DType::kF64, {3, 0, 5}), 0u);
  EXPECT_EQ(bytes(DType::kF4, {2, 3}), 3u);
  EXPECT_EQ(bytes(DType::kF6E2M3, {4}), 3u);
  EXPECT_EQ(bytes(DType::kF4, {3}), std::nullopt);
  EXPECT_EQ(bytes(DType::kF6E3M2, {2}), std::nullopt);
  EXPECT_EQ(bytes(DType::kU8, {-1}), std::nullopt);
  EXPECT_EQ(bytes(DType::kU8, {-1, -1}), std::nullopt);
  EXPECT_EQ(bytes(DType::kU8, {INT64_MAX, INT64_MAX}), std::nullopt);
  EXPECT_EQ(bytes(DType::kF64, {INT64_MAX}), std::nullopt);
}

TEST(AlignUp, RoundsUpOrOverflows) {
  EXPECT_EQ(AlignUp(0, 256), 0u);
  EXPECT_EQ(AlignUp(1, 256), 256u);
  EXPECT_EQ(AlignUp(256, 256), 256u);
  EXPECT_EQ(AlignUp(UINT64_MAX, 256), std::nullopt);
  EXPECT_EQ(AlignUp(UINT64_MAX - 255, 256), UINT64_MAX - 255);
}

}  // namespace hoist::image_layout_test
