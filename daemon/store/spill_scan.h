#ifndef HOIST_DAEMON_STORE_SPILL_SCAN_H_
#define HOIST_DAEMON_STORE_SPILL_SCAN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/model/tensor.h"
#include "daemon/store/segment_dir.h"
#include "daemon/store/spill_types.h"
#include "daemon/types/ids.h"

namespace hoistd {

struct StoredImage {
  SpillId id;
  std::shared_ptr<const SpillMeta> meta;  // Shared with the store's callers.
  uint64_t header_bytes = 0;              // Of the segment file's header.
  Fingerprint header_hash = {};
  std::string quarantined;  // Why; empty: it is not.
};

inline uint64_t FileBytes(const StoredImage& image) {
  return image.header_bytes + image.meta->group.image_bytes;
}

// The contents of a spill directory, after the cleanup that follows a crash or
// damage.
struct SpillScan {
  std::map<SpillId, StoredImage> images;
  uint64_t lost_bytes = 0;         // Of files that yield no image.
  uint64_t last_id = 0;            // The largest id of any file.
  std::vector<std::string> notes;  // The problems found.
};

inline constexpr size_t kMostNotes = 64;

// Reads and checks the header of every image, 16 at once. A damaged image goes
// to quarantine/. One that cannot be read now stays in its place, and is not
// served. The notes name both, each time.
//
// FailedPrecondition: a newer hoistd wrote an image. Other errors are the
// disk's; damage or a full disk is not an error.
absl::StatusOr<SpillScan> ScanSpills(SegmentDir& dir);

// Shortens `notes` to at most kMostNotes.
std::vector<std::string> Shortened(std::vector<std::string> notes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_SPILL_SCAN_H_
