// Who may be in a range whose pieces change places: work on streams, or the one
// who changes them.
#ifndef HOIST_CLIENT_SRC_IN_PLACE_GATE_H_
#define HOIST_CLIENT_SRC_IN_PLACE_GATE_H_

#include <chrono>
#include <memory>

#include "client/src/stream_order.h"
#include "hoist/shared/lane_layout.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/status.h"

namespace hoist {

// Work says that it is inside and then waits until the gate is open; whoever
// closes it says so and then looks whether somebody is inside, and opens it
// again if so (Dekker's exclusion, in which the closer always gives way). A GPU
// keeps to it by itself: its stream's words are written and read in order, and
// what it read it read after what it wrote was there. So graphs hold the gate
// as they hold kernels, and while nobody closes it a pass costs four words.
//
// That the closer gets its turn though passes follow without a gap, work stops
// for a moment after it has left while somebody wants to close.
//
// Threads:  Enter and Leave in turns, of any thread; Close and Open of one.
// Owns:     the words. Borrows `order`.
class InPlaceGate {
 public:
  static Result<std::unique_ptr<InPlaceGate>> Create(StreamOrder* order);
  InPlaceGate(const InPlaceGate&) = delete;
  InPlaceGate& operator=(const InPlaceGate&) = delete;
  // Nothing is on any stream that waits, or could.
  ~InPlaceGate();

  // What is put on the stream from now on reads the range, until Leave.
  Status Enter(cuda::Stream stream);
  Status Leave(cuda::Stream stream);

  // True: nobody is inside, and who comes waits until Open. False: somebody
  // was, all the time; it is open.
  bool Close(std::chrono::milliseconds limit);
  void Open();

 private:
  struct Words {
    alignas(64) lane::Word inside{0};
    alignas(64) lane::Word open{1};
    alignas(64) lane::Word pass{1};  // Who has left may go on.
  };

  InPlaceGate(Mapping memory, StreamOrder* order);

  Mapping memory_;
  Words* const words_;
  StreamOrder* const order_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IN_PLACE_GATE_H_
