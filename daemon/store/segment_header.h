// The header of a segment file, which describes and checks the image after it.
//
//   bytes  0  "HOISTSEG"
//          8  u32 version, u32 bytes of a block
//         16  u64 bytes of the image, u64 bytes of this header
//         32  the group's fingerprint
//         48  XXH3-128 of this header with these 16 bytes zero
//         64  XXH3-128 of each block of the image, the last one short
//             u64 bytes of the description, and those
//             zeros up to a multiple of 4 KiB; then the image
//
// All numbers are little-endian. The description (description.h) identifies the
// image. The first 64 bytes and that checksum are the same in every version,
// which tells a newer format from a flipped bit.
#ifndef HOIST_DAEMON_STORE_SEGMENT_HEADER_H_
#define HOIST_DAEMON_STORE_SEGMENT_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/model/tensor.h"

namespace hoistd {

inline constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

// The bytes that suffice to know a header's length.
inline constexpr uint64_t kSegmentHeaderStart = 64;

struct SegmentHeader {
  uint64_t image_bytes = 0;
  Fingerprint group_fingerprint = {};
  std::vector<Fingerprint> blocks;
  std::vector<std::byte> description;
};

struct FoundSegment {
  SegmentHeader header;
  Fingerprint header_hash = {};
};

// `image_bytes` is at most hoist::kMaxImageBytes, `description_bytes` at most
// kMaxDescriptionBytes.
uint64_t BlockCount(uint64_t image_bytes);
uint64_t SegmentHeaderBytes(uint64_t image_bytes, uint64_t description_bytes);

// Fills `to`, of SegmentHeaderBytes. Returns the header's own checksum, which
// identifies one image's exact content.
Fingerprint EncodeSegmentHeader(const SegmentHeader& header,
                                std::span<std::byte> to);

// The header's length in a file of `file_bytes`, from its first
// kSegmentHeaderStart bytes. DataLoss: not a segment file, or shorter than its
// header.
absl::StatusOr<uint64_t> FindSegmentHeaderBytes(
    std::span<const std::byte> start, uint64_t file_bytes);
// Needs the whole header. DataLoss, with the reason: it is damaged.
// FailedPrecondition: it is intact, and of a newer version.
absl::StatusOr<FoundSegment> FindSegmentHeader(std::span<const std::byte> from);
// DataLoss: it is not the header that has this checksum.
absl::StatusOr<SegmentHeader> DecodeSegmentHeader(
    std::span<const std::byte> from, const Fingerprint& header_hash);

// Compares `bytes`, which are the image's from block `first` on, with the
// table. DataLoss: names the first block that differs.
absl::Status CheckBlocks(const SegmentHeader& header, uint64_t first,
                         std::span<const std::byte> bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_SEGMENT_HEADER_H_
