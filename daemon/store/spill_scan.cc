#include "daemon/store/spill_scan.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/status.h"
#include "daemon/base/task_threads.h"
#include "daemon/store/description.h"
#include "daemon/store/segment_header.h"

namespace hoistd {
namespace {

using Place = SegmentDir::Place;

// On a cold disk, this many concurrent small reads are several times as fast as
// sequential ones. It also bounds the open descriptors, one per read.
constexpr size_t kReaders = 16;
// Fewer images are read in less time than a thread takes to start.
constexpr size_t kWorthAThread = 64;
// The names in one note.
constexpr size_t kMostNames = 8;

void InParallel(size_t count, const std::function<void(size_t)>& read) {
  std::atomic<size_t> next = 0;
  const auto work = [&next, &read, count] {
    for (size_t i = next++; i < count; i = next++) read(i);
  };
  TaskThreads helpers;  // Its destructor waits for them.
  const size_t threads = std::min(kReaders - 1, count / kWorthAThread);
  // With fewer threads, or none, the scan takes longer.
  if (threads > 0) helpers.Start(static_cast<int>(threads)).IgnoreError();
  for (size_t i = 0; i < threads; ++i) helpers.Post(work);
  work();
}

// One file, as it says of itself.
struct ScannedImage {
  uint64_t file_bytes = 0;
  // As of SegmentDir::ReadHeader. It is in quarantine where its header checks,
  // and its size does not.
  absl::StatusOr<StoredImage> image;
};

absl::StatusOr<StoredImage> ImageOf(const FoundSegment& found, SpillId id,
                                    uint64_t file_bytes) {
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
  StoredImage image = {
      .id = id,
      .header_bytes = SegmentHeaderBytes(found.header.image_bytes,
                                         found.header.description.size()),
      .header_hash = found.header_hash};
  image.meta = std::make_shared<const SpillMeta>(std::move(described.meta));
  if (file_bytes != FileBytes(image)) {
    image.quarantined = absl::StrCat("it has ", file_bytes,
                                     " bytes instead of ", FileBytes(image));
  }
  return image;
}

std::vector<ScannedImage> ReadAll(const SegmentDir& dir,
                                  const std::vector<SpillId>& ids,
                                  Place place) {
  std::vector<ScannedImage> all(ids.size());
  InParallel(ids.size(), [&](size_t i) {
    const SegmentDir::ReadSegment read = dir.ReadHeader(ids[i], place);
    all[i].file_bytes = read.file_bytes;
    all[i].image = read.found.ok()
                       ? ImageOf(*read.found, ids[i], read.file_bytes)
                       : read.found.status();
  });
  return all;
}

std::string Name(SpillId id) { return absl::StrCat("image ", id.number()); }

class Scan {
 public:
  explicit Scan(SegmentDir& dir) : dir_(dir) {}

  absl::StatusOr<SpillScan> Run();

 private:
  absl::Status CheckNoneNewer(const std::vector<ScannedImage>& images) const;
  void TakePublished(SpillId id, ScannedImage read);
  void TakeQuarantined(SpillId id, ScannedImage read);
  // Counts a file whose bytes take space, but are unusable.
  void Lose(SpillId id, const ScannedImage& read, absl::string_view where,
            absl::string_view why);
  void NoteStrays();

