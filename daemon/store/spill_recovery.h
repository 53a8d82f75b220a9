#ifndef HOIST_DAEMON_STORE_SPILL_RECOVERY_H_
#define HOIST_DAEMON_STORE_SPILL_RECOVERY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/store/catalogue.h"
#include "daemon/store/segment_dir.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// What a spill directory holds, once what a crash, a full disk or damage left
// has been seen to.
struct SpillRecovery {
  Catalogue catalogue;
  std::map<SpillId, CatalogueRow> rows;
  uint64_t lost_bytes = 0;         // Of quarantine/*.lost.
  uint64_t last_id = 0;            // No file has a larger one.
  std::vector<std::string> notes;  // What was wrong; at most kMostNotes.
};

inline constexpr size_t kMostNotes = 64;

// Brings the catalogue and the files together. Rows that check are believed,
// and files that describe themselves: where one of the two is missing or
// damaged, it is made again from the other. What is then still unknown is put
// aside, and named in the notes.
//
// FailedPrecondition: a newer hoistd wrote the catalogue, or there is none and
// an image's file is of the older form that does not describe itself. Other
// errors are the disk's; damage or a full disk are none.
absl::StatusOr<SpillRecovery> RecoverSpills(SegmentDir& dir);

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_SPILL_RECOVERY_H_
