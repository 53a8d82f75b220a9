#include "daemon/store/spill_recovery.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/status.h"
#include "daemon/store/description.h"
#include "daemon/store/segment_header.h"

namespace hoistd {
namespace {

// What the file of `id` says of itself. DataLoss: nothing that can be used.
// OutOfRange: it is shorter than any image's file. FailedPrecondition: it is
// whole, and of the form without a description.
absl::StatusOr<CatalogueRow> RowFromFile(const SegmentDir& dir, SpillId id,
                                         bool quarantined) {
  HOIST_ASSIGN_OR_RETURN(const FoundSegment found,
                         dir.ReadHeader(id, quarantined));
  if (found.header.description.empty()) {
    return absl::FailedPreconditionError(
        "it is of the older form that does not say what it is");
  }
  HOIST_ASSIGN_OR_RETURN(SpillDescription described,
                         DecodeDescription(found.header.description));
  const SpillMeta& meta = described.meta;
  if (described.id != id) {
    return absl::DataLossError(
        absl::StrCat("it is the file of image ", described.id.number()));
  }
  if (meta.group.image_bytes != found.header.image_bytes ||
      FingerprintOf(meta.group_content) != found.header.group_fingerprint) {
    return absl::DataLossError("its description is of another image");
  }
  CatalogueRow row = {
      .id = id,
      .header_bytes = SegmentHeaderBytes(found.header.image_bytes,
                                         found.header.description.size()),
      .header_hash = found.header_hash};
  if (quarantined) row.quarantined = "it was found in quarantine/";
  row.meta = std::make_shared<const SpillMeta>(std::move(described.meta));
  return row;
}

std::string Image(SpillId id) { return absl::StrCat("image ", id.number()); }

class Recovery {
 public:
  explicit Recovery(SegmentDir& dir) : dir_(dir) {}

  absl::StatusOr<SpillRecovery> Run();

 private:
  absl::Status CheckThatFilesDescribeThemselves() const;
  absl::Status ReadCatalogue();
  // Takes `row`, with what is known of its file.
  void TakeRow(CatalogueRow row);
  // Takes the file of `id`, of which no row speaks.
  void TakeFile(SpillId id, bool quarantined);
  void PutAside(SpillId id, bool quarantined, const std::string& why);
  void WriteChanges();
  absl::Status Rebuild();
  absl::Status StayInMemory(const absl::Status& why);
  std::vector<CatalogueRow> AllRows() const;
  void NoteLost(SpillRecovery& result);

  SegmentDir& dir_;
  std::optional<Catalogue> catalogue_;
  // Not OK: no row in it can be missed for certain. DataLoss or
  // ResourceExhausted, which is why it is not written to.
  absl::Status sound_;
  FoundRows found_;
  std::map<SpillId, SegmentDir::Places> files_;

  std::map<SpillId, CatalogueRow> rows_;
  std::vector<SpillId> gone_, changed_, adopted_;
  std::map<SpillId, std::string> damaged_;  // Rows, and why.
  std::vector<std::string> notes_;
};

absl::Status Recovery::CheckThatFilesDescribeThemselves() const {
  for (const auto& [id, places] : files_) {
    if (!places.image ||
        !absl::IsFailedPrecondition(RowFromFile(dir_, id, false).status())) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        dir_.path(), " has no catalogue.db, and ", dir_.ImagePath(id),
        " is of the older form that does not say what it is: put catalogue.db "
        "back, or empty ",
        dir_.path(), "/images to start afresh"));
  }
  return absl::OkStatus();
}

absl::Status Recovery::ReadCatalogue() {
  HOIST_ASSIGN_OR_RETURN(const bool there, dir_.HasCatalogue());
  if (!there) HOIST_RETURN_IF_ERROR(CheckThatFilesDescribeThemselves());
  auto catalogue = Catalogue::Open(dir_.catalogue_path());
  sound_ = catalogue.status();
  if (catalogue.ok()) {
    auto rows = catalogue->Load();
    sound_ = rows.status();
    if (rows.ok()) {
      found_.rows = *std::move(rows);
      catalogue_ = *std::move(catalogue);
      return absl::OkStatus();
    }
    // Closed, since Salvage opens it again.
    catalogue = sound_;
  }
  // SQLite's general error is what some damage to its tables looks like.
  if (absl::IsInternal(sound_)) {
    sound_ = absl::DataLossError(sound_.message());
  }
  if (!absl::IsDataLoss(sound_) && !absl::IsResourceExhausted(sound_)) {
    return sound_;
  }
  found_ = Catalogue::Salvage(dir_.catalogue_path());
  return absl::OkStatus();
}

