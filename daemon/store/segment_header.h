// The head of a segment file: what the image after it must be.
//
//   bytes  0  "HOISTSEG"
//          8  u32 version, u32 bytes of a block
//         16  u64 bytes of the image, u64 bytes of this header
//         32  the group's fingerprint
//         48  XXH3-128 of this header with these 16 bytes zero
//         64  XXH3-128 of each block of the image, the last one short
//             zeros up to a multiple of 4 KiB; then the image
//
// All numbers are little-endian.
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

struct SegmentHeader {
  uint64_t image_bytes = 0;
  Fingerprint group_fingerprint = {};
  std::vector<Fingerprint> blocks;
};

// `image_bytes` is at most hoist::kMaxImageBytes.
uint64_t BlockCount(uint64_t image_bytes);
uint64_t SegmentHeaderBytes(uint64_t image_bytes);

// Fills `to`, of SegmentHeaderBytes. Returns the header's own checksum, which
// the catalogue keeps: it binds a row to one file's exact content.
Fingerprint EncodeSegmentHeader(const SegmentHeader& header,
                                std::span<std::byte> to);

// DataLoss, with what differs: `from` is no such header, or not the one with
// that checksum for an image of that size.
absl::StatusOr<SegmentHeader> DecodeSegmentHeader(
    std::span<const std::byte> from, uint64_t image_bytes,
    const Fingerprint& header_hash);

// Compares `bytes`, which are the image's from block `first` on, with the
// table. DataLoss: names the first block that differs.
absl::Status CheckBlocks(const SegmentHeader& header, uint64_t first,
                         std::span<const std::byte> bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_SEGMENT_HEADER_H_
