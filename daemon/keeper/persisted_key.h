// What is kept is known by: what it is, and which of these.
#ifndef HOIST_DAEMON_KEEPER_PERSISTED_KEY_H_
#define HOIST_DAEMON_KEEPER_PERSISTED_KEY_H_

#include <compare>
#include <cstdint>

namespace hoistd {

// `kind` is below 2^31; what kinds there are say those who keep things.
struct PersistedKey {
  uint32_t kind = 0;
  uint64_t id = 0;

  auto operator<=>(const PersistedKey&) const = default;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_KEEPER_PERSISTED_KEY_H_
