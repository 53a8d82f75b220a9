#include "daemon/store/description.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::description_test {

using ::hoistd::testing::StatusIs;
using ::testing::SizeIs;

SpillMeta Meta() {
  SpillMeta meta = {.model = std::string("m\0\xff", 3),
                    .owner = *User::Tenant("team-a"),
                    .readers = Readers::kEveryone,
                    .group_content = {1, 2, 3},
                    .group_index = GroupIndex(4'000'000'000)};
  meta.group.name = "layers.0";
  meta.group.image_bytes = 8192;
  meta.group.tensors = {{.name = "w",
                         .dtype = hoist::DType::kF4,
                         .shape = {8, 0},
                         .strides = {-1, 8},
                         .offset = 256,
                         .bytes = 7936},
                        {.name = "", .dtype = hoist::DType::kC128}};
  return meta;
}

TEST(Description, WhatWasEncodedIsDecoded) {
  const SpillMeta meta = Meta();
  const auto bytes = EncodeDescription(SpillId(7), meta);
  EXPECT_THAT(bytes, SizeIs(DescriptionBytes(meta)));
  ASSERT_OK_AND_ASSIGN(const SpillDescription back, DecodeDescription(bytes));
  EXPECT_EQ(back.id, SpillId(7));
  EXPECT_EQ(back.meta.model, meta.model);
  EXPECT_EQ(back.meta.owner, meta.owner);
  EXPECT_EQ(back.meta.readers, meta.readers);
  EXPECT_EQ(back.meta.group_content, meta.group_content);
  EXPECT_EQ(back.meta.group_index, meta.group_index);
  EXPECT_EQ(back.meta.group.name, meta.group.name);
  EXPECT_EQ(back.meta.group.image_bytes, meta.group.image_bytes);
  ASSERT_THAT(back.meta.group.tensors, SizeIs(2));
  const Tensor& tensor = back.meta.group.tensors[0];
  EXPECT_EQ(tensor.name, "w");
  EXPECT_EQ(tensor.dtype, hoist::DType::kF4);
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{8, 0}));
  EXPECT_EQ(tensor.strides, (std::vector<int64_t>{-1, 8}));
  EXPECT_EQ(tensor.offset, 256u);
  EXPECT_EQ(tensor.bytes, 7936u);
  EXPECT_EQ(back.meta.group.tensors[1].dtype, hoist::DType::kC128);
}

TEST(Description, OneThatIsCutOrTooLongIsDataLoss) {
  std::vector<std::byte> bytes = EncodeDescription(SpillId(7), Meta());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(DecodeDescription(std::span(bytes).first(size)),
                StatusIs(absl::StatusCode::kDataLoss))
        << size;
  }
  bytes.push_back(std::byte{0});
  EXPECT_THAT(DecodeDescription(bytes), StatusIs(absl::StatusCode::kDataLoss));
}

// Its checksum is the header's: here nothing may crash, or take memory without
// end, and what is accepted must be what the bytes say.
TEST(Description, AnyFlippedBitIsRefusedOrAnotherDescription) {
  const SpillMeta meta = Meta();
  std::vector<std::byte> bytes = EncodeDescription(SpillId(7), meta);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto back = DecodeDescription(bytes);
    if (back.ok()) {
      EXPECT_EQ(EncodeDescription(back->id, back->meta), bytes) << bit;
    } else {
      EXPECT_THAT(back, StatusIs(absl::StatusCode::kDataLoss)) << bit;
    }
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(Description, WhatNoImageCanBeIsDataLoss) {
  const auto decode = [](SpillMeta meta) {
    return DecodeDescription(EncodeDescription(SpillId(1), meta));
  };
  SpillMeta meta = Meta();
  meta.group.image_bytes = 4097;
  EXPECT_THAT(decode(meta), StatusIs(absl::StatusCode::kDataLoss));
  meta.group.image_bytes = uint64_t{1} << 60;
  EXPECT_THAT(decode(meta), StatusIs(absl::StatusCode::kDataLoss));
  meta = Meta();
  meta.group.tensors[0].bytes = 7937;
  EXPECT_THAT(decode(meta), StatusIs(absl::StatusCode::kDataLoss));
  meta.group.tensors[0] = {
      .dtype = hoist::DType::kU8, .offset = ~uint64_t{0}, .bytes = 2};
  EXPECT_THAT(decode(meta), StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace hoistd::description_test
