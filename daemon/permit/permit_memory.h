// A permit's shared page.
#ifndef HOIST_DAEMON_PERMIT_PERMIT_MEMORY_H_
#define HOIST_DAEMON_PERMIT_PERMIT_MEMORY_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/permit_layout.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// The descriptors that a client needs to use a permit.
struct PermitShare {
  hoist::UniqueFd memory;  // A memfd of permit::kBytes, sealed in size.
  hoist::UniqueFd wake;    // An eventfd; see permit_layout.h.
};

// The client may write all of it at any time, so nothing here is trusted. No
// stream of ours writes its words, so it needs no device.
//
// Threads:  thread-safe.
// Owns:     the mapping and the eventfd.
class PermitMemory {
 public:
  struct Made;
  // `sleepers`: CPUs wait for words, with FUTEX_WAIT. ResourceExhausted: no
  // memory or descriptors.
  static absl::StatusOr<Made> Create(bool sleepers);

  int wake_fd() const { return wake_.get(); }
  hoist::permit::Page& page() const {
    return *reinterpret_cast<hoist::permit::Page*>(mapping_.data());
  }
  // Stores bytes, cut to 32 bits; wakes sleepers on the word.
  void StoreGranted(uint32_t value) const;

 private:
  PermitMemory(hoist::Mapping mapping, hoist::UniqueFd wake, bool sleepers)
      : mapping_(std::move(mapping)),
        wake_(std::move(wake)),
        sleepers_(sleepers) {}

  hoist::Mapping mapping_;
  hoist::UniqueFd wake_;
  bool sleepers_ = false;
};

struct PermitMemory::Made {
  PermitMemory memory;
  PermitShare share;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_PERMIT_PERMIT_MEMORY_H_
