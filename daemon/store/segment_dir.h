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

// An open segment file, direct where its disk has that. Move-only.
struct SegmentFile {
  hoist::UniqueFd fd;
  hoist::UniqueFd direct_fd;
  uint64_t bytes = 0;

  IoFile io() const {
    return {.fd = fd.get(), .direct_fd = direct_fd.get(), .bytes = bytes};
  }
};

// The spill directory: names, places and life of segment files. It is their
// catalogue, too: an image is there if its name is.
//
//   lock          held by the one store that uses the directory
//   images/N.part an image being written; N.img: a published one
//   quarantine/   N.img: one that was found damaged, kept for a look; N.why:
//                 the reason, as text
//   models/       see model_roll.h
//
// Threads:  one at a time, but for ReadHeader.
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
    std::vector<std::string> strays;  // Files of nobody's, below path().
    uint64_t last_id = 0;             // No file of any kind has a larger one.
  };
  // What can be said of a file by its start.
  struct ReadSegment {
    uint64_t file_bytes = 0;
    // DataLoss: it is no segment file, or its header does not check.
    // FailedPrecondition: a newer hoistd wrote it. Unavailable: the disk, or
    // the system, did not let it be read.
    absl::StatusOr<FoundSegment> found;
  };

  // FailedPrecondition: another store has it.
  static absl::StatusOr<SegmentDir> Open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string models_path() const { return path_ + "/models"; }
  std::string ImagePath(SpillId id) const;

  // All that is there.
  absl::StatusOr<Listing> List() const;
  // Deletes N.part and N.why that belong to nothing: what a stop left of a put,
  // or of a removal.
  void Sweep(const Listing& listing);

  // Thread-safe; has one descriptor open meanwhile.
  ReadSegment ReadHeader(SpillId id, Place place) const;
  // Why an image is in quarantine/; empty: nobody knows.
  std::string ReasonOf(SpillId id) const;

  // A new N.part with its space reserved. ResourceExhausted: the disk is full;
  // the message has the numbers.
  absl::StatusOr<SegmentFile> CreatePart(SpillId id, uint64_t bytes);
  void DropPart(SpillId id);
  // N.part becomes N.img, and is that after a power cut too. After an error
  // there may be either, or after a power cut.
  absl::Status Publish(SpillId id);
  // NotFound: there is none. DataLoss: it has another size than `bytes`.
  absl::StatusOr<SegmentFile> OpenImage(SpillId id, uint64_t bytes) const;

  // Deletes N.img, wherever it is, and N.why. OK where there is none.
  absl::Status Remove(SpillId id);
  // What Remove did is so after a power cut, too. `quarantined`: it may have
  // been in quarantine/.
  absl::Status SyncRemoval(bool quarantined);

  // N.img goes to quarantine/, if it is there at all, and `why` to N.why. The
  // reason goes first: where the move is lost, it says at the next start that
  // there was one. It is for people: without room for it the file goes all the
  // same.
  absl::Status Quarantine(SpillId id, const std::string& why);
  // What Quarantine moved is there after a power cut, too. The reasons may be
  // empty then.
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
