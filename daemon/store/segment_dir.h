#ifndef HOIST_DAEMON_STORE_SEGMENT_DIR_H_
#define HOIST_DAEMON_STORE_SEGMENT_DIR_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/terms/ids.h"
#include "daemon/terms/io_engine.h"
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

// The spill directory: names, places and life of segment files.
//
//   lock          held by the one store that uses the directory
//   catalogue.db  see catalogue.h
//   images/N.part an image being written; N.img: a published one
//   quarantine/   images that were found damaged, kept for a look
//
// Threads:  one at a time.
// Owns:     the lock and the directories' descriptors. It follows no links.
class SegmentDir {
 public:
  // FailedPrecondition: another store has it.
  static absl::StatusOr<SegmentDir> Open(const std::string& path);

  std::string catalogue_path() const { return path_ + "/catalogue.db"; }
  std::string ImagePath(SpillId id) const;

  // Whether there are published images.
  bool HasImages() const;
  absl::StatusOr<bool> HasCatalogue() const;
  // Deletes what is neither published nor quarantined with its row's consent:
  // every N.part, and each N.img that `is_known` does not know in that place.
  void Sweep(const std::function<bool(SpillId, bool quarantined)>& is_known);

  // A new N.part with its space reserved. ResourceExhausted: the disk is full;
  // the message has the numbers.
  absl::StatusOr<SegmentFile> CreatePart(SpillId id, uint64_t bytes);
  void DropPart(SpillId id);
  // N.part becomes N.img, and is that after a power cut too.
  absl::Status Publish(SpillId id);
  // NotFound: there is none. DataLoss: it has another size than `bytes`.
  absl::StatusOr<SegmentFile> OpenImage(SpillId id, uint64_t bytes) const;
  absl::Status RemoveImage(SpillId id, bool quarantined);
  // N.img goes to quarantine/, if it is there at all.
  absl::Status Quarantine(SpillId id);
  // ", M bytes are free there", for messages.
  std::string FreeText() const;

 private:
  SegmentDir() = default;

  std::string path_;
  hoist::UniqueFd lock_;
  hoist::UniqueFd images_;
  hoist::UniqueFd quarantine_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_SEGMENT_DIR_H_
