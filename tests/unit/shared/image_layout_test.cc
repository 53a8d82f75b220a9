#include "hoist/shared/image_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

namespace hoist::image_layout_test {

using ::testing::ElementsAre;
using ::testing::Optional;

using Numbers = std::vector<int64_t>;

std::optional<uint64_t> Span(DType dtype, const Numbers& shape,
                             const Numbers& strides) {
  return SpanBytes(dtype, shape, strides);
}

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
  const auto bytes = [](DType dtype, const Numbers& shape) {
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

TEST(ContiguousStrides, CountElementsFromTheLastDimension) {
  const auto strides = [](const Numbers& shape) {
    return ContiguousStrides(shape);
  };
  EXPECT_THAT(strides({2, 3, 4}), Optional(ElementsAre(12, 4, 1)));
  EXPECT_THAT(strides({2, 0, 4}), Optional(ElementsAre(4, 4, 1)));
  EXPECT_THAT(strides({}), Optional(ElementsAre()));
  EXPECT_EQ(strides({1, int64_t{1} << 62, 4}), std::nullopt);
  EXPECT_THAT(strides({0, int64_t{1} << 62, 4}),
              Optional(ElementsAre(0, 4, 1)));
}

TEST(SpanBytes, ReachesFromTheFirstToTheLastElement) {
  EXPECT_EQ(Span(DType::kF32, {2, 3}, {3, 1}), 24u);
  EXPECT_EQ(Span(DType::kF32, {2, 3}, {10, 2}), 60u);
  EXPECT_EQ(Span(DType::kBF16, {}, {}), 2u);
  EXPECT_EQ(Span(DType::kF32, {0, 3}, {3, 1}), 0u);
  EXPECT_EQ(Span(DType::kF32, {5}, {0}), 4u);  // Broadcast.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Span(DType::kF32, {kMost, kMost, 0}, {kMost, 1, 1}), 0u);
  EXPECT_EQ(Span(DType::kF4, {4}, {1}), 2u);
}

TEST(SpanBytes, RefusesWhatIsNegativeOrOverflows) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Span(DType::kF32, {-1}, {1}), std::nullopt);
  EXPECT_EQ(Span(DType::kF32, {2}, {-1}), std::nullopt);
  EXPECT_EQ(Span(DType::kF32, {kMost, kMost}, {kMost, 1}), std::nullopt);
  EXPECT_EQ(Span(DType::kF64, {kMost}, {1}), std::nullopt);
  EXPECT_EQ(Span(DType::kF32, {2}, {}), std::nullopt);
}

TEST(AlignUp, RoundsUpOrOverflows) {
  EXPECT_EQ(AlignUp(0, 256), 0u);
  EXPECT_EQ(AlignUp(1, 256), 256u);
  EXPECT_EQ(AlignUp(256, 256), 256u);
  EXPECT_EQ(AlignUp(UINT64_MAX, 256), std::nullopt);
  EXPECT_EQ(AlignUp(UINT64_MAX - 255, 256), UINT64_MAX - 255);
}

}  // namespace hoist::image_layout_test
