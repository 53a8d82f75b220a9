#include "daemon/store/catalogue.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "hoist/shared/dtype.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

constexpr int kSchema = 3;

// Names are TEXT for people who look with sqlite3; any bytes go through.
constexpr char kCreate[] = R"(
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS images(
  id INTEGER PRIMARY KEY, model TEXT NOT NULL, group_name TEXT NOT NULL,
  group_index INTEGER NOT NULL, owner INTEGER NOT NULL,
  readers INTEGER NOT NULL, content BLOB NOT NULL,
  image_bytes INTEGER NOT NULL, header_hash BLOB NOT NULL,
  quarantined TEXT NOT NULL, tenant TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS tensors(
  image INTEGER NOT NULL REFERENCES images(id) ON DELETE CASCADE,
  seq INTEGER NOT NULL, name TEXT NOT NULL, dtype INTEGER NOT NULL,
  shape BLOB NOT NULL, strides BLOB NOT NULL, byte_offset INTEGER NOT NULL,
  bytes INTEGER NOT NULL, PRIMARY KEY(image, seq)) WITHOUT ROWID;
PRAGMA user_version=3;
COMMIT;
)";

// From schema 2, whose owners were all uids.
constexpr char kAddTenants[] = R"(
BEGIN IMMEDIATE;
ALTER TABLE images ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
PRAGMA user_version=3;
COMMIT;
)";

// The disk may hold anything: a row is believed only where it makes sense.
template <typename Digest>
std::optional<Digest> DigestFrom(std::span<const std::byte> blob) {
  Digest digest;
  if (blob.size() != digest.size()) return std::nullopt;
  std::memcpy(digest.data(), blob.data(), blob.size());
  return digest;
}

std::optional<std::vector<int64_t>> NumbersFrom(
    std::span<const std::byte> blob) {
  if (blob.size() % sizeof(int64_t) != 0) return std::nullopt;
  std::vector<int64_t> numbers(blob.size() / sizeof(int64_t));
  if (!blob.empty()) std::memcpy(numbers.data(), blob.data(), blob.size());
  return numbers;
}

// The one value that `sql` gives.
absl::StatusOr<std::string> Ask(sqlite3* db, const char* sql) {
  SqliteQuery query(db, sql);
  const std::string answer = query.Step() ? query.TextAt(0) : "";
  HOIST_RETURN_IF_ERROR(query.status());
  if (answer.empty()) return absl::DataLossError("no answer");
  return answer;
}

absl::Status BadRow(SpillId id, const char* what) {
  return absl::DataLossError(
      absl::StrCat("the row of image ", id.number(), " has a bad ", what));
}

}  // namespace

absl::StatusOr<Catalogue> Catalogue::Open(const std::string& path) {
  auto db = OpenSqlite(path);
  if (!db.ok()) return Annotate(db.status(), path);
  Catalogue catalogue(*std::move(db));
  HOIST_RETURN_IF_ERROR(Annotate(catalogue.SetUp(), path));
  return catalogue;
}

