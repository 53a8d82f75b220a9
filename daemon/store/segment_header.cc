#include "daemon/store/segment_header.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/hash.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'H', 'O', 'I', 'S', 'T', 'S', 'E', 'G'};
constexpr uint32_t kVersion = 1;

struct Fixed {
  char magic[8];
  uint32_t version;
  uint32_t block_bytes;
  uint64_t image_bytes;
  uint64_t header_bytes;
  Fingerprint group_fingerprint;
  Fingerprint header_hash;
};
static_assert(sizeof(Fixed) == 64);

Fingerprint HashWithoutItself(std::span<const std::byte> header) {
  std::vector<std::byte> copy(header.begin(), header.end());
  std::memset(copy.data() + offsetof(Fixed, header_hash), 0,
              sizeof(Fingerprint));
  return Xxh3(copy);
}

}  // namespace

uint64_t BlockCount(uint64_t image_bytes) {
  return (image_bytes + kBlockBytes - 1) / kBlockBytes;
}

uint64_t SegmentHeaderBytes(uint64_t image_bytes) {
  const uint64_t bytes =
      sizeof(Fixed) + BlockCount(image_bytes) * sizeof(Fingerprint);
  return (bytes + hoist::kImageAlignment - 1) / hoist::kImageAlignment *
         hoist::kImageAlignment;
}

Fingerprint EncodeSegmentHeader(const SegmentHeader& header,
                                std::span<std::byte> to) {
  HOIST_CHECK(to.size() == SegmentHeaderBytes(header.image_bytes));
  HOIST_CHECK(header.blocks.size() == BlockCount(header.image_bytes));
  Fixed fixed = {.version = kVersion,
                 .block_bytes = kBlockBytes,
                 .image_bytes = header.image_bytes,
                 .header_bytes = to.size(),
                 .group_fingerprint = header.group_fingerprint};
  std::memcpy(fixed.magic, kMagic, sizeof kMagic);
  std::fill(to.begin(), to.end(), std::byte{0});
  std::memcpy(to.data(), &fixed, sizeof fixed);
  const auto table = std::as_bytes(std::span(header.blocks));
  std::copy(table.begin(), table.end(), to.begin() + sizeof fixed);
  const Fingerprint hash = HashWithoutItself(to);
  std::memcpy(to.data() + offsetof(Fixed, header_hash), hash.data(),
              hash.size());
  return hash;
}

absl::StatusOr<SegmentHeader> DecodeSegmentHeader(
    std::span<const std::byte> from, uint64_t image_bytes,
    const Fingerprint& header_hash) {
  Fixed fixed;
  if (from.size() < sizeof fixed) return absl::DataLossError("no header");
  std::memcpy(&fixed, from.data(), sizeof fixed);
  if (std::memcmp(fixed.magic, kMagic, sizeof kMagic) != 0) {
    return absl::DataLossError("it is not a segment file");
  }
  if (fixed.version != kVersion || fixed.block_bytes != kBlockBytes) {
    return absl::DataLossError(
        absl::StrCat("its version is ", fixed.version, ", not ", kVersion));
  }
  if (fixed.image_bytes != image_bytes || fixed.header_bytes != from.size() ||
      from.size() != SegmentHeaderBytes(image_bytes)) {
    return absl::DataLossError(
        absl::StrCat("its header speaks of ", fixed.image_bytes,
                     " bytes, the catalogue of ", image_bytes));
  }
  if (HashWithoutItself(from) != fixed.header_hash) {
    return absl::DataLossError("its header's checksum is wrong");
  }
  if (fixed.header_hash != header_hash) {
    return absl::DataLossError("it is not the file that the catalogue knows");
  }
  SegmentHeader header = {.image_bytes = image_bytes,
                          .group_fingerprint = fixed.group_fingerprint};
  header.blocks.resize(BlockCount(image_bytes));
  const auto table = std::as_writable_bytes(std::span(header.blocks));
  std::copy_n(from.begin() + sizeof fixed, table.size(), table.begin());
  return header;
}

absl::Status CheckBlocks(const SegmentHeader& header, uint64_t first,
                         std::span<const std::byte> bytes) {
  for (uint64_t block = first; !bytes.empty(); ++block) {
    const auto size = std::min<uint64_t>(bytes.size(), kBlockBytes);
    if (Xxh3(bytes.first(size)) != header.blocks[block]) {
      return absl::DataLossError(
          absl::StrCat("the checksum of its block ", block, " is wrong"));
    }
    bytes = bytes.subspan(size);
  }
  return absl::OkStatus();
}

}  // namespace hoistd
