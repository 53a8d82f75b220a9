// Opening, and the small verbs; spill_put.cc and spill_get.cc have the others.
#include "daemon/store/spill_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/store/segment_header.h"

namespace hoistd {
namespace {

uint64_t FileBytes(const SpillMeta& meta) {
  return SegmentHeaderBytes(meta.group.image_bytes) + meta.group.image_bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpillStore>> SpillStore::Open(
    const SpillOptions& options, IoEngine& io) {
  HOIST_ASSIGN_OR_RETURN(SegmentDir dir, SegmentDir::Open(options.dir));
  const bool had_images = dir.HasImages();
  HOIST_ASSIGN_OR_RETURN(const bool had_catalogue, dir.HasCatalogue());
  if (had_images && !had_catalogue) {
    // Opening would sweep them all as orphans.
    return absl::FailedPreconditionError(absl::StrCat(
        options.dir, " has images and no catalogue.db: put it back, or empty ",
        options.dir, "/images to start afresh"));
  }
  HOIST_ASSIGN_OR_RETURN(Catalogue catalogue,
                         Catalogue::Open(dir.catalogue_path()));
  std::unique_ptr<SpillStore> store(
      new SpillStore(options, io, std::move(dir), std::move(catalogue)));
  HOIST_RETURN_IF_ERROR(Annotate(store->LoadRows(), options.dir));
  return store;
}

SpillStore::SpillStore(const SpillOptions& options, IoEngine& io,
                       SegmentDir dir, Catalogue catalogue)
    : options_(options),
      io_(io),
      dir_(std::move(dir)),
      catalogue_(std::move(catalogue)),
      hashers_(std::max(options.hash_threads, 1)),
      desk_(1) {}

SpillStore::~SpillStore() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(
      +[](uint64_t* under_way) { return *under_way == 0; }, &under_way_));
}

absl::Status SpillStore::LoadRows() {
  HOIST_ASSIGN_OR_RETURN(std::vector<CatalogueRow> rows, catalogue_.Load());
  for (CatalogueRow& row : rows) {
    if (!row.quarantined.empty()) continue;
    const auto file = dir_.OpenImage(row.id, FileBytes(*row.meta));
    if (file.ok()) continue;
    // Open must not fail for one damaged image; Get says what happened.
    row.quarantined = std::string(file.status().message());
    HOIST_RETURN_IF_ERROR(dir_.Quarantine(row.id));
    HOIST_RETURN_IF_ERROR(catalogue_.MarkQuarantined(row.id, row.quarantined));
  }
  std::map<SpillId, CatalogueRow> known;
  for (CatalogueRow& row : rows) known.emplace(row.id, std::move(row));
  dir_.Sweep([&known](SpillId id, bool quarantined) {
    const auto found = known.find(id);
    return found != known.end() &&
           found->second.quarantined.empty() != quarantined;
  });
  absl::MutexLock lock(&mu_);
  rows_ = std::move(known);
  for (const auto& [id, row] : rows_) {
    used_bytes_ += FileBytes(*row.meta);
    last_id_ = std::max(last_id_, id.number());
  }
  return absl::OkStatus();
}

void SpillStore::Begin() {
  absl::MutexLock lock(&mu_);
  ++under_way_;
}

void SpillStore::End() {
  absl::MutexLock lock(&mu_);
  --under_way_;
}

void SpillStore::Answer(Done done, absl::Status status) {
  desk_.Post([this, done = std::move(done), status]() mutable {
    done(status);
    End();
  });
}

void SpillStore::Remove(SpillId id, Done done) {
  Begin();
  desk_.Post([this, id, done = std::move(done)]() mutable {
    done(DoRemove(id));
    End();
  });
}

absl::Status SpillStore::DoRemove(SpillId id) {
  bool quarantined = false;
  uint64_t bytes = 0;
  {
    absl::MutexLock lock(&mu_);
    const auto found = rows_.find(id);
    if (found == rows_.end()) {
      return absl::NotFoundError(
          absl::StrCat("no spilled image ", id.number()));
    }
    quarantined = !found->second.quarantined.empty();
    bytes = FileBytes(*found->second.meta);
  }
  // The row first: a file without one is swept, a row without a file is not.
  HOIST_RETURN_IF_ERROR(catalogue_.Remove(id));
  const absl::Status removed = dir_.RemoveImage(id, quarantined);
  absl::MutexLock lock(&mu_);
  rows_.erase(id);
  if (removed.ok()) used_bytes_ -= bytes;
  return Annotate(removed, "the file stays until the next start");
}

std::vector<SpillRecord> SpillStore::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<SpillRecord> records;
  records.reserve(rows_.size());
  for (const auto& [id, row] : rows_) {
    records.push_back({.id = id,
                       .meta = row.meta,
                       .file_bytes = FileBytes(*row.meta),
                       .quarantined = row.quarantined});
  }
  return records;
}

SpillUsage SpillStore::usage() const {
  absl::MutexLock lock(&mu_);
  SpillUsage usage = {.capacity_bytes = options_.capacity_bytes,
                      .used_bytes = used_bytes_};
  for (const auto& [id, row] : rows_) {
    if (row.quarantined.empty()) {
      ++usage.images;
    } else {
      usage.quarantined_bytes += FileBytes(*row.meta);
    }
  }
  return usage;
}

}  // namespace hoistd
