// A gate between passes: holds streams while their pieces are remapped.
#ifndef HOIST_CLIENT_SRC_IN_PLACE_PASS_BOUNDARY_H_
#define HOIST_CLIENT_SRC_IN_PLACE_PASS_BOUNDARY_H_

#include <atomic>
#include <chrono>
#include <memory>

#include "client/src/device/stream_order.h"
#include "hoist/shared/lane_layout.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/status.h"

namespace hoist {

// A stream sets `at` when it arrives, waits for `pass`, and clears `at` when it
// leaves. The holder closes the gate, and waits until it sees no stream, then
// one: that stream met a closed gate, and stays until Release. A stream that is
// there at the first look may be leaving, so it is let go. (By PCIe's ordering,
// a GPU's read of `pass` does not overtake its write of `at`.) So graphs
// capture the boundary like kernels, nothing moves unless a stream is parked,
// and a failed pass has nothing to undo.
//
// Threads:  Put from any, for one stream at a time; Hold and Release from one.
// Owns:     the words. Borrows `order`.
class PassBoundary {
 public:
  static Result<std::unique_ptr<PassBoundary>> Create(StreamOrder* order);
  PassBoundary(const PassBoundary&) = delete;
  PassBoundary& operator=(const PassBoundary&) = delete;
  // No stream may be there, or come later.
  ~PassBoundary();

  // Later work on the stream runs once it may pass.
  Status Put(cuda::Stream stream);

  // True: a stream is parked there until Release. False: none came in that
  // time, or `cancelled`; streams pass freely.
  bool Hold(std::chrono::milliseconds limit,
            const std::atomic<bool>& cancelled);
  void Release();

 private:
  struct Words {
    alignas(64) lane::Word at{0};  // A stream is there.
    alignas(64) lane::Word pass{1};
  };

  PassBoundary(Mapping memory, StreamOrder* order);

  Mapping memory_;
  Words* const words_;
  StreamOrder* const order_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IN_PLACE_PASS_BOUNDARY_H_
