// The values that the store takes and reports.
#ifndef HOIST_DAEMON_STORE_SPILL_TYPES_H_
#define HOIST_DAEMON_STORE_SPILL_TYPES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/model/tensor.h"
#include "daemon/types/ids.h"

namespace hoistd {

struct SpillOptions {
  std::string dir;              // Made if missing, with its parents.
  uint64_t capacity_bytes = 0;  // Of segment files, quarantined ones included.
  int hash_threads = 2;
};

// Everything needed to serve the group again after a restart or a reboot.
struct SpillMeta {
  std::string model;
  User owner;
  Readers readers = Readers::kOwner;
  Content group_content = {};
  GroupIndex group_index;
  Group group;  // Published: its `runs` are empty.
};

struct SpillRecord {
  SpillId id;
  std::shared_ptr<const SpillMeta> meta;  // Shared with the store.
  uint64_t file_bytes = 0;
  // Why it can no longer be read; empty: no damage is known.
  std::string quarantined;
};

struct SpillUsage {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;         // Includes images being written.
  uint64_t quarantined_bytes = 0;  // Part of `used_bytes`.
  uint64_t lost_bytes = 0;  // Part of `used_bytes`; of no image in the list.
  uint64_t images = 0;      // That can be read.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_SPILL_TYPES_H_
