#include "daemon/store/catalogue.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <span>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {
namespace {

// Not 1 to 3, or one of those with one bit flipped and no application_id.
constexpr int64_t kSchema = 4;
// application_id is this, "hoi" and a byte, plus the schema: where it agrees
// with user_version, a schema that is not known is a newer one, not damage.
constexpr int64_t kApplication = 0x686f6900;

// Names are TEXT for people who look with sqlite3; any bytes go through. Texts
// are compared with the file's, to the letter: a changed one would be obeyed.
constexpr char kImages[] = R"(CREATE TABLE images(
  id INTEGER PRIMARY KEY, model TEXT NOT NULL, group_name TEXT NOT NULL,
  group_index INTEGER NOT NULL, owner INTEGER NOT NULL,
  readers INTEGER NOT NULL, content BLOB NOT NULL,
  image_bytes INTEGER NOT NULL, header_hash BLOB NOT NULL,
  quarantined TEXT NOT NULL, tenant TEXT NOT NULL,
  header_bytes INTEGER NOT NULL, checksum BLOB NOT NULL))";
constexpr char kTensors[] = R"(CREATE TABLE tensors(
  image INTEGER NOT NULL REFERENCES images(id) ON DELETE CASCADE,
  seq INTEGER NOT NULL, name TEXT NOT NULL, dtype INTEGER NOT NULL,
  shape BLOB NOT NULL, strides BLOB NOT NULL, byte_offset INTEGER NOT NULL,
  bytes INTEGER NOT NULL, PRIMARY KEY(image, seq)) WITHOUT ROWID)";

// The one value that `sql` gives.
absl::StatusOr<std::string> Ask(sqlite3* db, const char* sql) {
  SqliteQuery query(db, sql);
  const std::string answer = query.Step() ? query.TextAt(0) : "";
  HOIST_RETURN_IF_ERROR(query.status());
  if (answer.empty()) return absl::DataLossError("no answer");
  return answer;
}

absl::StatusOr<int64_t> AskNumber(sqlite3* db, const char* sql) {
  HOIST_ASSIGN_OR_RETURN(const std::string answer, Ask(db, sql));
  int64_t number = 0;
  if (!absl::SimpleAtoi(answer, &number)) return absl::DataLossError(answer);
  return number;
}

// SQLite would only read a file that says it is of a newer form (bytes 18, 19
// of its format), and not say why.
absl::Status CheckFormBytes(const std::string& path) {
  const hoist::UniqueFd fd(
      open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoToStatus(errno, path);
  }
  uint8_t form[2] = {};
  if (pread(fd.get(), form, sizeof form, 18) < 0) {
    return ErrnoToStatus(errno, path);
  }
  if (form[0] > 2 || form[1] > 2) {
    return absl::DataLossError("file is not a database of a known form");
  }
  return absl::OkStatus();
}

