#include "daemon/store/sqlite.h"

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

absl::StatusCode CodeOf(int code) {
  switch (code & 0xff) {  // The primary code of an extended one.
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
      return absl::StatusCode::kOk;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_IOERR:
      return absl::StatusCode::kDataLoss;
    case SQLITE_FULL:
    case SQLITE_NOMEM:
    case SQLITE_TOOBIG:
      return absl::StatusCode::kResourceExhausted;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::StatusCode::kUnavailable;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_AUTH:
      return absl::StatusCode::kPermissionDenied;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status SqliteStatus(sqlite3* db, int code) {
  absl::StatusCode status = CodeOf(code);
  const int error = db != nullptr ? sqlite3_system_errno(db) : 0;
  // Not every place where a disk is full has a code of its own.
  if (((code & 0xff) == SQLITE_IOERR || (code & 0xff) == SQLITE_CANTOPEN) &&
      (error == ENOSPC || error == EDQUOT)) {
    status = absl::StatusCode::kResourceExhausted;
  }
  if (status == absl::StatusCode::kOk) return absl::OkStatus();
  return absl::Status(
      status, db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code));
}

absl::StatusOr<SqliteDb> OpenSqlite(const std::string& path) {
  sqlite3* raw = nullptr;
  // One thread uses it (NOMUTEX); a link in the path's place is not followed.
  const int code =
      sqlite3_open_v2(path.c_str(), &raw,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE |
                          SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW,
                      nullptr);
  SqliteDb db(raw);  // To be closed even where opening failed.
  HOIST_RETURN_IF_ERROR(SqliteStatus(raw, code));
  return db;
}

absl::Status ExecSqlite(sqlite3* db, const char* sql) {
  return SqliteStatus(db, sqlite3_exec(db, sql, nullptr, nullptr, nullptr));
}

SqliteQuery::SqliteQuery(sqlite3* db, const char* sql) : db_(db) {
  sqlite3_stmt* raw = nullptr;
  Take(sqlite3_prepare_v2(db, sql, -1, &raw, nullptr));
  statement_.reset(raw);
}

void SqliteQuery::Take(int code) { status_.Update(SqliteStatus(db_, code)); }

SqliteQuery& SqliteQuery::Int(int64_t value) {
  ++bound_;
  if (status_.ok()) Take(sqlite3_bind_int64(statement_.get(), bound_, value));
  return *this;
}

SqliteQuery& SqliteQuery::Text(const std::string& value) {
  ++bound_;
  if (status_.ok()) {
    Take(sqlite3_bind_text64(statement_.get(), bound_, value.data(),
                             value.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
  }
  return *this;
}

SqliteQuery& SqliteQuery::Blob(std::span<const std::byte> value) {
  ++bound_;
  if (!status_.ok()) return *this;
  // A null pointer would bind NULL.
  const void* data =
      value.empty() ? "" : static_cast<const void*>(value.data());
  Take(sqlite3_bind_blob64(statement_.get(), bound_, data, value.size(),
                           SQLITE_TRANSIENT));
  return *this;
}

bool SqliteQuery::Step() {
  if (!status_.ok()) return false;
  const int code = sqlite3_step(statement_.get());
  Take(code);
  return code == SQLITE_ROW;
}

absl::Status SqliteQuery::Run() {
  while (Step()) {
  }
  if (status_.ok()) sqlite3_reset(statement_.get());
  bound_ = 0;
  return status_;
}

int64_t SqliteQuery::IntAt(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

std::string SqliteQuery::TextAt(int column) const {
  const auto bytes = BlobAt(column);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::span<const std::byte> SqliteQuery::BlobAt(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int bytes = sqlite3_column_bytes(statement_.get(), column);
  if (data == nullptr) return {};
  return {static_cast<const std::byte*>(data), static_cast<size_t>(bytes)};
}

}  // namespace hoistd
