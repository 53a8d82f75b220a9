// Bytes that a device's slabs may take, and take.
#ifndef HOIST_DAEMON_CORE_POOL_BOUNDS_H_
#define HOIST_DAEMON_CORE_POOL_BOUNDS_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"

namespace hoistd {

// What a pool may take.
struct PoolSize {
  uint64_t bytes = 0;
  uint64_t headroom = 0;  // Of a device: left free beside the pool.
  uint64_t spared = 0;    // Of a device: left to sessions that lack memory.
};

// Threads: one at a time.
class PoolBounds {
 public:
  explicit PoolBounds(uint64_t most)
      : most_(most), capacity_(most), usable_(most) {}

  // The first capacity, which later ones do not exceed.
  uint64_t most() const { return most_; }
  uint64_t capacity() const { return capacity_; }
  // Others have so much of the first capacity, or the headroom does.
  uint64_t withheld() const { return most_ - capacity_; }
  uint64_t headroom() const { return headroom_; }
  uint64_t spared() const { return spared_; }  // Of what is withheld.
  uint64_t taken() const { return taken_; }
  // To be taken. 0 after Refuse, until Retry or SetCapacity.
  uint64_t left() const { return usable_ - std::min(usable_, taken_); }
  // Taken beyond the capacity, since it fell.
  uint64_t over() const { return taken_ - std::min(taken_, capacity_); }
  // Why the device had no memory for more. OK: it was not short.
  const absl::Status& refused() const { return refused_; }

  void Take(uint64_t bytes) { taken_ += bytes; }
  void Return(uint64_t bytes) { taken_ -= bytes; }
  // Rounds down to whole `granularity`.
  void SetCapacity(PoolSize size, uint64_t granularity) {
    const uint64_t bytes = std::min(size.bytes, most_);
    capacity_ = bytes - bytes % granularity;
    headroom_ = size.headroom;
    spared_ = std::min(size.spared, withheld());
    Retry();
  }
  void Refuse(absl::Status why) {
    refused_ = std::move(why);
    usable_ = std::min(usable_, taken_);
  }
  void Retry() {
    refused_ = absl::OkStatus();
    usable_ = capacity_;
  }

 private:
  const uint64_t most_;
  uint64_t capacity_;
  uint64_t headroom_ = 0;
  uint64_t spared_ = 0;
  uint64_t usable_;  // The part of it that the device seems to have.
  uint64_t taken_ = 0;
  absl::Status refused_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_POOL_BOUNDS_H_
