// Which published images lie on the host, told to hoistd's successor.
#ifndef HOIST_DAEMON_ENGINE_KEPT_IMAGES_H_
#define HOIST_DAEMON_ENGINE_KEPT_IMAGES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/core/effects.h"
#include "daemon/keeper/keep.h"
#include "daemon/keeper/kept_key.h"
#include "daemon/store/spill_types.h"

namespace hoistd {

// The kinds of what is kept; numbers of another version mean something else.
enum class KeptKind : uint32_t {
  kHostPool = 1,   // A descriptor: the pool's memory.
  kHostImage = 2,  // A record by offset / 4096: EncodeDescription.
};

inline constexpr KeptKey kHostPoolKey = {
    static_cast<uint32_t>(KeptKind::kHostPool), 0};

struct FoundImage {
  uint64_t host_offset = 0;
  SpillMeta meta;
};

// What the last hoistd wrote, models' groups in their order. What makes no
// sense is left out, and said in `notes`.
std::vector<FoundImage> FindKeptImages(
    const std::map<KeptKey, std::string>& records,
    std::vector<std::string>& notes);

// Writes it down. An image that cannot be written is not kept: its successor
// looks at what lies there before it uses it, so no record can do harm.
absl::Status WriteKeptImage(const KeptImage& image, Keep& keep);
absl::Status EraseKeptImage(uint64_t host_offset, Keep& keep);

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_KEPT_IMAGES_H_
