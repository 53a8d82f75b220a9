#include "daemon/store/catalogue_rows.h"

#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "daemon/store/description.h"
#include "daemon/store/segment_header.h"
#include "hoist/shared/dtype.h"

namespace hoistd {
namespace {

// Places of columns; catalogue.cc creates them.
enum ImageColumn {
  kId,
  kModel,
  kGroupName,
  kGroupIndex,
  kOwner,
  kReaders,
  kContent,
  kImageBytes,
  kHeaderHash,
  kQuarantined,
  kTenant,  // From schema 3 on, as the next two from 4 on.
  kHeaderBytes,
  kChecksum,
};
enum TensorColumn {
  kImage,
  kSeq,
  kName,
  kDType,
  kShape,
  kStrides,
  kOffset,
  kBytes,
  kTensorColumns,
};

struct FoundTensors {
  std::vector<Tensor> tensors;
  std::string bad;  // What of them makes no sense.
};

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

void TakeTensor(const SqliteQuery& query, FoundTensors& to) {
  Tensor tensor = {.name = query.TextAt(kName),
                   .offset = static_cast<uint64_t>(query.IntAt(kOffset)),
                   .bytes = static_cast<uint64_t>(query.IntAt(kBytes))};
  const auto dtype = hoist::DTypeFromNumber(query.IntAt(kDType));
  auto shape = NumbersFrom(query.BlobAt(kShape));
  auto strides = NumbersFrom(query.BlobAt(kStrides));
  if (query.IntAt(kSeq) != static_cast<int64_t>(to.tensors.size())) {
    to.bad = "order of tensors";
  } else if (!dtype) {
    to.bad = "element type";
  } else if (!shape || !strides) {
    to.bad = "shape";
  } else {
    tensor.dtype = *dtype;
    tensor.shape = *std::move(shape);
    tensor.strides = *std::move(strides);
  }
  to.tensors.push_back(std::move(tensor));
}

absl::Status Bad(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("bad ", what));
}

absl::StatusOr<SpillMeta> TakeMeta(const SqliteQuery& query) {
  constexpr int64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
  const int64_t index = query.IntAt(kGroupIndex);
  const int64_t owner = query.IntAt(kOwner);
  const int64_t readers = query.IntAt(kReaders);
  const auto content = DigestFrom<Content>(query.BlobAt(kContent));
  const int64_t bytes = query.IntAt(kImageBytes);
  if (index < 0 || index > kMaxU32) return Bad("group index");
  if (owner < 0 || owner > kMaxU32) return Bad("owner");
  // By name, since hoistd.toml may list tenants in another order by now.
  const std::string tenant =
      query.columns() > kTenant ? query.TextAt(kTenant) : "";
  const std::optional<User> user = tenant.empty()
                                       ? User(static_cast<uint32_t>(owner))
                                       : User::Tenant(tenant);
  if (!user.has_value()) return Bad("tenant");
  if (readers < 0 || readers > 1) return Bad("right to read");
  if (!content) return Bad("digest");
  if (bytes < 0) return Bad("size");
  SpillMeta meta = {
      .model = query.TextAt(kModel),
      .owner = *user,
      .readers = readers == 0 ? Readers::kOwner : Readers::kEveryone,
      .group_content = *content,
      .group_index = GroupIndex(static_cast<uint32_t>(index))};
  meta.group.name = query.TextAt(kGroupName);
  meta.group.image_bytes = static_cast<uint64_t>(bytes);
  return meta;
}

absl::StatusOr<CatalogueRow> TakeRow(const SqliteQuery& query, RowForm form,
                                     FoundTensors tensors) {
  const int64_t id = query.IntAt(kId);
  if (id <= 0) return Bad("id");
  HOIST_ASSIGN_OR_RETURN(SpillMeta meta, TakeMeta(query));
  if (!tensors.bad.empty()) return Bad(tensors.bad);
  meta.group.tensors = std::move(tensors.tensors);
  HOIST_RETURN_IF_ERROR(CheckLayout(meta));
  const auto header_hash = DigestFrom<Fingerprint>(query.BlobAt(kHeaderHash));
  if (!header_hash) return Bad("digest");
  CatalogueRow row = {
      .id = SpillId(static_cast<uint64_t>(id)),
      // Where there are no checksums yet, there are no descriptions.
      .header_bytes = SegmentHeaderBytes(meta.group.image_bytes),
      .header_hash = *header_hash,
      .quarantined = query.TextAt(kQuarantined)};
  row.meta = std::make_shared<const SpillMeta>(std::move(meta));
  if (form == RowForm::kUnchecked) return row;
  const SpillMeta& of = *row.meta;
  const auto checksum = DigestFrom<Fingerprint>(query.BlobAt(kChecksum));
  if (!checksum) return Bad("digest");
  row.header_bytes = static_cast<uint64_t>(query.IntAt(kHeaderBytes));
  if (row.header_bytes != SegmentHeaderBytes(of.group.image_bytes) &&
      row.header_bytes !=
          SegmentHeaderBytes(of.group.image_bytes, DescriptionBytes(of))) {
    return Bad("header's size");
  }
  if (RowChecksum(row) != *checksum) return Bad("checksum");
  return row;
}

}  // namespace

Fingerprint RowChecksum(const CatalogueRow& row) {
  const std::vector<std::byte> described = EncodeDescription(row.id, *row.meta);
  return Hasher()
      .Number(described.size())
      .Bytes(described)
      .Number(row.header_bytes)
      .Bytes(std::as_bytes(std::span(row.header_hash)))
      .String(row.quarantined)
      .Finish();
}

FoundRows ReadRows(sqlite3* db, RowForm form) {
  FoundRows found;
  std::map<int64_t, FoundTensors> tensors;  // By image.
  SqliteQuery tensor(db, "SELECT * FROM tensors ORDER BY image, seq");
  if (tensor.columns() == kTensorColumns) {
    while (tensor.Step()) TakeTensor(tensor, tensors[tensor.IntAt(kImage)]);
  } else {
    found.status = absl::DataLossError("tensors have other columns");
  }
  found.status.Update(tensor.status());

  SqliteQuery image(db, "SELECT * FROM images ORDER BY id");
  const int columns = image.columns();
  if (columns != (form == RowForm::kChecked ? kChecksum + 1 : kTenant + 1) &&
      (form == RowForm::kChecked || columns != kQuarantined + 1)) {
    found.status.Update(absl::DataLossError("images have other columns"));
    return found;
  }
  while (image.Step()) {
    FoundTensors of;
    if (const auto mine = tensors.find(image.IntAt(kId));
        mine != tensors.end()) {
      of = std::move(mine->second);
      tensors.erase(mine);
    }
    auto row = TakeRow(image, form, std::move(of));
    if (row.ok()) {
      found.rows.push_back(*std::move(row));
    } else {
      const SpillId id(static_cast<uint64_t>(image.IntAt(kId)));
      found.damaged.push_back(
          {.id = id,
           .why = absl::StrCat("the row of image ", id.number(), " has a ",
                               row.status().message())});
    }
  }
  found.status.Update(image.status());
  if (!tensors.empty()) {
    found.status.Update(absl::DataLossError(
        absl::StrCat("there are tensors of image ", tensors.begin()->first,
                     ", which has no row")));
  }
  return found;
}

}  // namespace hoistd
