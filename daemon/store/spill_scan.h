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

// What a spill directory holds, once what a stop or damage left has been seen
// to.
struct SpillScan {
  std::map<SpillId, StoredImage> images;
  uint64_t lost_bytes = 0;         // Of files that no image can be made of.
  uint64_t last_id = 0;            // No file has a larger one.
  std::vector<std::string> notes;  // What was wrong.
};

inline constexpr size_t kMostNotes = 64;

// Reads and checks the header of every image, 16 at once. One that is damaged
// goes to quarantine/; one that cannot be read now stays where it is, and is
// not served. Both are named in the notes, each time.
//
// FailedPrecondition: a newer hoistd wrote an image. Other errors are the
// disk's; damage or a full disk are none.
absl::StatusOr<SpillScan> ScanSpills(SegmentDir& dir);

// `notes`, of which there may be any number, as at most kMostNotes.
std::vector<std::string> Shortened(std::vector<std::string> notes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_SPILL_SCAN_H_
