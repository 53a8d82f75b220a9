#ifndef HOIST_DAEMON_STORE_SEGMENT_DIR_H_
#define HOIST_DAEMON_STORE_SEGMENT_DIR_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/store/segment_header.h"
#include "daemon/types/ids.h"
#include "daemon/types/io_engine.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// An open segment file, with direct I/O if the disk supports it. Move-only.
struct SegmentFile {
  hoist::UniqueFd fd;
  hoist::UniqueFd direct_fd;
  uint64_t bytes = 0;

  IoFile io() const {
    return {.fd = fd.get(), .direct_fd = direct_fd.get(), .bytes = bytes};
  }
};

// The spill directory: names, places and lifetimes of segment files. It is the
// catalogue, too: an image exists if its name does.
//
//   lock          held by the one store that uses the directory
//   images/N.part an image being written; N.img: a published one
//   quarantine/   N.img: a damaged image, kept for inspection; N.why: the
//                 reason, as text
//   models/       see model_roll.h
//
// Threads:  one at a time, except for ReadHeader.
// Owns:     the lock and the directories' descriptors. It follows no links.
class SegmentDir {
 public:
  // Which of an image's two places.
  enum class Place { kImages, kQuarantine };

  struct Listing {
    std::vector<SpillId> images;       // By id.
    std::vector<SpillId> quarantined;  // By id.
    std::vector<SpillId> parts;
    std::set<SpillId> reasons;        // N.why without a file in quarantine/.
    std::vector<std::string> strays;  // Unknown files, below path().
    uint64_t last_id = 0;             // The largest id of any file.
  };
  // The facts in the start of a file.
  struct ReadSegment {
    uint64_t file_bytes = 0;
    // DataLoss: not a segment file, or a wrong checksum of the header.
    // FailedPrecondition: a newer hoistd wrote it. Unavailable: the disk or the
    // system failed to read it.
    absl::StatusOr<FoundSegment> found;
  };

  // FailedPrecondition: another store has it.
  static absl::StatusOr<SegmentDir> Open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string models_path() const { return path_ + "/models"; }
  std::string ImagePath(SpillId id) const;

  // All files in the directory.
  absl::StatusOr<Listing> List() const;
  // Deletes orphaned N.part and N.why, which an interrupted put or removal
  // left.
  void Sweep(const Listing& listing);

  // Thread-safe; holds one descriptor open during the call.
  ReadSegment ReadHeader(SpillId id, Place place) const;
  // Why an image is in quarantine/; empty: unknown.
  std::string ReasonOf(SpillId id) const;

  // A new N.part with its space reserved. ResourceExhausted: the disk is full;
  // the message has the numbers.
  absl::StatusOr<SegmentFile> CreatePart(SpillId id, uint64_t bytes);
  void DropPart(SpillId id);
  // Renames N.part to N.img, durably. After an error either name may exist, now
  // or after a power cut.
  absl::Status Publish(SpillId id);
  // NotFound: there is none. DataLoss: its size is not `bytes`.
  absl::StatusOr<SegmentFile> OpenImage(SpillId id, uint64_t bytes) const;

  // Deletes N.img in both places, and N.why. OK if there is none.
  absl::Status Remove(SpillId id);
  // Makes Remove survive a power cut. `quarantined`: the image may have been in
  // quarantine/.
  absl::Status SyncRemoval(bool quarantined);

  // Moves N.img, if it exists, to quarantine/, and writes `why` to N.why. The
  // reason is written first: if the move is lost, the next start repeats it.
  // The text is for people, so a disk without room for it does not stop the
  // move.
  absl::Status Quarantine(SpillId id, const std::string& why);
  // Makes Quarantine's moves survive a power cut. The reasons may be empty
  // after one.
  absl::Status SyncQuarantine();
  // ", M bytes are free there", for messages.
  std::string FreeText() const;

 private:
  SegmentDir() = default;
  int FdOf(Place place) const {
    return place == Place::kImages ? images_.get() : quarantine_.get();
  }

  std::string path_;
  hoist::UniqueFd top_;
  hoist::UniqueFd lock_;
  hoist::UniqueFd images_;
  hoist::UniqueFd quarantine_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_SEGMENT_DIR_H_
