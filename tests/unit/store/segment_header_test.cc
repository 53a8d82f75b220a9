#include "daemon/store/segment_header.h"

#include <cstring>
#include <vector>

#include "daemon/base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::segment_header_test {

using ::hoistd::testing::StatusIs;
using ::testing::HasSubstr;

constexpr uint64_t kImageBytes = 300 * kBlockBytes + 4096;

std::vector<std::byte> MakeDescription() {
  std::vector<std::byte> description(5000);
  for (size_t i = 0; i < description.size(); ++i) {
    description[i] = static_cast<std::byte>(i * 7);
  }
  return description;
}

SegmentHeader MakeHeader() {
  SegmentHeader header = {.image_bytes = kImageBytes,
                          .group_fingerprint = {1, 2, 3},
                          .description = MakeDescription()};
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
  EXPECT_EQ(SegmentHeaderBytes(0, 1), 4096u);
  EXPECT_EQ(SegmentHeaderBytes(250 * kBlockBytes, 24), 4096u);
  EXPECT_EQ(SegmentHeaderBytes(250 * kBlockBytes, 25), 8192u);
  EXPECT_EQ(SegmentHeaderBytes(251 * kBlockBytes, 24), 8192u);
}

std::vector<std::byte> Encoded(Fingerprint& hash) {
  const SegmentHeader header = MakeHeader();
  std::vector<std::byte> bytes(
      SegmentHeaderBytes(kImageBytes, header.description.size()));
  hash = EncodeSegmentHeader(header, bytes);
  return bytes;
}

void MakeChecksumRight(std::vector<std::byte>& bytes) {
  std::memset(&bytes[48], 0, 16);
  const Hash128 hash = Xxh3(bytes);
  std::memcpy(&bytes[48], hash.data(), hash.size());
}

TEST(SegmentHeader, WhatWasEncodedIsDecoded) {
  const SegmentHeader header = MakeHeader();
  Fingerprint hash;
  const std::vector<std::byte> bytes = Encoded(hash);
  ASSERT_OK_AND_ASSIGN(const SegmentHeader back,
                       DecodeSegmentHeader(bytes, hash));
  EXPECT_EQ(back.image_bytes, header.image_bytes);
  EXPECT_EQ(back.group_fingerprint, header.group_fingerprint);
  EXPECT_EQ(back.blocks, header.blocks);
  EXPECT_EQ(back.description, header.description);
  ASSERT_OK_AND_ASSIGN(const FoundSegment found, FindSegmentHeader(bytes));
  EXPECT_EQ(found.header_hash, hash);
  EXPECT_EQ(found.header.description, header.description);
}

TEST(SegmentHeader, ItsStartSaysHowLongItIs) {
  Fingerprint hash;
  const std::vector<std::byte> bytes = Encoded(hash);
  const auto start = std::span(bytes).first(64);
  EXPECT_EQ(bytes.size(), 12288u);
  EXPECT_EQ(*FindSegmentHeaderBytes(start, bytes.size() + kImageBytes), 12288u);
  EXPECT_EQ(*FindSegmentHeaderBytes(start, bytes.size()), 12288u);
  EXPECT_THAT(FindSegmentHeaderBytes(start, bytes.size() - 1),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("12287 bytes")));
  EXPECT_THAT(FindSegmentHeaderBytes(start.first(63), bytes.size()),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(SegmentHeader, EveryFlippedBitIsDataLoss) {
  Fingerprint hash;
  std::vector<std::byte> bytes = Encoded(hash);
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= std::byte{0x10};
    EXPECT_THAT(FindSegmentHeader(bytes), StatusIs(absl::StatusCode::kDataLoss))
        << "byte " << at;
    bytes[at] ^= std::byte{0x10};
  }
}

TEST(SegmentHeader, APartOfOneOrAnotherFilesIsDataLoss) {
  Fingerprint hash;
  const std::vector<std::byte> bytes = Encoded(hash);
  for (const size_t size :
       {size_t{0}, size_t{63}, size_t{64}, size_t{4096}, bytes.size() - 4096}) {
    EXPECT_THAT(DecodeSegmentHeader(std::span(bytes).first(size), hash),
                StatusIs(absl::StatusCode::kDataLoss));
  }
  hash[0] ^= 1;
  EXPECT_THAT(DecodeSegmentHeader(bytes, hash),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("not the file that was written here")));
}

TEST(SegmentHeader, ANewerVersionIsToldFromDamageByItsChecksum) {
  Fingerprint hash;
  std::vector<std::byte> bytes = Encoded(hash);
  bytes[8] = std::byte{3};
  EXPECT_THAT(FindSegmentHeader(bytes), StatusIs(absl::StatusCode::kDataLoss));
  MakeChecksumRight(bytes);
  EXPECT_THAT(FindSegmentHeader(bytes),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("its version is 3, not 2")));
  // Whoever knows what it should be is served no other.
  EXPECT_THAT(DecodeSegmentHeader(bytes, hash),
              StatusIs(absl::StatusCode::kDataLoss));
  bytes[8] = std::byte{1};
  MakeChecksumRight(bytes);
  EXPECT_THAT(FindSegmentHeader(bytes), StatusIs(absl::StatusCode::kDataLoss));
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

}  // namespace hoistd::segment_header_test
