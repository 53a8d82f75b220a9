#include "daemon/core/residency.h"

namespace hoistd {

std::optional<Residency> NextState(Residency from, ResidencyEvent event) {
  using S = Residency;
  using E = ResidencyEvent;
  switch (from) {  // No default: a new state must fail to compile here.
    case S::kAbsent:
      if (event == E::kReserve) return S::kReserved;
      if (event == E::kAdopt) return S::kPresent;
      if (event == E::kForget) return S::kAbsent;
      return std::nullopt;
    case S::kReserved:
    case S::kFilling:
      if (event == E::kFillStart) return S::kFilling;
      if (event == E::kFillDone) return S::kArrived;
      if (event == E::kFillFailed) return S::kAbsent;
      return std::nullopt;
    case S::kArrived:
    case S::kPresent:
      if (event == E::kUse) return S::kPresent;
      if (event == E::kSpillStart) return S::kSpilling;
      if (event == E::kDrop) return S::kAbsent;
      if (event == E::kForget) return S::kAbsent;
      return std::nullopt;
    case S::kSpilling:
    case S::kLeaving:
      if (event == E::kUse) return from;
      if (event == E::kLeave) return S::kLeaving;
      if (event == E::kSpillDone) return S::kPresent;
      return std::nullopt;
    case S::kLost:
      return std::nullopt;
  }
  return std::nullopt;
}

const char* ToString(Residency residency) {
  switch (residency) {
    case Residency::kAbsent:
      return "absent";
    case Residency::kReserved:
      return "reserved";
    case Residency::kFilling:
      return "filling";
    case Residency::kArrived:
      return "arrived";
    case Residency::kPresent:
      return "present";
    case Residency::kSpilling:
      return "spilling";
    case Residency::kLeaving:
      return "leaving";
    case Residency::kLost:
      return "lost";
  }
  return "?";
}

}  // namespace hoistd
