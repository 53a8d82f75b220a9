// Keys of the records for hoistd's successor. In another version the numbers
// have other meanings.
#ifndef HOIST_DAEMON_SUCCESSOR_PERSISTED_KEYS_H_
#define HOIST_DAEMON_SUCCESSOR_PERSISTED_KEYS_H_

#include <cstdint>

#include "daemon/keeper/persisted_key.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"

namespace hoistd {

enum class PersistedKind : uint32_t {
  kHostPool = 1,   // A descriptor: the pool's memory.
  kHostImage = 2,  // A record by offset / 4096: EncodeDescription.
  kHostPart = 3,   // A record by offset / 4096, of bytes of a file.
  kInstance =
      4,       // A record: PersistedInstance. Here and below: persisted.proto.
  kModel = 5,  // A record by id.
  kModelFile = 6,    // A descriptor, by a number in the model's record.
  kSlab = 7,         // A record and a descriptor: SlabKey.
  kDeviceCopy = 8,   // A record: CopyKey.
  kSession = 9,      // A record and a descriptor, its socket, by id.
  kLease = 10,       // A record by id.
  kPlan = 11,        // A record by id.
  kLaneMemory = 12,  // Descriptors by plan id, if it streams.
  kLaneWake = 13,
  kPin = 14,      // A record by a number of its own.
  kLoadCap = 15,  // A record by device.
  // As kSlab, for worker-writable slabs: a hoistd that does not know arenas
  // would put weights there.
  kArenaSlab = 16,
  kArena = 17,  // A record by id.
};

constexpr PersistedKey KeyOf(PersistedKind kind, uint64_t id = 0) {
  return {static_cast<uint32_t>(kind), id};
}
inline constexpr PersistedKey kHostPoolKey = KeyOf(PersistedKind::kHostPool);
inline constexpr PersistedKey kInstanceKey = KeyOf(PersistedKind::kInstance);

// There are few devices; slabs and offsets are below 2^56.
inline constexpr int kDeviceShift = 56;
constexpr PersistedKey SlabKey(DeviceIndex device, const SlabSpec& slab) {
  return KeyOf(slab.writable ? PersistedKind::kArenaSlab : PersistedKind::kSlab,
               uint64_t{device.number()} << kDeviceShift | slab.id.number());
}
constexpr PersistedKey CopyKey(DeviceIndex device, uint64_t offset) {
  return KeyOf(PersistedKind::kDeviceCopy,
               uint64_t{device.number()} << kDeviceShift | offset);
}

// Whether NodeRestore restores it, with all others or not at all.
constexpr bool IsOfNode(PersistedKey key) {
  return key.kind >= static_cast<uint32_t>(PersistedKind::kModel);
}

}  // namespace hoistd

#endif  // HOIST_DAEMON_SUCCESSOR_PERSISTED_KEYS_H_
