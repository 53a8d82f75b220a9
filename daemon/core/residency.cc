#include "daemon/core/residency.h"

namespace hoistd {

std::optional<Residency> NextState(Residency from, ResidencyEvent event) {
  using S = Residency;
  using E = ResidencyEvent;
  switch (from) {  // No default: a new state must fail to compile here.
    case S::kAbsent:
      if (event == E::kReserve) return S::kFilling;
      if (event == E::kForget) return S::kAbsent;
      return std::nullopt;
    case S::kFilling:
      if (event == E::kFillDone) return S::kPresent;
      if (event == E::kFillFailed) return S::kAbsent;
      return std::nullopt;
    case S::kPresent:
      if (event == E::kSpillStart) return S::kSpilling;
      if (event == E::kDrop) return S::kAbsent;
      if (event == E::kForget) return S::kAbsent;
      return std::nullopt;
    case S::kSpilling:
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
    case Residency::kFilling:
      return "filling";
    case Residency::kPresent:
      return "present";
    case Residency::kSpilling:
      return "spilling";
    case Residency::kLost:
      return "lost";
  }
  return "?";
}

const char* ToString(ResidencyEvent event) {
  switch (event) {
    case ResidencyEvent::kReserve:
      return "reserve";
    case ResidencyEvent::kFillDone:
      return "fill-done";
    case ResidencyEvent::kFillFailed:
      return "fill-failed";
    case ResidencyEvent::kSpillStart:
      return "spill-start";
    case ResidencyEvent::kSpillDone:
      return "spill-done";
    case ResidencyEvent::kDrop:
      return "drop";
    case ResidencyEvent::kForget:
      return "forget";
  }
  return "?";
}

}  // namespace hoistd
