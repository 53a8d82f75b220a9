// What the parts of hoist._fast share.
#ifndef HOIST_CLIENT_PYTHON_FAST_FAST_H_
#define HOIST_CLIENT_PYTHON_FAST_FAST_H_

#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#include <utility>

namespace hoist::fast {

using StageFunction = int (*)(void* plan, uint32_t group, void* stream,
                              const void** data, void** error);
using DoneFunction = int (*)(void* plan, uint32_t group, void* stream,
                             void** error);

// A plan's calls: Calls(plan, stage, done, fail). The first three are
// addresses; fail(code, address of a hoist_error) raises.
//
// Threads: one at a time. libhoist runs without the GIL, as it may wait.
struct Calls {
  PyObject_HEAD void* plan;
  StageFunction stage;
  DoneFunction done;
  PyObject* fail;
  const void* address;  // See hoist/_hot.py.
};

// A reference of its own, or none.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

using FastFunction = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

inline PyCFunction Erased(FastFunction function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// Whether it is (dict, key, value); of no subclass of dict, as that has a way
// of its own.
bool IsSwap(PyObject* swap);

// put() of hoist/_hot.py: 1 or 0; -1 with an exception. Also 0 where a place is
// in a subclass of dict, which has a way of its own.
int Put(PyObject* on, PyObject* swaps);

// Whether counts() of hoist/_hot.py would give these again; also false with an
// exception.
bool AreCounts(PyObject* values, PyObject* storages, PyObject* uses,
               PyObject* seen);

// know; see gates.cc.
extern PyMethodDef gate_methods[];

// The module's state; see gate_types.h.
extern const Py_ssize_t kGatesBytes;
int AddGates(PyObject* module, PyObject* calls);  // calls: the type Calls.
int VisitGates(PyObject* module, visitproc visit, void* arg);
int ClearGates(PyObject* module);

}  // namespace hoist::fast

#endif  // HOIST_CLIENT_PYTHON_FAST_FAST_H_
