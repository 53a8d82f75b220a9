// Copy permits, for C++: a header of its own, which hoist.h does not include.
#ifndef HOIST_HOIST_COPY_PERMIT_H_
#define HOIST_HOIST_COPY_PERMIT_H_

#include <cstdint>

#include "hoist/hoist.h"

namespace hoist {
inline namespace v0 {

// Of CopyPermit::Open.
struct PermitOptions {
  uint32_t device = 0;
  // Share of the device's link, beside plans and other permits.
  uint32_t weight = 1;                // 1 to 1,000.
  int32_t priority = 0;               // -10 to 10; higher goes first.
  uint64_t max_bytes_per_second = 0;  // 0: no cap.
};

// This process's own copies between host and device, in turns on the device's
// link that hoistd grants; see hoist_c.h. A stream is a CUstream or
// cudaStream_t (nullptr: the default stream); emulated devices ignore it.
// Move-only; the destructor releases ungranted copies and waits for the GPU.
//
//   hoist::Result<hoist::CopyPermit> permit = hoist::CopyPermit::Open(session);
//   if (!permit.ok()) return permit.status();
//   return permit->ToDevice(device, host, bytes, stream);
class CopyPermit : internal::Handle<hoist_copy_permit, hoist_copy_permit_free> {
 public:
  // The maximum of one Begin.
  static constexpr uint64_t kPieceBytes = HOIST_COPY_PERMIT_PIECE_BYTES;

  explicit CopyPermit(hoist_copy_permit* handle)
      : Handle(handle) {}  // Owns it.

  // ResourceExhausted: too many permits. Unimplemented: this hoistd grants
  // nothing.
  static Result<CopyPermit> Open(const Session& session,
                                 const PermitOptions& options = {}) {
    auto given = internal::Sized<hoist_copy_permit_options>();
    given.device = options.device;
    given.weight = options.weight;
    given.priority = options.priority;
    given.max_bytes_per_second = options.max_bytes_per_second;
    return internal::Take<CopyPermit, hoist_copy_permit*>(
        hoist_copy_permit_open, session.get(), &given);
  }

  // Copies in pieces; each waits for its grant on the stream.
  Status ToDevice(void* to, const void* from, uint64_t bytes,
                  hoist_stream stream = nullptr) {
    return Call(hoist_copy_permit_to_device, to, from, bytes, stream);
  }
  // Needs no grant; is counted.
  Status ToHost(void* to, const void* from, uint64_t bytes,
                hoist_stream stream = nullptr) {
    return Call(hoist_copy_permit_to_host, to, from, bytes, stream);
  }

  // Around copies to the device by other code, of kPieceBytes at most.
  Status Begin(uint64_t bytes, hoist_stream stream = nullptr) {
    return Call(hoist_copy_permit_begin, bytes, stream);
  }
  Status End(uint64_t bytes, hoist_stream stream = nullptr) {
    return Call(hoist_copy_permit_end, bytes, stream);
  }
  // Counts bytes that other code copies from the device.
  Status AddToHost(uint64_t bytes) {
    return Call(hoist_copy_permit_add_to_host, bytes);
  }

  hoist_copy_permit_stats stats() const {
    return Filled<hoist_copy_permit_stats>(hoist_copy_permit_get_stats);
  }
  hoist_copy_permit* get() const { return handle_.get(); }  // For the C API.
};

}  // namespace v0
}  // namespace hoist

#endif  // HOIST_HOIST_COPY_PERMIT_H_
