// Gates, and the fields of hoist.nn's objects that they read and write.
#ifndef HOIST_CLIENT_PYTHON_FAST_GATE_TYPES_H_
#define HOIST_CLIENT_PYTHON_FAST_GATE_TYPES_H_

#include "fast.h"

namespace hoist::fast {

// Each type's objects are its first fields.

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
  kLent,          // Its weights.
  kStaged,        // The group's state whenever it was entered here.
  kGiven,
  kPlaces = kGiven,  // Bytes: each Place of kOff and kOn, if those correspond.
  kKept
};

// A weight's place, without the lists and tuples that are its owners.
struct Place {
  PyObject *holder, *key, *off, *on;
};

// Gate(address, bytes, *kept as far as given)
//
// Threads: one at a time; the attachment's lock.
struct Gate {
  PyObject_HEAD PyObject* kept[kKept];
  uintptr_t address;
  size_t bytes;
  bool entered;  // By `enter`, and not left since.
};

// Entry(hook, passes, groups, call) and Exit(...): what torch calls for a hook
// of hoist.nn. The groups are a tuple.
struct Front {
  PyObject_HEAD PyObject *hook, *passes, *groups, *call;
};

// The fields of classes of hoist.nn that are read here; see `fields` in
// _hot.py.

struct HookFields {
  PyObject_HEAD char removed;
};

struct PassesFields {
  PyObject_HEAD PyObject *turns, *current;
};

struct StagedFields {
  PyObject_HEAD PyObject *before, *shown, *streams, *lease;
  Py_ssize_t running, holds;
};

struct TurnsFields {
  PyObject_HEAD PyObject* joined;
  long owner;
  Py_ssize_t depth, held;
  long process;
  char taken_over;
};

struct GroupFields {
  PyObject_HEAD PyObject *binding, *state;
};

struct BindingFields {
  PyObject_HEAD PyObject *gate, *on;
};

struct PassFields {
  PyObject_HEAD PyObject *open, *last, *sequence;
  char is_plain;
};

struct CallFields {
  PyObject_HEAD char is_last;
};

struct PartFields {
  PyObject_HEAD char ended;
};

struct LentFields {
  PyObject_HEAD PyObject *values, *storages, *seen;
};

template <typename T>
T& As(PyObject* object) {
  return *reinterpret_cast<T*>(object);
}

enum Type {
  kGateType,
  kEntryType,
  kExitType,
  kHookType,
  kPassesType,
  kStagedType,
  kTurnsType,
  kGroupType,
  kBindingType,
  kPassType,
  kCallType,
  kPartType,
  kLentType,
  kTypes
};

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
  bool Is(PyObject* object, Type type) const {
    return object != nullptr && PyObject_TypeCheck(object, types[type]);
  }

  PyTypeObject* calls;
  PyTypeObject* types[kTypes];
  PyObject* facts[kFacts];
};

inline State& StateOf(PyObject* module) {
  return *static_cast<State*>(PyModule_GetState(module));
}

// The calls of an Entry and of an Exit; see gates.cc.
PyObject* Enter(PyObject* self, PyObject* given, PyObject* keywords);
PyObject* Leave(PyObject* self, PyObject* given, PyObject* keywords);

// The process, also in a child of a fork.
long OwnProcess();

}  // namespace hoist::fast

#endif  // HOIST_CLIENT_PYTHON_FAST_GATE_TYPES_H_
