// Under which keys hoistd's successor finds what. Numbers of another version
// mean something else.
#ifndef HOIST_DAEMON_ENGINE_KEPT_KEYS_H_
#define HOIST_DAEMON_ENGINE_KEPT_KEYS_H_

#include <cstdint>

#include "daemon/keeper/kept_key.h"
#include "daemon/terms/device.h"
#include "daemon/terms/ids.h"

namespace hoistd {

enum class KeptKind : uint32_t {
  kHostPool = 1,     // A descriptor: the pool's memory.
  kHostImage = 2,    // A record by offset / 4096: EncodeDescription.
  kHostPart = 3,     // A record by offset / 4096, of bytes of a file.
  kInstance = 4,     // A record: KeptInstance. Here and below: kept.proto.
  kModel = 5,        // A record by id.
  kModelFile = 6,    // A descriptor, by a number that the model's record names.
  kSlab = 7,         // A record and a descriptor: SlabKey.
  kDeviceCopy = 8,   // A record: CopyKey.
  kSession = 9,      // A record and a descriptor, its socket, by id.
  kLease = 10,       // A record by id.
  kPlan = 11,        // A record by id.
  kLaneMemory = 12,  // Descriptors by the plan's id, if it streams anything.
  kLaneWake = 13,
  kPin = 14,      // A record by a number of its own.
  kLoadCap = 15,  // A record by the device.
  // As kSlab, of those that workers write to: a hoistd that knows of no arenas
  // would put weights there.
  kArenaSlab = 16,
  kArena = 17,  // A record by id.
};

constexpr KeptKey KeyOf(KeptKind kind, uint64_t id = 0) {
  return {static_cast<uint32_t>(kind), id};
}
inline constexpr KeptKey kHostPoolKey = KeyOf(KeptKind::kHostPool);
inline constexpr KeptKey kInstanceKey = KeyOf(KeptKind::kInstance);

// Devices are few, and slabs and offsets below 2^56.
inline constexpr int kDeviceShift = 56;
constexpr KeptKey SlabKey(DeviceIndex device, const SlabSpec& slab) {
  return KeyOf(slab.writable ? KeptKind::kArenaSlab : KeptKind::kSlab,
               uint64_t{device.number()} << kDeviceShift | slab.id.number());
}
constexpr KeptKey CopyKey(DeviceIndex device, uint64_t offset) {
  return KeyOf(KeptKind::kDeviceCopy,
               uint64_t{device.number()} << kDeviceShift | offset);
}

// Whether it is what NodeRestore puts back, all of it or nothing.
constexpr bool IsOfNode(KeptKey key) {
  return key.kind >= static_cast<uint32_t>(KeptKind::kModel);
}

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_KEPT_KEYS_H_
