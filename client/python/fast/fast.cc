// hoist._fast: what hoist does for each group of each pass, without ctypes.
//
// The package works without it (hoist/_hot.py), so that one file serves every
// CPython from 3.10 on: the stable ABI alone. It links no libhoist, and is
// given the addresses of its functions.
#include "fast.h"

#include <vector>

namespace hoist::fast {

namespace {

constexpr long kInterface = 5;  // hoist/_hot.py asks for this one.

Calls* Of(PyObject* self) { return reinterpret_cast<Calls*>(self); }

// An address as Python has it: an int, or None.
bool ReadAddress(PyObject* given, void** address) {
  *address = given == Py_None ? nullptr : PyLong_AsVoidPtr(given);
  return *address != nullptr || PyErr_Occurred() == nullptr;
}

// A stream: None, its handle, or an object with a `cuda_stream`.
bool ReadStream(PyObject* given, void** stream) {
  if (given == Py_None || PyLong_Check(given)) {
    return ReadAddress(given, stream);
  }
  PyObject* handle = PyObject_GetAttrString(given, "cuda_stream");
  if (handle == nullptr) return false;
  const bool read = ReadAddress(handle, stream);
  Py_DECREF(handle);
  return read;
}

struct Arguments {
  uint32_t group = 0;
  void* stream = nullptr;
};

// (group, stream)
bool Read(PyObject* const* given, Py_ssize_t count, Arguments* arguments) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "expected a group's number and a stream");
    return false;
  }
  const unsigned long group = PyLong_AsUnsignedLong(given[0]);
  if (PyErr_Occurred() != nullptr) return false;
  if (group > UINT32_MAX) {
    PyErr_SetString(PyExc_OverflowError, "a group's number has 32 bits");
    return false;
  }
  arguments->group = static_cast<uint32_t>(group);
  return ReadStream(given[1], &arguments->stream);
}

PyObject* Fail(const Calls& calls, int code, void* error) {
  PyObject* result =
      PyObject_CallFunction(calls.fail, "iN", code, PyLong_FromVoidPtr(error));
  Py_XDECREF(result);
  return nullptr;
}

PyObject* Stage(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  Calls& calls = *Of(self);
  Arguments arguments;
  if (!Read(given, count, &arguments)) return nullptr;
  const void* address = nullptr;
  void* error = nullptr;
  int code = 0;
  Py_BEGIN_ALLOW_THREADS;
  code = calls.stage(calls.plan, arguments.group, arguments.stream, &address,
                     &error);
  Py_END_ALLOW_THREADS;
  if (code != 0) return Fail(calls, code, error);
  calls.address = address;
  return PyLong_FromVoidPtr(const_cast<void*>(address));
}

PyObject* Done(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  Calls& calls = *Of(self);
  Arguments arguments;
  if (!Read(given, count, &arguments)) return nullptr;
  void* error = nullptr;
  int code = 0;
  Py_BEGIN_ALLOW_THREADS;
  code = calls.done(calls.plan, arguments.group, arguments.stream, &error);
  Py_END_ALLOW_THREADS;
  if (code != 0) return Fail(calls, code, error);
  Py_RETURN_NONE;
}

PyObject* Close(PyObject* self, PyObject*) {
  Of(self)->plan = nullptr;
  Py_RETURN_NONE;
}

PyObject* New(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject* given[3];
  PyObject* fail = nullptr;
  if (!PyArg_ParseTuple(arguments, "OOOO", &given[0], &given[1], &given[2],
                        &fail)) {
    return nullptr;
  }
  void* addresses[3];
  for (int at = 0; at < 3; ++at) {
    if (!ReadAddress(given[at], &addresses[at])) return nullptr;
  }
  auto* make = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = make(type, 0);
  if (self == nullptr) return nullptr;
  Of(self)->plan = addresses[0];
  Of(self)->stage = reinterpret_cast<StageFunction>(addresses[1]);
  Of(self)->done = reinterpret_cast<DoneFunction>(addresses[2]);
  Py_INCREF(fail);
  Of(self)->fail = fail;
  return self;
}

void Delete(PyObject* self) {
  Py_XDECREF(Of(self)->fail);
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

}  // namespace

bool IsSwap(PyObject* swap) {
  return PyTuple_Check(swap) && PyTuple_Size(swap) == 3 &&
         PyDict_CheckExact(PyTuple_GetItem(swap, 0));
}

int Put(PyObject* on, PyObject* swaps) {
  const Py_ssize_t places = PyList_Size(on);
  if (PyList_Size(swaps) != places) return 0;
  for (Py_ssize_t at = 0; at < places; ++at) {
    PyObject* before = PyList_GetItem(on, at);
    if (!IsSwap(before) || !IsSwap(PyList_GetItem(swaps, at))) return 0;
    PyObject* there = PyDict_GetItemWithError(PyTuple_GetItem(before, 0),
                                              PyTuple_GetItem(before, 1));
    if (there == nullptr && PyErr_Occurred() != nullptr) return -1;
    if (there != PyTuple_GetItem(before, 2)) return 0;
  }
  for (Py_ssize_t at = 0; at < places; ++at) {
    PyObject* swap = PyList_GetItem(swaps, at);
    if (PyDict_SetItem(PyTuple_GetItem(swap, 0), PyTuple_GetItem(swap, 1),
                       PyTuple_GetItem(swap, 2)) != 0) {
      return -1;
    }
  }
  return 1;
}