void Recovery::TakeRow(CatalogueRow row) {
  const SpillId id = row.id;
  SegmentDir::Places none;
  const auto at = files_.find(id);
  SegmentDir::Places& places = at == files_.end() ? none : at->second;
  if (places.removed && !places.image && !places.quarantined) {
    gone_.push_back(id);
    return;
  }
  if (places.part && !places.image && !places.quarantined) {
    // The row is there, so the file was whole; its new name got lost.
    places.image = dir_.Publish(id).ok();
  }
  if (row.quarantined.empty()) {
    const auto file = dir_.OpenImage(id, FileBytes(row));
    if (!file.ok()) {
      changed_.push_back(id);
      row.quarantined = places.image ? std::string(file.status().message())
                        : places.quarantined ? "it was found in quarantine/"
                                             : "its file is missing";
      notes_.push_back(absl::StrCat(Image(id), " is damaged, and now in ",
                                    "quarantine/: ", row.quarantined));
    }
  }
  if (!row.quarantined.empty() && places.image) {
    const absl::Status moved = dir_.Quarantine(id);
    if (!moved.ok()) notes_.emplace_back(moved.message());
  }
  rows_.emplace(id, std::move(row));
}

void Recovery::TakeFile(SpillId id, bool quarantined) {
  const auto damaged = damaged_.find(id);
  auto row = RowFromFile(dir_, id, quarantined);
  if (row.ok()) {
    adopted_.push_back(id);
    rows_.emplace(id, *std::move(row));
    if (quarantined) {
      notes_.push_back(absl::StrCat(
          Image(id), " is in quarantine/, and why is no longer known"));
    }
    if (damaged != damaged_.end()) damaged_.erase(damaged);
    return;
  }
  std::string why(row.status().message());
  if (absl::IsResourceExhausted(sound_)) {
    // Its row may be there, to be read once there is room.
    notes_.push_back(absl::StrCat(Image(id), " cannot be served now: ", why));
    return;
  }
  if (absl::IsOutOfRange(row.status())) {
    const absl::Status dropped = dir_.DropImage(id, quarantined);
    notes_.push_back(absl::StrCat(
        "what there was of ", Image(id), " was deleted: ", why,
        dropped.ok() ? "" : absl::StrCat("; ", dropped.message())));
    return;
  }
  if (damaged != damaged_.end()) {
    why = absl::StrCat(damaged->second, "; ", why);
    damaged_.erase(damaged);
  }
  PutAside(id, quarantined, why);
}

void Recovery::PutAside(SpillId id, bool quarantined, const std::string& why) {
  // NoteLost names it, now and at each later start.
  const absl::Status moved = dir_.PutAside(id, quarantined, why);
  if (moved.ok()) return;
  notes_.push_back(
      absl::StrCat(Image(id), " is lost: ", why, "; ", moved.message()));
}

void Recovery::WriteChanges() {
  absl::Status status;
  for (const SpillId id : gone_) status.Update(catalogue_->Remove(id));
  std::vector<CatalogueRow> adopted;
  adopted.reserve(adopted_.size());
  for (const SpillId id : adopted_) adopted.push_back(rows_[id]);
  if (!adopted.empty()) status.Update(catalogue_->Add(adopted));
  for (const SpillId id : changed_) {
    status.Update(catalogue_->MarkQuarantined(rows_[id]));
  }
  if (!status.ok()) {
    // It is all found again at the next start.
    notes_.push_back(absl::StrCat("the catalogue could not be brought up to ",
                                  "date: ", status.message()));
  } else {
    for (const SpillId id : gone_) dir_.EndRemoval(id);
  }
}

absl::Status Recovery::Rebuild() {
  dir_.DropNewCatalogue();
  const absl::Status written =
      Catalogue::Write(dir_.new_catalogue_path(), AllRows());
  if (!written.ok()) {
    dir_.DropNewCatalogue();
    return StayInMemory(written);
  }
  const absl::StatusOr<std::string> kept = dir_.ReplaceCatalogue();
  if (!kept.ok()) return StayInMemory(kept.status());
  auto catalogue = Catalogue::Open(dir_.catalogue_path());
  if (!catalogue.ok()) return StayInMemory(catalogue.status());
  catalogue_ = *std::move(catalogue);
  for (const SpillId id : gone_) dir_.EndRemoval(id);
  notes_.push_back(absl::StrCat(
      "catalogue.db was damaged (", sound_.message(), ") and made anew: ",
      rows_.size() - adopted_.size(), " images from what was left of it, ",
      adopted_.size(), " from their own files; the old one ",
      kept->empty() ? "was not kept" : absl::StrCat("is ", *kept)));
  return absl::OkStatus();
}

