// Records that core persists for hoistd's successor.
//
// Each is written in the event that creates or ends its subject: before the
// memory is given to a client, and before it is reused.
#ifndef HOIST_DAEMON_CORE_PERSISTED_H_
#define HOIST_DAEMON_CORE_PERSISTED_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/core/copy_table.h"
#include "daemon/core/requests.h"
#include "daemon/model/tensor.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"

namespace hoistd {

// A published image.
struct PersistedImage {
  ModelPtr model;
  GroupIndex group;
};

// [from, from + bytes) of a file's sheet, for these readers.
struct PersistedPart {
  FileIdentity file;
  std::optional<User> owner;  // nullopt: everyone.
  uint64_t from = 0;
  uint64_t bytes = 0;
};

// Complete bytes at this place on the host; or nothing lies there any more.
struct PersistedOnHost {
  uint64_t host_offset = 0;
  std::variant<std::monostate, PersistedImage, PersistedPart> what;
};

// A published model under its id, with the places of its missing groups; models
// of files are recorded where files are opened. Or the end of either kind.
struct PersistedModel {
  ModelId id;
  ModelPtr model;  // nullptr: forgotten.
};

// A slab and the readers of its contents (nullopt: everyone); if it is
// writable, the user who may lease it.
struct PersistedSlab {
  DeviceIndex device;
  SlabSpec slab;
  std::optional<User> reader;
  int keep_fd = -1;  // As in SlabShare. -1: to be destroyed.
};

// A group's complete image on a device; or its end.
struct PersistedCopy {
  DeviceIndex device;
  uint64_t offset = 0;
  std::optional<GroupKey> key;
  std::string group;     // Its name.
  bool damaged = false;  // Wrong bytes; its leases stay valid.
};

// A session that can resume; or its end.
struct PersistedSession {
  SessionId id;
  std::optional<OpenSessionArgs> args;
};

struct PersistedLease {
  LeaseId id;
  SessionId session;
  std::optional<CopyRef> copy;  // nullopt: released.
};

// An admin's pin of a copy; or its end. A forgotten model's pins end without a
// record.
struct PersistedPin {
  CopyRef copy;
  bool pinned = true;
};

// The plan has ended; its ring is free, or used only by this hoistd's copies in
// flight. Recorded before the end of its session.
struct PersistedPlanEnd {
  PlanId id;
};

// A granted arena, by the offsets of its slabs.
struct PersistedArena {
  ArenaId id;
  SessionId session;
  DeviceIndex device;
  std::vector<uint64_t> offsets;  // Empty: it has ended.
};

using Persisted = std::variant<PersistedOnHost, PersistedModel, PersistedSlab,
                               PersistedCopy, PersistedSession, PersistedLease,
                               PersistedPin, PersistedPlanEnd, PersistedArena>;

// Records not taken yet, in order. Threads: one at a time.
class PersistedLog {
 public:
  // `keeps`: TakePersisted has a caller.
  explicit PersistedLog(bool keeps) : keeps_(keeps) {}

  void Add(Persisted record) {
    if (keeps_) persisted_.push_back(std::move(record));
  }
  std::vector<Persisted> Take() { return std::exchange(persisted_, {}); }

 private:
  const bool keeps_;
  std::vector<Persisted> persisted_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_PERSISTED_H_