namespace {

// torch's count of a storage's users is behind the address of its class, and
// other threads write to it. hoist.nn has seen that before it asks so.
size_t ReadUses(PyObject* storage) {
  const auto* there = static_cast<const char*>(PyLong_AsVoidPtr(storage));
  if (there == nullptr) return 0;
  return __atomic_load_n(
      reinterpret_cast<const uint32_t*>(there + sizeof(void*)),
      __ATOMIC_RELAXED);
}

// Calls `uses`.
size_t AskUses(PyObject* uses, PyObject* storage) {
  const Ref count(PyObject_CallFunctionObjArgs(uses, storage, nullptr));
  return count ? PyLong_AsSize_t(count.get()) : 0;
}

// Takes each count, as long as it may. False: it may not, or there is an
// exception.
template <typename Take>
bool TakeCounts(PyObject* values, PyObject* storages, PyObject* uses,
                Take take) {
  for (Py_ssize_t at = 0; at < PyList_Size(values); ++at) {
    if (!take(static_cast<size_t>(Py_REFCNT(PyList_GetItem(values, at))))) {
      return false;
    }
  }
  for (Py_ssize_t at = 0; at < PyList_Size(storages); ++at) {
    PyObject* const one = PyList_GetItem(storages, at);
    if (!take(uses == Py_None ? ReadUses(one) : AskUses(uses, one)))
      return false;
  }
  return PyErr_Occurred() == nullptr;
}

// counts() of hoist/_hot.py; none with an exception.
Ref Counts(PyObject* values, PyObject* storages, PyObject* uses) {
  std::vector<size_t> found;
  const auto take = [&](size_t count) {
    found.push_back(count);
    return true;
  };
  if (!TakeCounts(values, storages, uses, take)) return Ref();
  return Ref(PyBytes_FromStringAndSize(
      reinterpret_cast<const char*>(found.data()),
      static_cast<Py_ssize_t>(found.size() * sizeof(size_t))));
}

}  // namespace

bool AreCounts(PyObject* values, PyObject* storages, PyObject* uses,
               PyObject* seen) {
  if (seen == nullptr || !PyBytes_Check(seen)) return false;
  auto* next = reinterpret_cast<const size_t*>(PyBytes_AsString(seen));
  const auto* end =
      next + static_cast<size_t>(PyBytes_Size(seen)) / sizeof(size_t);
  const auto take = [&](size_t count) {
    return next != end && *next++ == count;
  };
  return TakeCounts(values, storages, uses, take) && next == end;
}

namespace {

// Two lists, and whatever follows.
bool AreLists(PyObject* const* given, Py_ssize_t count, Py_ssize_t expected) {
  if (count == expected && PyList_Check(given[0]) && PyList_Check(given[1])) {
    return true;
  }
  PyErr_SetString(PyExc_TypeError, "expected two lists");
  return false;
}

PyObject* PutOrNot(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (!AreLists(given, count, 2)) return nullptr;
  const int put = Put(given[0], given[1]);
  return put < 0 ? nullptr : PyBool_FromLong(put);
}

PyObject* CountAll(PyObject*, PyObject* const* given, Py_ssize_t count) {
  return AreLists(given, count, 3)
             ? Py_XNewRef(Counts(given[0], given[1], given[2]).get())
             : nullptr;
}

PyMethodDef call_methods[] = {{"stage", Erased(Stage), METH_FASTCALL, nullptr},
                              {"done", Erased(Done), METH_FASTCALL, nullptr},
                              {"close", Close, METH_NOARGS, nullptr},
                              {}};

PyMemberDef call_members[] = {
    {"address", T_ULONGLONG, offsetof(Calls, address), 0, nullptr}, {}};

PyType_Slot call_slots[] = {{Py_tp_new, reinterpret_cast<void*>(New)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(Delete)},
                            {Py_tp_methods, call_methods},
                            {Py_tp_members, call_members},
                            {}};

PyType_Spec call_spec = {"hoist._fast.Calls", sizeof(Calls), 0,
                         Py_TPFLAGS_DEFAULT, call_slots};

PyMethodDef methods[] = {{"put", Erased(PutOrNot), METH_FASTCALL, nullptr},
                         {"counts", Erased(CountAll), METH_FASTCALL, nullptr},
                         {}};

int Fill(PyObject* module) {
  PyObject* type = PyType_FromSpec(&call_spec);
  if (type == nullptr) return -1;
  const Ref calls(type);
  if (PyModule_AddObjectRef(module, "Calls", type) != 0 ||
      AddGates(module, type) != 0) {
    return -1;
  }
  return PyModule_AddIntConstant(module, "INTERFACE", kInterface);
}

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(Fill)}, {}};

PyModuleDef module_definition = {PyModuleDef_HEAD_INIT,
                                 "hoist._fast",
                                 nullptr,
                                 kGatesBytes,
                                 methods,
                                 slots,
                                 VisitGates,
                                 ClearGates,
                                 nullptr};

}  // namespace
}  // namespace hoist::fast

PyMODINIT_FUNC PyInit__fast() {
  return PyModuleDef_Init(&hoist::fast::module_definition);
}
