// What hoistd's successor must know, as the core tells it.
//
// Each is told in the event in which it comes to be or ends: before what is
// there is given to somebody, and before its memory is anybody else's.
#ifndef HOIST_DAEMON_CORE_KEPT_H_
#define HOIST_DAEMON_CORE_KEPT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "daemon/core/copy_table.h"
#include "daemon/core/requests.h"
#include "daemon/model/tensor.h"
#include "daemon/terms/device.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// A published image.
struct KeptImage {
  ModelPtr model;
  GroupIndex group;
};

// [from, from + bytes) of the sheet of a file, among those who may read it.
struct KeptPart {
  FileIdentity file;
  std::optional<User> owner;  // nullopt: everyone may.
  uint64_t from = 0;
  uint64_t bytes = 0;
};

// What lies there on the host, and is whole; or that nothing does any more.
struct KeptOnHost {
  uint64_t host_offset = 0;
  std::variant<std::monostate, KeptImage, KeptPart> what;
};

// A published model, under its id; one of files is told by who opens them. Or
// whichever it was, it is forgotten.
struct KeptModel {
  ModelId id;
  ModelPtr model;  // nullptr: it is gone.
};

// A slab, and who may read what lies in it (nullopt: everyone), or lease it, if
// it is writable.
struct KeptSlab {
  DeviceIndex device;
  SlabSpec slab;
  std::optional<User> reader;
  int keep_fd = -1;  // As in SlabShare. -1: it is to be destroyed.
};

// A group's image on a device, whole; or that none lies there any more.
struct KeptCopy {
  DeviceIndex device;
  uint64_t offset = 0;
  std::optional<GroupKey> key;
  std::string group;     // Its name.
  bool damaged = false;  // Its bytes are wrong; leases on it go on.
};

// A session that can go on; or that it is over.
struct KeptSession {
  SessionId id;
  std::optional<OpenSessionArgs> args;
};

struct KeptLease {
  LeaseId id;
  SessionId session;
  std::optional<CopyRef> copy;  // nullopt: it is released.
};

// That an admin has pinned the copy; or that it is pinned no more. Of a model
// that is forgotten nothing is, without a word.
struct KeptPin {
  CopyRef copy;
  bool pinned = true;
};

// A plan whose ring is nobody's any more, or nobody's but this hoistd's: its
// session is over, and is told of after it.
struct KeptPlanGone {
  PlanId id;
};

// An arena that was granted, by the offsets of its slabs.
struct KeptArena {
  ArenaId id;
  SessionId session;
  DeviceIndex device;
  std::vector<uint64_t> offsets;  // None: it is no more.
};

using Kept =
    std::variant<KeptOnHost, KeptModel, KeptSlab, KeptCopy, KeptSession,
                 KeptLease, KeptPin, KeptPlanGone, KeptArena>;

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_KEPT_H_