// Exclusive: hoistd is the only one, and then the WAL's index is in memory,
// where on a full disk there is still room for it.
absl::StatusOr<SqliteDb> OpenAlone(const std::string& path) {
  HOIST_ASSIGN_OR_RETURN(SqliteDb db, OpenSqlite(path));
  int on = 1;
  sqlite3_file_control(db.get(), "main", SQLITE_FCNTL_PERSIST_WAL, &on);
  // Until it has been checked nothing is written to it.
  sqlite3_db_config(db.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  sqlite3_db_config(db.get(), SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  HOIST_RETURN_IF_ERROR(
      ExecSqlite(db.get(),
                 "PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=MEMORY;"
                 "PRAGMA cell_size_check=ON; PRAGMA foreign_keys=ON;"));
  return db;
}

}  // namespace

absl::StatusOr<Catalogue> Catalogue::Open(const std::string& path) {
  HOIST_RETURN_IF_ERROR(Annotate(CheckFormBytes(path), path));
  auto db = OpenAlone(path);
  if (!db.ok()) return Annotate(db.status(), path);
  Catalogue catalogue(*std::move(db));
  HOIST_RETURN_IF_ERROR(Annotate(catalogue.SetUp(), path));
  return catalogue;
}

absl::StatusOr<Catalogue> Catalogue::InMemory() {
  HOIST_ASSIGN_OR_RETURN(SqliteDb db, OpenSqlite(":memory:"));
  Catalogue catalogue(std::move(db));
  catalogue.durable_ = false;
  HOIST_RETURN_IF_ERROR(
      ExecSqlite(catalogue.db_.get(), "PRAGMA foreign_keys=ON"));
  HOIST_RETURN_IF_ERROR(catalogue.Create());
  return catalogue;
}

absl::Status Catalogue::Write(const std::string& path,
                              const std::vector<CatalogueRow>& rows) {
  HOIST_ASSIGN_OR_RETURN(SqliteDb db, OpenSqlite(path));
  Catalogue catalogue(std::move(db));
  // Without a WAL: what is renamed into place is one file.
  HOIST_RETURN_IF_ERROR(
      ExecSqlite(catalogue.db_.get(),
                 "PRAGMA journal_mode=MEMORY; PRAGMA synchronous=FULL;"
                 "PRAGMA foreign_keys=ON; PRAGMA temp_store=MEMORY;"));
  HOIST_RETURN_IF_ERROR(catalogue.Create());
  return catalogue.Add(rows);
}

FoundRows Catalogue::Salvage(const std::string& path) {
  FoundRows found;
  auto db = OpenAlone(path);
  found.status = db.status();
  if (!db.ok()) return found;
  const auto application = AskNumber(db->get(), "PRAGMA application_id");
  found.status = application.status();
  if (!application.ok()) return found;
  return ReadRows(db->get(),
                  *application == 0 ? RowForm::kUnchecked : RowForm::kChecked);
}

absl::Status Catalogue::SetUp() {
  sqlite3* const db = db_.get();
  HOIST_ASSIGN_OR_RETURN(const int64_t version,
                         AskNumber(db, "PRAGMA user_version"));
  HOIST_ASSIGN_OR_RETURN(const int64_t application,
                         AskNumber(db, "PRAGMA application_id"));
  HOIST_ASSIGN_OR_RETURN(const int64_t tables,
                         AskNumber(db, "SELECT COUNT(*) FROM sqlite_schema"));
  const bool agree = application == kApplication + version;
  if (version > kSchema && agree) {
    return absl::FailedPreconditionError(
        absl::StrCat("the catalogue's schema is ", version,
                     ", and this hoistd knows ", kSchema, ": use a newer one"));
  }
  if (version == 1 && application == 0) {
    return absl::FailedPreconditionError(
        "the catalogue's schema is 1, of a hoistd that knew no contents: empty "
        "disk.spill_dir, or name another");
  }
  const bool none = version == 0 && application == 0 && tables == 0;
  const bool old = application == 0 && (version == 2 || version == 3);
  if (!none && !old && (version != kSchema || !agree)) {
    return absl::DataLossError(absl::StrCat("its schema is ", version, " or ",
                                            application - kApplication, " of ",
                                            tables, " tables"));
  }
  if (!none) {
    HOIST_ASSIGN_OR_RETURN(const std::string found,
                           Ask(db, "PRAGMA quick_check(1)"));
    if (found != "ok") return absl::DataLossError(found);
  }
  HOIST_RETURN_IF_ERROR(
      ExecSqlite(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"));
  if (none) HOIST_RETURN_IF_ERROR(Create());
  if (old) HOIST_RETURN_IF_ERROR(Migrate());
  HOIST_RETURN_IF_ERROR(CheckStructure());
  sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, nullptr);
  // What a damaged WAL could take back is then no older than this start. With
  // a full disk it stays where it is.
  ExecSqlite(db, "PRAGMA journal_size_limit=0; PRAGMA wal_checkpoint(TRUNCATE)")
      .IgnoreError();
  return absl::OkStatus();
}

absl::Status Catalogue::CheckStructure() {
  SqliteQuery query(db_.get(), "SELECT sql FROM sqlite_schema ORDER BY name");
  std::vector<std::string> found;
  while (query.Step()) found.push_back(query.TextAt(0));
  HOIST_RETURN_IF_ERROR(query.status());
  if (found != std::vector<std::string>{kImages, kTensors}) {
    return absl::DataLossError("its tables are not the catalogue's");
  }
  return absl::OkStatus();
}

template <typename Change>
absl::Status Catalogue::InTransaction(Change change) {
  HOIST_RETURN_IF_ERROR(ExecSqlite(db_.get(), "BEGIN IMMEDIATE"));
  absl::Status status = change();
  if (status.ok()) status = ExecSqlite(db_.get(), "COMMIT");
  if (!status.ok() && sqlite3_get_autocommit(db_.get()) == 0) {
    // Only fails where SQLite has rolled back by itself.
    ExecSqlite(db_.get(), "ROLLBACK").IgnoreError();
  }
  return status;
}

absl::Status Catalogue::Create() {
  const std::string versions =
      absl::StrCat("PRAGMA user_version=", kSchema,
                   "; PRAGMA application_id=", kApplication + kSchema);
  return InTransaction([&] {
    absl::Status status = ExecSqlite(db_.get(), kImages);
    status.Update(ExecSqlite(db_.get(), kTensors));
    status.Update(ExecSqlite(db_.get(), versions.c_str()));
    return status;
  });
}

absl::Status Catalogue::Migrate() {
  const FoundRows found = ReadRows(db_.get(), RowForm::kUnchecked);
  HOIST_RETURN_IF_ERROR(found.status);
  if (!found.damaged.empty()) return absl::DataLossError(found.damaged[0].why);
  const std::string versions =
      absl::StrCat("PRAGMA user_version=", kSchema,
                   "; PRAGMA application_id=", kApplication + kSchema);
  return InTransaction([&] {
    absl::Status status =
        ExecSqlite(db_.get(), "DROP TABLE tensors; DROP TABLE images");
    status.Update(ExecSqlite(db_.get(), kImages));
    status.Update(ExecSqlite(db_.get(), kTensors));
    for (const CatalogueRow& row : found.rows) {
      if (status.ok()) status = AddRow(row);
    }
    status.Update(ExecSqlite(db_.get(), versions.c_str()));
    return status;
  });
}

absl::StatusOr<std::vector<CatalogueRow>> Catalogue::Load() {
  FoundRows found = ReadRows(db_.get(), RowForm::kChecked);
  if (!found.damaged.empty()) return absl::DataLossError(found.damaged[0].why);
  HOIST_RETURN_IF_ERROR(found.status);
  return std::move(found.rows);
}

absl::Status Catalogue::Add(const CatalogueRow& row) {
  return InTransaction([&] { return AddRow(row); });
}

absl::Status Catalogue::Add(const std::vector<CatalogueRow>& rows) {
  return InTransaction([&] {
    for (const CatalogueRow& row : rows) HOIST_RETURN_IF_ERROR(AddRow(row));
    return absl::OkStatus();
  });
}

absl::Status Catalogue::AddRow(const CatalogueRow& row) {
  const SpillMeta& meta = *row.meta;
  const auto id = static_cast<int64_t>(row.id.number());
  const Fingerprint checksum = RowChecksum(row);
  HOIST_RETURN_IF_ERROR(
      SqliteQuery(db_.get(),
                  "INSERT INTO images VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)")
          .Int(id)
          .Text(meta.model)
          .Text(meta.group.name)
          .Int(meta.group_index.number())
          .Int(meta.owner.number())
          .Int(meta.readers == Readers::kOwner ? 0 : 1)
          .Blob(std::as_bytes(std::span(meta.group_content)))
          .Int(static_cast<int64_t>(meta.group.image_bytes))
          .Blob(std::as_bytes(std::span(row.header_hash)))
          .Text(row.quarantined)
          .Text(std::string(meta.owner.tenant()))
          .Int(static_cast<int64_t>(row.header_bytes))
          .Blob(std::as_bytes(std::span(checksum)))
          .Run());
  SqliteQuery insert(db_.get(), "INSERT INTO tensors VALUES(?,?,?,?,?,?,?,?)");
  int64_t seq = 0;
  for (const Tensor& tensor : meta.group.tensors) {
    HOIST_RETURN_IF_ERROR(insert.Int(id)
                              .Int(seq++)
                              .Text(tensor.name)
                              .Int(static_cast<int64_t>(tensor.dtype))
                              .Blob(std::as_bytes(std::span(tensor.shape)))
                              .Blob(std::as_bytes(std::span(tensor.strides)))
                              .Int(static_cast<int64_t>(tensor.offset))
                              .Int(static_cast<int64_t>(tensor.bytes))
                              .Run());
  }
  return absl::OkStatus();
}

absl::Status Catalogue::Remove(SpillId id) {
  return SqliteQuery(db_.get(), "DELETE FROM images WHERE id=?")
      .Int(static_cast<int64_t>(id.number()))
      .Run();
}

absl::Status Catalogue::MarkQuarantined(const CatalogueRow& row) {
  const Fingerprint checksum = RowChecksum(row);
  return SqliteQuery(db_.get(),
                     "UPDATE images SET quarantined=?, checksum=? WHERE id=?")
      .Text(row.quarantined)
      .Blob(std::as_bytes(std::span(checksum)))
      .Int(static_cast<int64_t>(row.id.number()))
      .Run();
}

}  // namespace hoistd
