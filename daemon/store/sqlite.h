// SQLite with owners for its handles and Status for its codes.
#ifndef HOIST_DAEMON_STORE_SQLITE_H_
#define HOIST_DAEMON_STORE_SQLITE_H_

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hoistd {

struct SqliteCloser {
  void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
  void operator()(sqlite3_stmt* statement) const {
    sqlite3_finalize(statement);
  }
};
using SqliteDb = std::unique_ptr<sqlite3, SqliteCloser>;

// DataLoss: corrupt, not a database, or the disk failed. ResourceExhausted:
// disk full. The message carries SQLite's own.
absl::Status SqliteStatus(sqlite3* db, int code);

// The file must be on a local disk; it is made if it is not there.
absl::StatusOr<SqliteDb> OpenSqlite(const std::string& path);
// One or more statements without parameters or rows.
absl::Status ExecSqlite(sqlite3* db, const char* sql);

// One statement: bind in order, then Step() for each row. After a failure the
// rest are no-ops and status() says what it was.
//
// Threads:  one at a time, as the database is.
class SqliteQuery {
 public:
  SqliteQuery(sqlite3* db, const char* sql);

  SqliteQuery& Int(int64_t value);
  SqliteQuery& Text(const std::string& value);
  SqliteQuery& Blob(std::span<const std::byte> value);

  // True: there is a row. False: the end, or a failure.
  bool Step();
  // For a statement without rows: runs it to its end, ready to bind again.
  absl::Status Run();
  const absl::Status& status() const { return status_; }

  // Of the statement's rows; 0 after a failure to prepare it.
  int columns() const { return sqlite3_column_count(statement_.get()); }
  // Of the row, by column from 0.
  int64_t IntAt(int column) const;
  std::string TextAt(int column) const;
  // Valid until the next Step.
  std::span<const std::byte> BlobAt(int column) const;

 private:
  void Take(int code);

  sqlite3* db_;
  std::unique_ptr<sqlite3_stmt, SqliteCloser> statement_;
  int bound_ = 0;
  absl::Status status_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_SQLITE_H_