absl::Status Catalogue::SetUp() {
  HOIST_RETURN_IF_ERROR(
      ExecSqlite(db_.get(),
                 "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                 "PRAGMA foreign_keys=ON;"));
  HOIST_ASSIGN_OR_RETURN(const std::string version,
                         Ask(db_.get(), "PRAGMA user_version"));
  if (version.size() > 1 || version[0] - '0' > kSchema) {
    return absl::FailedPreconditionError(
        absl::StrCat("the catalogue's schema is ", version,
                     ", and this hoistd knows ", kSchema, ": use a newer one"));
  }
  if (version == "1") {
    return absl::FailedPreconditionError(
        "the catalogue's schema is 1, of a hoistd that knew no contents: empty "
        "disk.spill_dir, or name another");
  }
  HOIST_ASSIGN_OR_RETURN(const std::string found,
                         Ask(db_.get(), "PRAGMA quick_check(1)"));
  if (found != "ok") return absl::DataLossError(found);
  if (version == "2") {
    HOIST_RETURN_IF_ERROR(ExecSqlite(db_.get(), kAddTenants));
  }
  return ExecSqlite(db_.get(), kCreate);
}

absl::StatusOr<std::vector<CatalogueRow>> Catalogue::Load() {
  std::vector<CatalogueRow> rows;
  SqliteQuery query(db_.get(),
                    "SELECT id, model, group_name, group_index, owner, readers,"
                    " content, image_bytes, header_hash, quarantined,"
                    " tenant"
                    " FROM images ORDER BY id");
  constexpr int64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
  while (query.Step()) {
    const SpillId id(static_cast<uint64_t>(query.IntAt(0)));
    const int64_t index = query.IntAt(3);
    const int64_t owner = query.IntAt(4);
    const int64_t readers = query.IntAt(5);
    const auto content = DigestFrom<Content>(query.BlobAt(6));
    const int64_t bytes = query.IntAt(7);
    const auto header_hash = DigestFrom<Fingerprint>(query.BlobAt(8));
    if (id.number() == 0 || query.IntAt(0) < 0) return BadRow(id, "id");
    if (index < 0 || index > kMaxU32) return BadRow(id, "group index");
    if (owner < 0 || owner > kMaxU32) return BadRow(id, "owner");
    // By name, since hoistd.toml may list tenants in another order by now.
    const std::string tenant = query.TextAt(10);
    const std::optional<User> user = tenant.empty()
                                         ? User(static_cast<uint32_t>(owner))
                                         : User::Tenant(tenant);
    if (!user.has_value()) return BadRow(id, "tenant");
    if (readers < 0 || readers > 1) return BadRow(id, "right to read");
    if (!content || !header_hash) return BadRow(id, "digest");
    if (bytes < 0 || static_cast<uint64_t>(bytes) > hoist::kMaxImageBytes ||
        bytes % hoist::kImageAlignment != 0) {
      return BadRow(id, "size");
    }
    SpillMeta meta = {
        .model = query.TextAt(1),
        .owner = *user,
        .readers = readers == 0 ? Readers::kOwner : Readers::kEveryone,
        .group_content = *content,
        .group_index = GroupIndex(static_cast<uint32_t>(index))};
    meta.group.name = query.TextAt(2);
    meta.group.image_bytes = static_cast<uint64_t>(bytes);
    HOIST_ASSIGN_OR_RETURN(meta.group.tensors,
                           LoadTensors(id, meta.group.image_bytes));
    rows.push_back({.id = id,
                    .meta = std::make_shared<const SpillMeta>(std::move(meta)),
                    .header_hash = *header_hash,
                    .quarantined = query.TextAt(9)});
  }
  HOIST_RETURN_IF_ERROR(query.status());
  return rows;
}

absl::StatusOr<std::vector<Tensor>> Catalogue::LoadTensors(
    SpillId id, uint64_t image_bytes) {
  std::vector<Tensor> tensors;
  SqliteQuery query(db_.get(),
                    "SELECT name, dtype, shape, strides, byte_offset, bytes"
                    " FROM tensors WHERE image=? ORDER BY seq");
  query.Int(static_cast<int64_t>(id.number()));
  while (query.Step()) {
    Tensor tensor = {.name = query.TextAt(0),
                     .offset = static_cast<uint64_t>(query.IntAt(4)),
                     .bytes = static_cast<uint64_t>(query.IntAt(5))};
    const auto dtype = hoist::DTypeFromNumber(query.IntAt(1));
    auto shape = NumbersFrom(query.BlobAt(2));
    auto strides = NumbersFrom(query.BlobAt(3));
    if (!dtype) return BadRow(id, "element type");
    if (!shape || !strides) return BadRow(id, "shape");
    if (tensor.offset > image_bytes ||
        tensor.bytes > image_bytes - tensor.offset) {
      return BadRow(id, "tensor's place");
    }
    tensor.dtype = *dtype;
    tensor.shape = *std::move(shape);
    tensor.strides = *std::move(strides);
    tensors.push_back(std::move(tensor));
  }
  HOIST_RETURN_IF_ERROR(query.status());
  return tensors;
}

absl::Status Catalogue::Add(const CatalogueRow& row) {
  HOIST_RETURN_IF_ERROR(ExecSqlite(db_.get(), "BEGIN IMMEDIATE"));
  absl::Status status = AddRows(row);
  if (status.ok()) status = ExecSqlite(db_.get(), "COMMIT");
  if (!status.ok() && sqlite3_get_autocommit(db_.get()) == 0) {
    // Only fails where SQLite has rolled back by itself.
    ExecSqlite(db_.get(), "ROLLBACK").IgnoreError();
  }
  return status;
}

absl::Status Catalogue::AddRows(const CatalogueRow& row) {
  const SpillMeta& meta = *row.meta;
  const auto id = static_cast<int64_t>(row.id.number());
  HOIST_RETURN_IF_ERROR(
      SqliteQuery(db_.get(), "INSERT INTO images VALUES(?,?,?,?,?,?,?,?,?,?,?)")
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

absl::Status Catalogue::MarkQuarantined(SpillId id, const std::string& reason) {
  return SqliteQuery(db_.get(), "UPDATE images SET quarantined=? WHERE id=?")
      .Text(reason)
      .Int(static_cast<int64_t>(id.number()))
      .Run();
}

}  // namespace hoistd
