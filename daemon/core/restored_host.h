// The last hoistd's images and parts on the host.
//
// Each lies at its old offset in the pool, which comes up from offset 0. An
// extent is placed once the pool has grown over all of it. A part is then
// usable. An image is verified first.
#ifndef HOIST_DAEMON_CORE_RESTORED_HOST_H_
#define HOIST_DAEMON_CORE_RESTORED_HOST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/effects.h"
#include "daemon/core/model_book.h"
#include "daemon/core/node_options.h"
#include "daemon/core/persisted.h"
#include "daemon/core/space.h"
#include "daemon/core/transfer_book.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Threads:  one at a time.
// Owns:     extents that the pool has not grown over, and the list of images
//           that no other tier has and that are not verified. Borrows the rest.
class RestoredHost {
 public:
  RestoredHost(const NodeOptions& options, CopyTable& copies, ModelBook& models,
               Space& space, TransferBook& transfers)
      : options_(options),
        copies_(copies),
        models_(models),
        space_(space),
        transfers_(transfers) {}
  RestoredHost(const RestoredHost&) = delete;
  RestoredHost& operator=(const RestoredHost&) = delete;

  // InvalidArgument: it is not in the pool, or overlaps another extent.
  absl::Status Check(uint64_t offset, uint64_t bytes) const;
  // An image that Check allows.
  void AddImage(GroupKey key, uint64_t offset);
  // Check's errors. AlreadyExists: the part lies elsewhere, too.
  absl::Status AddPart(uint64_t offset, const PersistedPart& part);

  // The pool is ready up to `ready_bytes`. Places extents and starts to verify
  // images. Returns the fillers of the placed parts; nullopt: the pool was that
  // large before.
  std::optional<std::vector<TransferId>> Grow(uint64_t ready_bytes,
                                              Effects& effects);
  // Whether the pool has not grown over the group's image yet.
  bool Awaits(GroupKey key, const Copy& copy) const;

  // The image was verified, or was wrong. True: no other tier had it.
  bool Checked(GroupKey key) { return unchecked_.erase(key) > 0; }
  // Bytes of images that no other tier has and that are not verified: of one
  // user's, in space on the host; of all, of the images.
  uint64_t UncheckedSpaceOf(User uid) const;
  uint64_t unchecked_bytes() const;

 private:
  struct Extent {
    uint64_t bytes = 0;
    std::optional<GroupKey> image;
    // Else a part:
    OwnerId owner;
    TransferId filler;  // Carried out by nobody.
  };

  const NodeOptions& options_;
  CopyTable& copies_;
  ModelBook& models_;
  Space& space_;
  TransferBook& transfers_;
  std::map<uint64_t, Extent> extents_;  // By offset.
  std::set<GroupKey> unchecked_;        // Of models that may be forgotten.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_RESTORED_HOST_H_
