// Where one copy of an image stands, as a pure state machine.
//
// Each (group, tier) has one Residency and changes it through NextState alone.
// There is no state in which a copy is moved "down": lower tiers are filled
// from it while it stays present, so a demotion that fails loses nothing.
#ifndef HOIST_DAEMON_CORE_RESIDENCY_H_
#define HOIST_DAEMON_CORE_RESIDENCY_H_

#include <optional>

namespace hoistd {

enum class Residency {
  kAbsent,    // No bytes, no space.
  kFilling,   // Space is held; bytes are on their way or awaited.
  kPresent,   // The bytes are there and right.
  kSpilling,  // Present, and being written to the tier below.
  kLost,      // Of a group, not of a copy: no tier has its bytes any more.
};
inline constexpr int kResidencyCount = 5;

enum class ResidencyEvent {
  kReserve,     // Space was found.
  kFillDone,    // The bytes arrived.
  kFillFailed,  // They did not; the space is given back.
  kSpillStart,  // The tier below is being filled from this copy.
  kSpillDone,   // It was, or it failed: either way this copy stays.
  kDrop,        // The space is given back; another tier has the bytes.
  kForget,      // Its model is removed.
};
inline constexpr int kResidencyEventCount = 7;

// Returns nullopt where `event` is illegal in `from`. Pure.
std::optional<Residency> NextState(Residency from, ResidencyEvent event);

const char* ToString(Residency residency);
const char* ToString(ResidencyEvent event);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_RESIDENCY_H_
