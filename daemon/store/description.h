// The canonical encoding of a spilled image's description. The segment file
// carries it under its header's checksum.
//
//   u64 id, string model, u64 owner's uid, string owner's tenant,
//   u64 readers (0 owner, 1 everyone), 32 bytes of content, u64 group index,
//   string group, u64 image bytes, u64 tensors, and of each:
//     string name, u64 dtype, numbers shape, numbers strides, u64 offset,
//     u64 bytes
//
// A u64 is little-endian. A string, or a list of 8-byte numbers, follows its
// count. So no two images have the same encoding.
#ifndef HOIST_DAEMON_STORE_DESCRIPTION_H_
#define HOIST_DAEMON_STORE_DESCRIPTION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/store/spill_types.h"
#include "daemon/types/ids.h"

namespace hoistd {

// The limit of a description. The largest group that can be published stays
// below it.
inline constexpr uint64_t kMaxDescriptionBytes = uint64_t{1} << 30;

struct SpillDescription {
  SpillId id;
  SpillMeta meta;
};

// The same for every id.
uint64_t DescriptionBytes(const SpillMeta& meta);
std::vector<std::byte> EncodeDescription(SpillId id, const SpillMeta& meta);

// DataLoss: `bytes` are not a description, or describe an impossible image.
absl::StatusOr<SpillDescription> DecodeDescription(
    std::span<const std::byte> bytes);

// DataLoss, with the reason: no image can have this size, or these tensors.
absl::Status CheckLayout(const SpillMeta& meta);

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_DESCRIPTION_H_
