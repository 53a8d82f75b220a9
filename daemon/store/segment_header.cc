#include "daemon/store/segment_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "daemon/store/description.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'H', 'O', 'I', 'S', 'T', 'S', 'E', 'G'};
constexpr uint32_t kVersion = 2;

struct Fixed {
  char magic[8];
  uint32_t version;
  uint32_t block_bytes;
  uint64_t image_bytes;
  uint64_t header_bytes;
  Fingerprint group_fingerprint;
  Fingerprint header_hash;
};
static_assert(sizeof(Fixed) == kSegmentHeaderStart);

Fingerprint HashWithoutItself(std::span<const std::byte> header) {
  std::vector<std::byte> copy(header.begin(), header.end());
  std::memset(copy.data() + offsetof(Fixed, header_hash), 0,
              sizeof(Fingerprint));
  return Xxh3(copy);
}

absl::StatusOr<Fixed> StartOf(std::span<const std::byte> from) {
  Fixed fixed;
  if (from.size() < sizeof fixed) return absl::DataLossError("no header");
  std::memcpy(&fixed, from.data(), sizeof fixed);
  if (std::memcmp(fixed.magic, kMagic, sizeof kMagic) != 0) {
    return absl::DataLossError("it is not a segment file");
  }
  return fixed;
}

// `fixed` is from a header whose checksum is right.
absl::Status CheckVersion(const Fixed& fixed) {
  const std::string text =
      absl::StrCat("its version is ", fixed.version, ", not ", kVersion);
  if (fixed.version > kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(text, ": use a newer hoistd"));
  }
  if (fixed.version < kVersion || fixed.block_bytes != kBlockBytes) {
    return absl::DataLossError(text);
  }
  return absl::OkStatus();
}

// The bytes between the table and the zeros. `from` has passed its checksum.
absl::StatusOr<std::vector<std::byte>> DescriptionIn(
    std::span<const std::byte> from, uint64_t image_bytes) {
  const uint64_t at =
      sizeof(Fixed) + BlockCount(image_bytes) * sizeof(Fingerprint);
  uint64_t bytes = 0;
  if (from.size() - at < sizeof bytes) {
    return absl::DataLossError("its header is too short");
  }
  std::memcpy(&bytes, from.data() + at, sizeof bytes);
  from = from.subspan(at + sizeof bytes);
  if (bytes == 0 || bytes > from.size()) {
    return absl::DataLossError("its header has no whole description");
  }
  from = from.first(bytes);
  return std::vector<std::byte>(from.begin(), from.end());
}

}  // namespace

uint64_t BlockCount(uint64_t image_bytes) {
  return (image_bytes + kBlockBytes - 1) / kBlockBytes;
}

uint64_t SegmentHeaderBytes(uint64_t image_bytes, uint64_t description_bytes) {
  const uint64_t bytes = sizeof(Fixed) +
                         BlockCount(image_bytes) * sizeof(Fingerprint) +
                         sizeof(uint64_t) + description_bytes;
  return (bytes + hoist::kImageAlignment - 1) / hoist::kImageAlignment *
         hoist::kImageAlignment;
}

Fingerprint EncodeSegmentHeader(const SegmentHeader& header,
                                std::span<std::byte> to) {
  const uint64_t described = header.description.size();
  HOIST_CHECK(to.size() == SegmentHeaderBytes(header.image_bytes, described));
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
  auto at = std::copy(table.begin(), table.end(), to.begin() + sizeof fixed);
  const auto count = std::as_bytes(std::span(&described, 1));
  at = std::copy(count.begin(), count.end(), at);
  std::copy(header.description.begin(), header.description.end(), at);
  const Fingerprint hash = HashWithoutItself(to);
  std::memcpy(to.data() + offsetof(Fixed, header_hash), hash.data(),
              hash.size());
  return hash;
}

absl::StatusOr<uint64_t> FindSegmentHeaderBytes(
    std::span<const std::byte> start, uint64_t file_bytes) {
  HOIST_ASSIGN_OR_RETURN(const Fixed fixed, StartOf(start));
  // Validates these sizes before their use.
  if (fixed.image_bytes > hoist::kMaxImageBytes ||
      fixed.header_bytes < SegmentHeaderBytes(0, 0) ||
      fixed.header_bytes >
          SegmentHeaderBytes(fixed.image_bytes, kMaxDescriptionBytes)) {
    return absl::DataLossError("its header speaks of impossible sizes");
  }
  if (file_bytes < fixed.header_bytes) {
    return absl::DataLossError(absl::StrCat(
        "it has ", file_bytes, " bytes, and its header ", fixed.header_bytes));
  }
  return fixed.header_bytes;
}

absl::StatusOr<FoundSegment> FindSegmentHeader(
    std::span<const std::byte> from) {
  HOIST_ASSIGN_OR_RETURN(const Fixed fixed, StartOf(from));
  if (fixed.header_bytes != from.size()) {
    return absl::DataLossError("its header has another size than it says");
  }
  if (HashWithoutItself(from) != fixed.header_hash) {
    return absl::DataLossError("its header's checksum is wrong");
  }
  HOIST_RETURN_IF_ERROR(CheckVersion(fixed));
  if (fixed.image_bytes > hoist::kMaxImageBytes ||
      from.size() < SegmentHeaderBytes(fixed.image_bytes, 0)) {
    return absl::DataLossError("its header has another size than it needs");
  }
  FoundSegment found = {
      .header = {.image_bytes = fixed.image_bytes,
                 .group_fingerprint = fixed.group_fingerprint},
      .header_hash = fixed.header_hash};
  SegmentHeader& header = found.header;
  header.blocks.resize(BlockCount(header.image_bytes));
  const auto table = std::as_writable_bytes(std::span(header.blocks));
  std::copy_n(from.begin() + sizeof fixed, table.size(), table.begin());
  HOIST_ASSIGN_OR_RETURN(header.description,
                         DescriptionIn(from, header.image_bytes));
  if (from.size() !=
      SegmentHeaderBytes(header.image_bytes, header.description.size())) {
    return absl::DataLossError("its header has another size than it needs");
  }
  return found;
}

absl::StatusOr<SegmentHeader> DecodeSegmentHeader(
    std::span<const std::byte> from, const Fingerprint& header_hash) {
  auto found = FindSegmentHeader(from);
  if (absl::IsFailedPrecondition(found.status())) {
    return absl::DataLossError(found.status().message());
  }
  if (!found.ok()) return found.status();
  if (found->header_hash != header_hash) {
    return absl::DataLossError("it is not the file that was written here");
  }
  return std::move(found->header);
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
