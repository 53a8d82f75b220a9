#ifndef HOIST_DAEMON_STORE_SEGMENT_DIR_H_
#define HOIST_DAEMON_STORE_SEGMENT_DIR_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/store/segment_header.h"
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
//   catalogue.db  see catalogue.h; .damaged-1 to -8: kept for a look
//   models.roll   see model_roll.h
//   images/N.part an image being written; N.img: a published one; N.del: one
//                 that is being removed
//   quarantine/   images that were found damaged, kept for a look; N.lost: one
//                 of which it is not known what it is, and N.why
//
// Threads:  one at a time.
// Owns:     the lock and the directories' descriptors. It follows no links.
class SegmentDir {
 public:
  // Where files of one id are.
  struct Places {
    bool part = false;
    bool image = false;
    bool quarantined = false;
    bool removed = false;
  };
  struct LostFile {
    SpillId id;
    std::string name;  // Below quarantine/.
    uint64_t bytes = 0;
    std::string why;
  };

  // FailedPrecondition: another store has it.
  static absl::StatusOr<SegmentDir> Open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string catalogue_path() const { return path_ + "/catalogue.db"; }
  std::string roll_path() const { return path_ + "/models.roll"; }
  std::string ImagePath(SpillId id) const;

  absl::StatusOr<bool> HasCatalogue() const;
  // Puts catalogue.new in the catalogue's place, at once, and keeps what was
  // there. Returns the name that it has now, empty where it could not be kept.
  absl::StatusOr<std::string> ReplaceCatalogue();
  std::string new_catalogue_path() const { return path_ + "/catalogue.new"; }
  void DropNewCatalogue();

  // All images, wherever they are, but for lost ones.
  std::map<SpillId, Places> Files() const;
  std::vector<LostFile> Lost() const;

  // A new N.part with its space reserved. ResourceExhausted: the disk is full;
  // the message has the numbers.
  absl::StatusOr<SegmentFile> CreatePart(SpillId id, uint64_t bytes);
  void DropPart(SpillId id);
  // N.part becomes N.img, and is that after a power cut too.
  absl::Status Publish(SpillId id);
  // NotFound: there is none. DataLoss: it has another size than `bytes`.
  absl::StatusOr<SegmentFile> OpenImage(SpillId id, uint64_t bytes) const;
  // The whole header of N.img, for want of a row. OutOfRange: the file is
  // shorter than the shortest of headers. DataLoss: it is no segment file, not
  // whole, or damaged.
  absl::StatusOr<FoundSegment> ReadHeader(SpillId id, bool quarantined) const;
  // For what nobody has been told of, or cannot use. OK where there is none.
  absl::Status DropImage(SpillId id, bool quarantined);

  // Removal has two steps, so that no image comes back: N.img becomes N.del,
  // and is that after a power cut too; and once no row speaks of it, N.del is
  // deleted. Between them its space may be freed. OK where there is no N.img:
  // then N.del is empty.
  absl::Status BeginRemoval(SpillId id);
  void FreeRemoved(SpillId id);
  void EndRemoval(SpillId id);

  // N.img goes to quarantine/, if it is there at all.
  absl::Status Quarantine(SpillId id);
  // N.img goes to quarantine/N.lost from where it is.
  absl::Status PutAside(SpillId id, bool quarantined, const std::string& why);
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
