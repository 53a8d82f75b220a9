#ifndef HOIST_DAEMON_STORE_CATALOGUE_H_
#define HOIST_DAEMON_STORE_CATALOGUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/model/tensor.h"
#include "daemon/store/spill_types.h"
#include "daemon/store/sqlite.h"
#include "daemon/terms/ids.h"

namespace hoistd {

struct CatalogueRow {
  SpillId id;
  std::shared_ptr<const SpillMeta> meta;  // Shared with the store's callers.
  Fingerprint header_hash = {};           // Of the segment file's header.
  std::string quarantined;                // Why; empty: it is not.
};

// Which segment files are images, and of what: SQLite in WAL mode, one
// transaction a change, each of them synced (synchronous=FULL).
//
// Threads:  one at a time.
// Restart:  a change that was answered with OK is there after a power cut.
class Catalogue {
 public:
  // DataLoss: the file is damaged, or not a catalogue. FailedPrecondition: a
  // newer hoistd wrote it.
  static absl::StatusOr<Catalogue> Open(const std::string& path);

  // DataLoss: a row makes no sense.
  absl::StatusOr<std::vector<CatalogueRow>> Load();
  absl::Status Add(const CatalogueRow& row);
  // OK too where there is no such row.
  absl::Status Remove(SpillId id);
  absl::Status MarkQuarantined(SpillId id, const std::string& reason);

 private:
  explicit Catalogue(SqliteDb db) : db_(std::move(db)) {}

  absl::Status SetUp();
  absl::Status AddRows(const CatalogueRow& row);
  absl::StatusOr<std::vector<Tensor>> LoadTensors(SpillId id,
                                                  uint64_t image_bytes);

  SqliteDb db_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_CATALOGUE_H_
