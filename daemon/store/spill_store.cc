// Open and the small verbs. The others are in spill_put.cc and spill_get.cc.
#include "daemon/store/spill_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {

absl::StatusOr<std::unique_ptr<SpillStore>> SpillStore::Open(
    const SpillOptions& options, IoEngine& io) {
  HOIST_ASSIGN_OR_RETURN(SegmentDir dir, SegmentDir::Open(options.dir));
  HOIST_ASSIGN_OR_RETURN(SpillScan found, ScanSpills(dir));
  HOIST_ASSIGN_OR_RETURN(ModelRoll roll,
                         ModelRoll::Open(dir.models_path(), found.notes));
  std::unique_ptr<SpillStore> store(new SpillStore(
      options, io, std::move(dir), std::move(found), std::move(roll)));
  HOIST_RETURN_IF_ERROR(
      store->hashers_.Start(std::max(options.hash_threads, 1)));
  HOIST_RETURN_IF_ERROR(store->desk_.Start(1));
  return store;
}

SpillStore::SpillStore(const SpillOptions& options, IoEngine& io,
                       SegmentDir dir, SpillScan found, ModelRoll roll)
    : options_(options),
      io_(io),
      dir_(std::move(dir)),
      roll_(std::move(roll)),
      models_(roll_.models()),
      lost_bytes_(found.lost_bytes),
      notes_(Shortened(std::move(found.notes))),
      images_(std::move(found.images)),
      used_bytes_(lost_bytes_),
      last_id_(found.last_id) {
  for (std::string& note : notes_) {
    note = absl::StrCat("disk.spill_dir ", options_.dir, ": ", note);
  }
  for (const auto& [id, image] : images_) used_bytes_ += FileBytes(image);
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
    // The next Set retries a failed write. A bad disk is reported by the writes
    // of images.
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
  bool quarantined = false;
  {
    absl::MutexLock lock(&mu_);
    const auto found = images_.find(id);
    if (found == images_.end()) {
      return absl::NotFoundError(
          absl::StrCat("no spilled image ", id.number()));
    }
    quarantined = !found->second.quarantined.empty();
  }
  HOIST_RETURN_IF_ERROR(dir_.Remove(id));
  {
    absl::MutexLock lock(&mu_);
    const auto found = images_.find(id);
    used_bytes_ -= FileBytes(found->second);
    images_.erase(found);
  }
  return Annotate(dir_.SyncRemoval(quarantined),
                  "a power cut may bring the image back");
}

std::vector<SpillRecord> SpillStore::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<SpillRecord> records;
  records.reserve(images_.size());
  for (const auto& [id, image] : images_) {
    records.push_back({.id = id,
                       .meta = image.meta,
                       .file_bytes = FileBytes(image),
                       .quarantined = image.quarantined});
  }
  return records;
}

SpillUsage SpillStore::usage() const {
  absl::MutexLock lock(&mu_);
  SpillUsage usage = {.capacity_bytes = options_.capacity_bytes,
                      .used_bytes = used_bytes_,
                      .lost_bytes = lost_bytes_};
  for (const auto& [id, image] : images_) {
    if (image.quarantined.empty()) {
      ++usage.images;
    } else {
      usage.quarantined_bytes += FileBytes(image);
    }
  }
  return usage;
}

}  // namespace hoistd
