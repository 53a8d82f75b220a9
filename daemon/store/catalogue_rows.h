// The rows of a catalogue, as they are read and checked. Nothing is written.
#ifndef HOIST_DAEMON_STORE_CATALOGUE_ROWS_H_
#define HOIST_DAEMON_STORE_CATALOGUE_ROWS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/model/tensor.h"
#include "daemon/store/spill_types.h"
#include "daemon/store/sqlite.h"
#include "daemon/terms/ids.h"

namespace hoistd {

struct CatalogueRow {
  SpillId id;
  std::shared_ptr<const SpillMeta> meta;  // Shared with the store's callers.
  uint64_t header_bytes = 0;              // Of the segment file's header.
  Fingerprint header_hash = {};
  std::string quarantined;  // Why; empty: it is not.
};

inline uint64_t FileBytes(const CatalogueRow& row) {
  return row.header_bytes + row.meta->group.image_bytes;
}

// XXH3-128 of all that is in the row, its id and its tensors too.
Fingerprint RowChecksum(const CatalogueRow& row);

// Whether rows have checksums: those of an older hoistd have none, and are
// believed where they make sense.
enum class RowForm { kChecked, kUnchecked };

struct FoundRows {
  std::vector<CatalogueRow> rows;  // By id. All of them check.
  struct Damaged {
    SpillId id;  // As far as that can be believed.
    std::string why;
  };
  std::vector<Damaged> damaged;
  // Not OK: not all could be read, or tensors are left over.
  absl::Status status;
};

// Columns are taken by their place: their names are of no account here.
FoundRows ReadRows(sqlite3* db, RowForm form);

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_CATALOGUE_ROWS_H_
