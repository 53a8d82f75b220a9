#ifndef HOIST_DAEMON_STORE_CATALOGUE_H_
#define HOIST_DAEMON_STORE_CATALOGUE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/store/catalogue_rows.h"
#include "daemon/store/sqlite.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// Which segment files are images, and of what: SQLite in WAL mode, one
// transaction a change, each of them synced (synchronous=FULL). Every row has
// a checksum of its own; the structure is SQLite's to check.
//
// Threads:  one at a time.
// Owns:     the file: while it is open no other process can read it.
// Restart:  a change that was answered with OK is there after a power cut.
class Catalogue {
 public:
  // Makes it where there is none, and gives one of schema 2 or 3 its checksums,
  // in one transaction. Needs no room on the disk where it does neither.
  // DataLoss: it is damaged, or not a catalogue; the file is as it was.
  // FailedPrecondition: a newer hoistd wrote it. ResourceExhausted.
  static absl::StatusOr<Catalogue> Open(const std::string& path);
  // One that is nowhere but in memory.
  static absl::StatusOr<Catalogue> InMemory();
  // Makes the file `path`, which is not there, of `rows`, and syncs it.
  static absl::Status Write(const std::string& path,
                            const std::vector<CatalogueRow>& rows);
  // What of a damaged one can be read and checks.
  static FoundRows Salvage(const std::string& path);

  // It is on the disk.
  bool durable() const { return durable_; }

  // DataLoss: a row does not check.
  absl::StatusOr<std::vector<CatalogueRow>> Load();
  absl::Status Add(const CatalogueRow& row);
  absl::Status Add(const std::vector<CatalogueRow>& rows);  // All or none.
  // OK too where there is no such row.
  absl::Status Remove(SpillId id);
  // With the reason that `row` has now. OK too where there is no such row.
  absl::Status MarkQuarantined(const CatalogueRow& row);

 private:
  explicit Catalogue(SqliteDb db) : db_(std::move(db)) {}

  absl::Status SetUp();
  absl::Status CheckStructure();
  absl::Status Create();
  absl::Status Migrate();
  // Carries out `change` in a transaction.
  template <typename Change>
  absl::Status InTransaction(Change change);
  absl::Status AddRow(const CatalogueRow& row);

  SqliteDb db_;
  bool durable_ = true;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_CATALOGUE_H_
