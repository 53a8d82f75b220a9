// Gates, and the fields of hoist.nn's objects that they read and write.
#ifndef HOIST_CLIENT_PYTHON_FAST_GATE_TYPES_H_
#define HOIST_CLIENT_PYTHON_FAST_GATE_TYPES_H_

#include "fast.h"

namespace hoist::fast {

// What a gate keeps of its group, and of the group's weights at one address.
enum Kept {
  kPlan,
  kCalls,         // The plan's.
  kNumber,        // In the plan's model.
  kPart,          // Its device.
  kStagedGroups,  // The part's.
  kIndex,         // Of the part's CUDA device, or None.
  kTold,          // IdleGroup.told
  kPointers,      // IdleGroup.pointers
  kOff,           // The swaps to idle weights.
  kOn,            // Those to staged ones.
  kShown,         // The same as hoist.nn knows it.
  kLent,          // Its weights, see hoist/nn/_tensors/lent.py:
  kValues,
  kStorages,
  kStaged,  // The group's state whenever it was entered here.
  kKept
};

// Gate(address, bytes, *kept)
//
// Threads: one at a time; the attachment's lock.
struct Gate {
  PyObject_HEAD PyObject* kept[kKept];
  uintptr_t address;
  size_t bytes;
  bool entered;  // By `enter`, and not left since.
};

inline Gate* AsGate(PyObject* gate) { return reinterpret_cast<Gate*>(gate); }

// The fields of a turns.Turns.
struct Turn {
  PyObject_HEAD long owner;
  Py_ssize_t depth, held;
  long process;
  char taken_over;
  PyObject* joined;
};

inline Turn* AsTurn(PyObject* turns) { return reinterpret_cast<Turn*>(turns); }

// The fields of a states.Staged.
struct Stay {
  PyObject_HEAD Py_ssize_t running, holds;
  PyObject *before, *shown, *streams, *lease;
};

inline Stay* AsStay(PyObject* staged) {
  return reinterpret_cast<Stay*>(staged);
}

// What hoist.nn and torch have for all gates; see `know`.
enum Fact {
  kIdle,      // A group's state,
  kResident,  // and the type of another.
  kTensor,
  kHoistError,
  kIsGradEnabled,
  kGraphTask,    // Of this thread; negative: none.
  kUses,         // Of a storage.
  kIsCapturing,  // The current CUDA stream.
  kCudaStream,   // Of a device, by index.
  kFacts
};

struct State {
  PyTypeObject *calls, *gate, *stay, *turn;
  PyObject* facts[kFacts];
};

inline State& StateOf(PyObject* module) {
  return *static_cast<State*>(PyModule_GetState(module));
}

// The process, also in a child of a fork.
long OwnProcess();

}  // namespace hoist::fast

#endif  // HOIST_CLIENT_PYTHON_FAST_GATE_TYPES_H_