std::vector<CatalogueRow> Recovery::AllRows() const {
  std::vector<CatalogueRow> rows;
  rows.reserve(rows_.size());
  for (const auto& [id, row] : rows_) rows.push_back(row);
  return rows;
}

absl::Status Recovery::StayInMemory(const absl::Status& why) {
  HOIST_ASSIGN_OR_RETURN(catalogue_, Catalogue::InMemory());
  HOIST_RETURN_IF_ERROR(catalogue_->Add(AllRows()));
  notes_.push_back(absl::StrCat(
      "catalogue.db ",
      absl::IsDataLoss(sound_) ? "is damaged" : "cannot be opened", " (",
      sound_.message(), ") and could not be made anew (", why.message(),
      "): the catalogue is in memory, and made from the files at the next "
      "start: make room and restart"));
  return absl::OkStatus();
}

void Recovery::NoteLost(SpillRecovery& result) {
  // Rows of which there is not even a file.
  for (const auto& [id, why] : damaged_) {
    notes_.push_back(
        absl::StrCat(why, "; there is no file of ", Image(id), " either"));
  }
  for (const SegmentDir::LostFile& file : dir_.Lost()) {
    result.lost_bytes += file.bytes;
    result.last_id = std::max(result.last_id, file.id.number());
    notes_.push_back(absl::StrCat(
        Image(file.id), " is lost: ", file.why, "; its ", file.bytes,
        " bytes are in quarantine/", file.name, " until somebody deletes it"));
  }
}

absl::StatusOr<SpillRecovery> Recovery::Run() {
  files_ = dir_.Files();
  HOIST_RETURN_IF_ERROR(ReadCatalogue());
  for (FoundRows::Damaged& row : found_.damaged) {
    damaged_.emplace(row.id, std::move(row.why));
  }
  for (CatalogueRow& row : found_.rows) TakeRow(std::move(row));
  for (const auto& [id, places] : files_) {
    if (places.image && !rows_.contains(id)) TakeFile(id, false);
    const auto row = rows_.find(id);
    if (places.quarantined && row == rows_.end()) {
      TakeFile(id, true);
    } else if (places.quarantined && row->second.quarantined.empty()) {
      PutAside(id, true, "another file of this id is in images/");
    }
    if (places.part) dir_.DropPart(id);
    // First the room: it may be what is missing.
    if (places.removed) dir_.FreeRemoved(id);
    // Kept for as long as there is, or may be, a row that goes with it.
    const bool has_row =
        absl::IsResourceExhausted(sound_) ||
        std::find(gone_.begin(), gone_.end(), id) != gone_.end();
    if (places.removed && !has_row) dir_.EndRemoval(id);
  }
  if (sound_.ok()) {
    WriteChanges();
    if (!adopted_.empty()) {
      notes_.push_back(absl::StrCat(
          "catalogue.db had no row of ", adopted_.size(),
          " images, which were taken in from their own files: ",
          absl::StrJoin(adopted_, ", ", [](std::string* out, SpillId id) {
            absl::StrAppend(out, id.number());
          })));
    }
  } else if (absl::IsDataLoss(sound_)) {
    HOIST_RETURN_IF_ERROR(Rebuild());
  } else {
    HOIST_RETURN_IF_ERROR(StayInMemory(sound_));
  }
  SpillRecovery result = {.catalogue = *std::move(catalogue_)};
  NoteLost(result);
  for (const auto& [id, places] : files_) {
    result.last_id = std::max(result.last_id, id.number());
  }
  if (!rows_.empty()) {
    result.last_id = std::max(result.last_id, rows_.rbegin()->first.number());
  }
  result.rows = std::move(rows_);
  if (notes_.size() > kMostNotes) {
    const size_t more = notes_.size() - kMostNotes + 1;
    notes_.resize(kMostNotes - 1);
    notes_.push_back(absl::StrCat("and ", more, " more"));
  }
  result.notes = std::move(notes_);
  return result;
}

}  // namespace

absl::StatusOr<SpillRecovery> RecoverSpills(SegmentDir& dir) {
  return Recovery(dir).Run();
}

}  // namespace hoistd
