#include "daemon/store/segment_header.h"

#include <cstring>
#include <vector>

#include "daemon/base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd {
namespace {

using ::hoistd::testing::StatusIs;
using ::testing::HasSubstr;

constexpr uint64_t kImageBytes = 300 * kBlockBytes + 4096;

SegmentHeader MakeHeader() {
  SegmentHeader header = {.image_bytes = kImageBytes,
                          .group_fingerprint = {1, 2, 3}};
  header.blocks.resize(BlockCount(kImageBytes));
  for (size_t i = 0; i < header.blocks.size(); ++i) {
    header.blocks[i][0] = static_cast<uint8_t>(i);
    header.blocks[i][15] = static_cast<uint8_t>(i >> 8);
  }
  return header;
}

TEST(SegmentHeader, BlocksAreHashedAsXxhsumDoes) {
  // As `xxhsum -H2` prints it for the three bytes "abc".
  const Fingerprint expected = {0x06, 0xb0, 0x5a, 0xb6, 0x73, 0x3a, 0x61, 0x85,
                                0x78, 0xaf, 0x5f, 0x94, 0x89, 0x2f, 0x39, 0x50};
  EXPECT_EQ(Xxh3(std::as_bytes(std::span("abc", 3))), expected);
}

TEST(SegmentHeader, SizesAreWholePagesAndCountTheShortBlock) {
  EXPECT_EQ(BlockCount(0), 0u);
  EXPECT_EQ(BlockCount(4096), 1u);
  EXPECT_EQ(BlockCount(kBlockBytes), 1u);
  EXPECT_EQ(BlockCount(kBlockBytes + 4096), 2u);
  EXPECT_EQ(SegmentHeaderBytes(0), 4096u);
  EXPECT_EQ(SegmentHeaderBytes(252 * kBlockBytes), 4096u);
  EXPECT_EQ(SegmentHeaderBytes(253 * kBlockBytes), 8192u);
}

TEST(SegmentHeader, WhatWasEncodedIsDecoded) {
  const SegmentHeader header = MakeHeader();
  std::vector<std::byte> bytes(SegmentHeaderBytes(kImageBytes));
  const Fingerprint hash = EncodeSegmentHeader(header, bytes);
  ASSERT_OK_AND_ASSIGN(const SegmentHeader back,
                       DecodeSegmentHeader(bytes, kImageBytes, hash));
  EXPECT_EQ(back.image_bytes, header.image_bytes);
  EXPECT_EQ(back.group_fingerprint, header.group_fingerprint);
  EXPECT_EQ(back.blocks, header.blocks);
}

std::vector<std::byte> MakeDescription() {
  std::vector<std::byte> description(5000);
  for (size_t i = 0; i < description.size(); ++i) {
    description[i] = static_cast<std::byte>(i * 7);
  }
  return description;
}

TEST(SegmentHeader, TheDescriptionIsFoundWithoutARow) {
  SegmentHeader header = MakeHeader();
  header.description = MakeDescription();
  const uint64_t size = SegmentHeaderBytes(kImageBytes, 5000);
  EXPECT_EQ(size, 12288u);
  std::vector<std::byte> bytes(size);
  const Fingerprint hash = EncodeSegmentHeader(header, bytes);
  EXPECT_THAT(
      FindSegmentHeaderBytes(std::span(bytes).first(64), size + kImageBytes),
      testing::IsOk());
  EXPECT_THAT(FindSegmentHeaderBytes(std::span(bytes).first(64),
                                     size + kImageBytes - 1),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("instead of")));
  ASSERT_OK_AND_ASSIGN(const FoundSegment found, FindSegmentHeader(bytes));
  EXPECT_EQ(found.header.description, header.description);
  EXPECT_EQ(found.header.blocks, header.blocks);
  EXPECT_EQ(found.header_hash, hash);
  EXPECT_THAT(FindSegmentHeader(std::span(bytes).first(size - 4096)),
              StatusIs(absl::StatusCode::kDataLoss));
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= std::byte{0x10};
    EXPECT_THAT(FindSegmentHeader(bytes), StatusIs(absl::StatusCode::kDataLoss))
        << "byte " << at;
    bytes[at] ^= std::byte{0x10};
  }
}

TEST(SegmentHeader, EveryFlippedBitIsDataLoss) {
  std::vector<std::byte> bytes(SegmentHeaderBytes(kImageBytes));
  const Fingerprint hash = EncodeSegmentHeader(MakeHeader(), bytes);
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= std::byte{0x10};
    EXPECT_THAT(DecodeSegmentHeader(bytes, kImageBytes, hash),
                StatusIs(absl::StatusCode::kDataLoss))
        << "byte " << at;
    bytes[at] ^= std::byte{0x10};
  }
}

TEST(SegmentHeader, AnotherSizeOrAnotherFileIsDataLoss) {
  std::vector<std::byte> bytes(SegmentHeaderBytes(kImageBytes));
  Fingerprint hash = EncodeSegmentHeader(MakeHeader(), bytes);
  EXPECT_THAT(DecodeSegmentHeader(bytes, kImageBytes + 4096, hash),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("speaks of")));
  EXPECT_THAT(DecodeSegmentHeader(std::span(bytes).first(63), 0, hash),
              StatusIs(absl::StatusCode::kDataLoss));
  hash[0] ^= 1;
  EXPECT_THAT(DecodeSegmentHeader(bytes, kImageBytes, hash),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("not the file that the catalogue knows")));
}

TEST(SegmentHeader, TheDamagedBlockIsNamed) {
  std::vector<std::byte> image(2 * kBlockBytes + 4096, std::byte{7});
  SegmentHeader header = {.image_bytes = image.size()};
  for (size_t at = 0; at < image.size(); at += kBlockBytes) {
    const auto size = std::min<size_t>(kBlockBytes, image.size() - at);
    header.blocks.push_back(Xxh3(std::span(image).subspan(at, size)));
  }
  EXPECT_OK(CheckBlocks(header, 0, image));
  EXPECT_OK(CheckBlocks(header, 1, std::span(image).subspan(kBlockBytes)));
  image.back() ^= std::byte{1};
  EXPECT_THAT(CheckBlocks(header, 0, image),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("block 2")));
  EXPECT_OK(CheckBlocks(header, 0, std::span(image).first(2 * kBlockBytes)));
}

}  // namespace
}  // namespace hoistd
