// Copiers, for C++: a header of its own, which hoist.h does not include.
#ifndef HOIST_HOIST_COPIER_H_
#define HOIST_HOIST_COPIER_H_

#include <cstdint>

#include "hoist/hoist.h"

namespace hoist {
inline namespace v0 {

// Of Copier::Open.
struct CopierOptions {
  uint32_t device = 0;
  // How the device's link is shared with plans and other copiers.
  uint32_t weight = 1;                // 1 to 1,000.
  int32_t priority = 0;               // -10 to 10; higher goes first.
  uint64_t max_bytes_per_second = 0;  // 0: no cap.
};

// Copies between host and device that this process makes itself, in turns of
// the device's link that hoistd grants; see hoist_c.h. A stream is a CUstream
// or cudaStream_t (nullptr: the default stream); emulated devices ignore it.
// Move-only; dropping it lets through what waits, and waits for the GPU then.
//
//   hoist::Result<hoist::Copier> copier = hoist::Copier::Open(session);
//   if (!copier.ok()) return copier.status();
//   return copier->ToDevice(device, host, bytes, stream);
class Copier {
 public:
  // The most that is begun at once.
  static constexpr uint64_t kPieceBytes = HOIST_COPIER_PIECE_BYTES;

  explicit Copier(hoist_copier* handle) : handle_(handle) {}  // Owns it.

  // ResourceExhausted: there are too many. Unimplemented: this hoistd grants
  // nothing.
  static Result<Copier> Open(const Session& session,
                             const CopierOptions& options = {}) {
    auto given = internal::Sized<hoist_copier_options>();
    given.device = options.device;
    given.weight = options.weight;
    given.priority = options.priority;
    given.max_bytes_per_second = options.max_bytes_per_second;
    hoist_copier* copier = nullptr;
    Status opened = internal::Run([&](hoist_error** error) {
      return hoist_copier_open(session.get(), &given, &copier, error);
    });
    if (!opened.ok()) return opened;
    return Copier(copier);
  }

  // In pieces, each of which waits for its grant on the stream.
  Status ToDevice(void* to, const void* from, uint64_t bytes,
                  hoist_stream stream = nullptr) {
    return internal::Run([&](hoist_error** error) {
      return hoist_copier_to_device(handle_.get(), to, from, bytes, stream,
                                    error);
    });
  }
  // Waits for no grant; is counted.
  Status ToHost(void* to, const void* from, uint64_t bytes,
                hoist_stream stream = nullptr) {
    return internal::Run([&](hoist_error** error) {
      return hoist_copier_to_host(handle_.get(), to, from, bytes, stream,
                                  error);
    });
  }

  // Around copies to the device that others make, of kPieceBytes at most.
  Status Begin(uint64_t bytes, hoist_stream stream = nullptr) {
    return internal::Run([&](hoist_error** error) {
      return hoist_copier_begin(handle_.get(), bytes, stream, error);
    });
  }
  Status End(uint64_t bytes, hoist_stream stream = nullptr) {
    return internal::Run([&](hoist_error** error) {
      return hoist_copier_end(handle_.get(), bytes, stream, error);
    });
  }
  // Counts what others copy from the device.
  Status AddToHost(uint64_t bytes) {
    return internal::Run([&](hoist_error** error) {
      return hoist_copier_add_to_host(handle_.get(), bytes, error);
    });
  }

  hoist_copier_stats stats() const {
    auto stats = internal::Sized<hoist_copier_stats>();
    hoist_copier_get_stats(handle_.get(), &stats, nullptr);
    return stats;
  }
  hoist_copier* get() const { return handle_.get(); }  // For the C API.

 private:
  internal::Owned<hoist_copier> handle_;
};

}  // namespace v0
}  // namespace hoist

#endif  // HOIST_HOIST_COPIER_H_
