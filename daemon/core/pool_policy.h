// How much of a device hoist may take beside other programs.
#ifndef HOIST_DAEMON_CORE_POOL_POLICY_H_
#define HOIST_DAEMON_CORE_POOL_POLICY_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace hoistd {

// The capacity follows `total - others - headroom`, and is at most the pool.
// It falls at the second look that sees too little memory: a slab that is being
// made or freed may disturb one. It rises to the least of the last kCalm, since
// a program that allocates and frees by turns must not move the pool each time.
// Changes below StepOf are left out, except to the whole pool.
//
// Threads: one at a time.
class PoolPolicy {
 public:
  static constexpr absl::Duration kCalm = absl::Seconds(5);

  static uint64_t StepOf(uint64_t headroom) { return headroom / 4; }

  explicit PoolPolicy(uint64_t pool_bytes)
      : pool_(pool_bytes), capacity_(pool_bytes) {}

  // A look at the device: its memory, the part of it that other programs take,
  // and the part to be left free. The new capacity; nullopt: as before.
  std::optional<uint64_t> Look(uint64_t total, uint64_t others,
                               uint64_t headroom, absl::Time now);
  uint64_t capacity() const { return capacity_; }
  bool is_whole() const { return capacity_ == pool_; }

 private:
  std::optional<uint64_t> Become(uint64_t capacity);

  const uint64_t pool_;
  uint64_t capacity_;
  uint64_t last_ = UINT64_MAX;                      // The last look's room.
  absl::Time calm_since_ = absl::InfiniteFuture();  // More room since.
  uint64_t least_ = 0;                              // Room since then.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_POOL_POLICY_H_
