// Opening, and the small verbs; spill_put.cc and spill_get.cc have the others.
#include "daemon/store/spill_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {

absl::StatusOr<std::unique_ptr<SpillStore>> SpillStore::Open(
    const SpillOptions& options, IoEngine& io) {
  HOIST_ASSIGN_OR_RETURN(SegmentDir dir, SegmentDir::Open(options.dir));
  HOIST_ASSIGN_OR_RETURN(SpillRecovery found, RecoverSpills(dir));
  ModelRoll roll = ModelRoll::Open(dir.roll_path(), found.notes);
  return std::unique_ptr<SpillStore>(new SpillStore(
      options, io, std::move(dir), std::move(found), std::move(roll)));
}

SpillStore::SpillStore(const SpillOptions& options, IoEngine& io,
                       SegmentDir dir, SpillRecovery found, ModelRoll roll)
    : options_(options),
      io_(io),
      dir_(std::move(dir)),
      catalogue_(std::move(found.catalogue)),
      roll_(std::move(roll)),
      models_(roll_.models()),
      lost_bytes_(found.lost_bytes),
      notes_(std::move(found.notes)),
      rows_(std::move(found.rows)),
      used_bytes_(lost_bytes_),
      last_id_(found.last_id),
      hashers_(std::max(options.hash_threads, 1)),
      desk_(1) {
  for (std::string& note : notes_) {
    note = absl::StrCat("disk.spill_dir ", options_.dir, ": ", note);
  }
  for (const auto& [id, row] : rows_) used_bytes_ += FileBytes(row);
}

SpillStore::~SpillStore() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(
      +[](uint64_t* under_way) { return *under_way == 0; }, &under_way_));
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

void SpillStore::NoteModel(User owner, std::string model, uint32_t groups) {
  Begin();
  desk_.Post([this, owner, model = std::move(model), groups] {
    // What fails is written with the next; an image that cannot be written to
    // the same disk is told of.
    roll_.Set(owner, model, groups).IgnoreError();
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
  uint64_t bytes = 0;
  {
    absl::MutexLock lock(&mu_);
    const auto found = rows_.find(id);
    if (found == rows_.end()) {
      return absl::NotFoundError(
          absl::StrCat("no spilled image ", id.number()));
    }
    bytes = FileBytes(found->second);
  }
  // The file's name first: an image without a row is taken in again at a start.
  HOIST_RETURN_IF_ERROR(dir_.BeginRemoval(id));
  absl::Status row = catalogue_.Remove(id);
  if (!row.ok()) {
    // On a full disk its own room may be all that the row needs to go.
    dir_.FreeRemoved(id);
    row = catalogue_.Remove(id);
  }
  if (row.ok() && catalogue_.durable()) {
    dir_.EndRemoval(id);
  } else {
    // N.del stays, and at the next start the row goes with it.
    dir_.FreeRemoved(id);
  }
  absl::MutexLock lock(&mu_);
  rows_.erase(id);
  used_bytes_ -= bytes;
  if (absl::IsResourceExhausted(row)) return absl::OkStatus();
  return Annotate(row, "the row stays until the next start");
}

std::vector<SpillRecord> SpillStore::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<SpillRecord> records;
  records.reserve(rows_.size());
  for (const auto& [id, row] : rows_) {
    records.push_back({.id = id,
                       .meta = row.meta,
                       .file_bytes = FileBytes(row),
                       .quarantined = row.quarantined});
  }
  return records;
}

SpillUsage SpillStore::usage() const {
  absl::MutexLock lock(&mu_);
  SpillUsage usage = {.capacity_bytes = options_.capacity_bytes,
                      .used_bytes = used_bytes_,
                      .lost_bytes = lost_bytes_};
  for (const auto& [id, row] : rows_) {
    if (row.quarantined.empty()) {
      ++usage.images;
    } else {
      usage.quarantined_bytes += FileBytes(row);
    }
  }
  return usage;
}

}  // namespace hoistd
