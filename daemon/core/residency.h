// The state of one copy of an image, as a pure state machine.
//
// Each (group, tier) has one Residency, changed through NextState only. No
// state moves a copy "down": a lower tier is filled from a copy that stays
// present, so a failed demotion loses nothing.
#ifndef HOIST_DAEMON_CORE_RESIDENCY_H_
#define HOIST_DAEMON_CORE_RESIDENCY_H_

#include <optional>

namespace hoistd {

enum class Residency {
  kAbsent,    // No bytes, no space.
  kReserved,  // Has space; the tier below does not have the bytes yet.
  kFilling,   // A transfer brings the bytes.
  kArrived,   // The bytes are there and right, and were not used yet.
  kPresent,   // They are there and right.
  kSpilling,  // Present, and being written to the tier below.
  kLeaving,   // The same, and to be dropped afterwards.
  kLost,      // Of a group, not a copy: no tier has the bytes.
};
inline constexpr int kResidencyCount = 8;

enum class ResidencyEvent {
  kReserve,     // Space was allocated.
  kAdopt,       // Space that has the bytes already.
  kFillStart,   // A transfer was started, or another takes over.
  kFillDone,    // The bytes arrived.
  kFillFailed,  // The bytes did not come; frees the space.
  kUse,         // Read, leased or held.
  kSpillStart,  // The tier below is filled from this copy.
  kLeave,       // To be dropped once it is spilled.
  kSpillDone,   // Done or failed: either way this copy stays.
  kDrop,        // Frees the space; another tier has the bytes.
  kForget,      // Its model is removed.
};
inline constexpr int kResidencyEventCount = 11;

// Returns nullopt where `event` is illegal in `from`. Pure.
std::optional<Residency> NextState(Residency from, ResidencyEvent event);

const char* ToString(Residency residency);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_RESIDENCY_H_