  SegmentDir& dir_;
  SegmentDir::Listing listing_;
  SpillScan result_;
  bool moved_ = false;  // Something went to quarantine/.
};

absl::Status Scan::CheckNoneNewer(
    const std::vector<ScannedImage>& images) const {
  for (size_t i = 0; i < images.size(); ++i) {
    const absl::Status& status = images[i].image.status();
    if (absl::IsFailedPrecondition(status)) {
      return Annotate(status, dir_.ImagePath(listing_.images[i]));
    }
  }
  return absl::OkStatus();
}

void Scan::Lose(SpillId id, const ScannedImage& read, absl::string_view where,
                absl::string_view why) {
  result_.lost_bytes += read.file_bytes;
  result_.notes.push_back(absl::StrCat(
      Name(id), " is lost: ", why, "; its ", read.file_bytes, " bytes are in ",
      where, "/", id.number(), ".img until somebody deletes it"));
}

void Scan::TakePublished(SpillId id, ScannedImage read) {
  absl::StatusOr<StoredImage>& image = read.image;
  if (absl::IsUnavailable(image.status())) {
    result_.lost_bytes += read.file_bytes;
    result_.notes.push_back(absl::StrCat(
        Name(id),
        " cannot be served before the next start: ", image.status().message()));
    return;
  }
  std::string why(image.ok() ? image->quarantined : image.status().message());
  if (listing_.reasons.contains(id)) {
    // A move to quarantine was interrupted. A damaged image stays refused.
    const std::string reason = dir_.ReasonOf(id);
    why = reason.empty() ? "it was found damaged" : reason;
  }
  if (why.empty()) {
    result_.images.emplace(id, *std::move(image));
    return;
  }
  const absl::Status moved = dir_.Quarantine(id, why);
  moved_ = true;
  if (!moved.ok()) absl::StrAppend(&why, "; ", moved.message());
  if (!image.ok()) {
    return Lose(id, read, moved.ok() ? "quarantine" : "images", why);
  }
  result_.notes.push_back(
      absl::StrCat(Name(id), " is damaged, and now in quarantine/: ", why));
  image->quarantined = why;
  result_.images.emplace(id, *std::move(image));
}

void Scan::TakeQuarantined(SpillId id, ScannedImage read) {
  const std::string reason = dir_.ReasonOf(id);
  if (result_.images.contains(id)) {
    return Lose(id, read, "quarantine",
                "another file of this id is in images/");
  }
  if (!read.image.ok()) {
    return Lose(id, read, "quarantine",
                reason.empty() ? read.image.status().message() : reason);
  }
  if (reason.empty()) {
    result_.notes.push_back(absl::StrCat(
        Name(id), " is in quarantine/, and why is no longer known"));
  }
  StoredImage image = *std::move(read.image);
  image.quarantined = reason.empty() ? "it was found in quarantine/" : reason;
  result_.images.emplace(id, std::move(image));
}

void Scan::NoteStrays() {
  std::vector<std::string>& names = listing_.strays;
  if (names.empty()) return;
  const size_t count = names.size();
  if (count > kMostNames) names.resize(kMostNames);
  result_.notes.push_back(absl::StrCat(
      count, " files are not hoistd's, or of an older one, and are ignored: ",
      absl::StrJoin(names, ", "), count > kMostNames ? ", ..." : "",
      "; delete what nobody needs"));
}

absl::StatusOr<SpillScan> Scan::Run() {
  HOIST_ASSIGN_OR_RETURN(listing_, dir_.List());
  std::vector<ScannedImage> images =
      ReadAll(dir_, listing_.images, Place::kImages);
  // Before anything is changed.
  HOIST_RETURN_IF_ERROR(CheckNoneNewer(images));
  std::vector<ScannedImage> quarantined =
      ReadAll(dir_, listing_.quarantined, Place::kQuarantine);
  dir_.Sweep(listing_);
  for (size_t i = 0; i < images.size(); ++i) {
    TakePublished(listing_.images[i], std::move(images[i]));
  }
  for (size_t i = 0; i < quarantined.size(); ++i) {
    TakeQuarantined(listing_.quarantined[i], std::move(quarantined[i]));
  }
  NoteStrays();
  // One sync for all moves, of which there may be very many. The next scan
  // repeats those that a power cut undoes.
  if (moved_) dir_.SyncQuarantine().IgnoreError();
  result_.last_id = listing_.last_id;
  return std::move(result_);
}

}  // namespace

absl::StatusOr<SpillScan> ScanSpills(SegmentDir& dir) {
  return Scan(dir).Run();
}

std::vector<std::string> Shortened(std::vector<std::string> notes) {
  if (notes.size() <= kMostNotes) return notes;
  const size_t more = notes.size() - kMostNotes + 1;
  notes.resize(kMostNotes - 1);
  notes.push_back(absl::StrCat("and ", more, " more"));
  return notes;
}

}  // namespace hoistd
