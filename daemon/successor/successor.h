// Takes over what the last hoistd left: models, slabs and their contents,
// sessions, leases and plans.
#ifndef HOIST_DAEMON_SUCCESSOR_SUCCESSOR_H_
#define HOIST_DAEMON_SUCCESSOR_SUCCESSOR_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/convert/persisted_convert.h"
#include "daemon/core/node.h"
#include "daemon/io/open_files.h"
#include "daemon/io/source_file.h"
#include "daemon/keeper/persisted_key.h"
#include "daemon/mover/mover.h"
#include "daemon/mover/slab_maker.h"
#include "daemon/store/spill_store.h"
#include "daemon/stream/streamer.h"
#include "daemon/successor/book.h"
#include "daemon/successor/persisted_host.h"
#include "daemon/successor/persisted_node.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// All records of the last hoistd. Empty: there was none, or nothing was kept.
struct Left {
  FoundOnHost host;  // In the host pool.
  FoundNode node;    // On devices.
  std::map<PersistedKey, std::string> records;
};

// Malformed records of the host are omitted and reported in `notes`; malformed
// records of devices are reported in node.status.
Left ReadLeft(std::map<PersistedKey, std::string> records,
              std::map<PersistedKey, hoist::UniqueFd> descriptors,
              std::vector<std::string>& notes);

struct SuccessorParts {
  NodeOptions node;
  std::vector<DeviceInfo> devices;
  std::array<uint8_t, 16> new_instance = {};  // Used if there is nothing to
                                              // take over.
  SourceFileOptions files;
  absl::Time now;
  SpillStore* store = nullptr;  // nullptr: none.
  OpenFiles& open_files;
  std::span<const std::unique_ptr<SlabMaker>> slab_makers;  // One per device.
  bool keeps = false;  // False: nothing was kept.
  AddNote note;
};

// State to resume outside the node.
struct Inheritance {
  PersistedInstance instance;
  std::map<ModelId, std::shared_ptr<const SourceFiles>> files;
  std::vector<ResumedSession> sessions;
  std::vector<std::pair<PlanRecord, LaneShare>> plans;  // With streams.
  std::map<uint64_t, CopyRef> pins;                     // By record number.
  std::map<DeviceIndex, LoadCap> load_caps;
};

// This generation's ids are all above: no id is given twice among resumed
// clients.
uint64_t IdsBefore(uint64_t generation);

// Restores published groups into the new `node`, and all of the devices'
// contents or none: it tries them on a discarded node first. If they conflict,
// sessions end, with the reason.
Inheritance TakeOver(Left left, SuccessorParts parts, Book& book, Node& node);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SUCCESSOR_SUCCESSOR_H_
