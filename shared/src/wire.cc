#include "hoist/shared/wire.h"

namespace hoist {
namespace {

// How many versions before its own a hoistd knows.
constexpr uint32_t kGoOn = 1;
constexpr uint32_t kServed = 2;

}  // namespace

Service ServiceFor(uint32_t version) {
  if (version == 0 || version > kProtocolVersion) return Service::kNone;
  const uint32_t age = kProtocolVersion - version;
  if (age <= kGoOn) return Service::kGoesOn;
  return age <= kServed ? Service::kServed : Service::kNone;
}

std::string ServedVersions() {
  const uint32_t oldest =
      kProtocolVersion > kServed ? kProtocolVersion - kServed : 1;
  std::string own = std::to_string(kProtocolVersion);
  if (oldest == kProtocolVersion)
    return "speaks " + own + ", and serves " + own;
  return "speaks " + own + ", and serves " + std::to_string(oldest) + " to " +
         own;
}

}  // namespace hoist
