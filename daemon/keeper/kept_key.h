// What is kept is known by: what it is, and which of these.
#ifndef HOIST_DAEMON_KEEPER_KEPT_KEY_H_
#define HOIST_DAEMON_KEEPER_KEPT_KEY_H_

#include <compare>
#include <cstdint>

namespace hoistd {

// `kind` is below 2^31; what kinds there are say those who keep things.
struct KeptKey {
  uint32_t kind = 0;
  uint64_t id = 0;

  auto operator<=>(const KeptKey&) const = default;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_KEEPER_KEPT_KEY_H_
