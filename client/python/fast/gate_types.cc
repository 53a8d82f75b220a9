#include "gate_types.h"

#include <pthread.h>
#include <unistd.h>

namespace hoist::fast {
namespace {

long own_process = 0;

PyObject* Make(PyTypeObject* type) {
  auto* make = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  return make(type, 0);
}

PyObject* MakeGate(PyTypeObject* type, PyObject* arguments, PyObject*) {
  if (PyTuple_Size(arguments) != kKept + 2) {
    PyErr_SetString(PyExc_TypeError,
                    "expected an address, bytes, and all kept");
    return nullptr;
  }
  const size_t address = PyLong_AsSize_t(PyTuple_GetItem(arguments, 0));
  const size_t bytes = PyLong_AsSize_t(PyTuple_GetItem(arguments, 1));
  if (PyErr_Occurred() != nullptr) return nullptr;
  const State& state = *static_cast<State*>(PyType_GetModuleState(type));
  if (Py_TYPE(PyTuple_GetItem(arguments, kCalls + 2)) != state.calls ||
      !PyObject_TypeCheck(PyTuple_GetItem(arguments, kStaged + 2),
                          state.stay)) {
    PyErr_SetString(PyExc_TypeError, "expected Calls, and a Stay");
    return nullptr;
  }
  PyObject* self = Make(type);
  if (self == nullptr) return nullptr;
  AsGate(self)->address = address;
  AsGate(self)->bytes = bytes;
  for (int at = 0; at < kKept; ++at) {
    AsGate(self)->kept[at] = Py_NewRef(PyTuple_GetItem(arguments, at + 2));
  }
  return self;
}

int VisitGate(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (PyObject* one : AsGate(self)->kept) Py_VISIT(one);
  return 0;
}

int ClearGate(PyObject* self) {
  for (PyObject*& one : AsGate(self)->kept) Py_CLEAR(one);
  return 0;
}

int VisitStay(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(AsStay(self)->before);
  Py_VISIT(AsStay(self)->shown);
  Py_VISIT(AsStay(self)->streams);
  Py_VISIT(AsStay(self)->lease);
  return 0;
}

int ClearStay(PyObject* self) {
  Py_CLEAR(AsStay(self)->before);
  Py_CLEAR(AsStay(self)->shown);
  Py_CLEAR(AsStay(self)->streams);
  Py_CLEAR(AsStay(self)->lease);
  return 0;
}

int VisitTurn(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(AsTurn(self)->joined);
  return 0;
}

int ClearTurn(PyObject* self) {
  Py_CLEAR(AsTurn(self)->joined);
  return 0;
}

template <inquiry kClear>
void Delete(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  kClear(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyType_Slot gate_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(MakeGate)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Delete<ClearGate>)},
    {Py_tp_traverse, reinterpret_cast<void*>(VisitGate)},
    {Py_tp_clear, reinterpret_cast<void*>(ClearGate)},
    {}};

PyMemberDef stay_members[] = {
    {"running", T_PYSSIZET, offsetof(Stay, running), 0, nullptr},
    {"holds", T_PYSSIZET, offsetof(Stay, holds), 0, nullptr},
    {"before", T_OBJECT, offsetof(Stay, before), 0, nullptr},
    {"shown", T_OBJECT, offsetof(Stay, shown), 0, nullptr},
    {"streams", T_OBJECT, offsetof(Stay, streams), 0, nullptr},
    {"lease", T_OBJECT, offsetof(Stay, lease), 0, nullptr},
    {}};

PyType_Slot stay_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(Delete<ClearStay>)},
    {Py_tp_traverse, reinterpret_cast<void*>(VisitStay)},
    {Py_tp_clear, reinterpret_cast<void*>(ClearStay)},
    {Py_tp_members, stay_members},
    {}};

PyMemberDef turn_members[] = {
    {"_owner", T_LONG, offsetof(Turn, owner), 0, nullptr},
    {"_depth", T_PYSSIZET, offsetof(Turn, depth), 0, nullptr},
    {"held", T_PYSSIZET, offsetof(Turn, held), 0, nullptr},
    {"_process", T_LONG, offsetof(Turn, process), 0, nullptr},
    {"taken_over", T_BOOL, offsetof(Turn, taken_over), 0, nullptr},
    {"_joined", T_OBJECT, offsetof(Turn, joined), 0, nullptr},
    {}};

PyType_Slot turn_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(Delete<ClearTurn>)},
    {Py_tp_traverse, reinterpret_cast<void*>(VisitTurn)},
    {Py_tp_clear, reinterpret_cast<void*>(ClearTurn)},
    {Py_tp_members, turn_members},
    {}};

constexpr unsigned kCollected = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;

PyType_Spec gate_spec = {"hoist._fast.Gate", sizeof(Gate), 0, kCollected,
                         gate_slots};
PyType_Spec stay_spec = {"hoist._fast.Stay", sizeof(Stay), 0,
                         kCollected | Py_TPFLAGS_BASETYPE, stay_slots};
PyType_Spec turn_spec = {"hoist._fast.Turn", sizeof(Turn), 0,
                         kCollected | Py_TPFLAGS_BASETYPE, turn_slots};

PyTypeObject* Add(PyObject* module, PyType_Spec* spec) {
  return reinterpret_cast<PyTypeObject*>(
      PyType_FromModuleAndSpec(module, spec, nullptr));
}

}  // namespace

long OwnProcess() { return own_process; }

const Py_ssize_t kGatesBytes = sizeof(State);

int AddGates(PyObject* module, PyObject* calls) {
  State& state = StateOf(module);
  state.calls = reinterpret_cast<PyTypeObject*>(Py_NewRef(calls));
  state.gate = Add(module, &gate_spec);
  state.stay = Add(module, &stay_spec);
  state.turn = Add(module, &turn_spec);
  for (PyTypeObject* type : {state.gate, state.stay, state.turn}) {
    if (type == nullptr || PyModule_AddType(module, type) != 0) return -1;
  }
  own_process = getpid();
  pthread_atfork(nullptr, nullptr, [] { own_process = getpid(); });
  return PyModule_AddFunctions(module, gate_methods);
}

int VisitGates(PyObject* module, visitproc visit, void* arg) {
  const State& state = StateOf(module);
  Py_VISIT(state.calls);
  Py_VISIT(state.gate);
  Py_VISIT(state.stay);
  Py_VISIT(state.turn);
  for (PyObject* one : state.facts) Py_VISIT(one);
  return 0;
}

int ClearGates(PyObject* module) {
  State& state = StateOf(module);
  Py_CLEAR(state.calls);
  Py_CLEAR(state.gate);
  Py_CLEAR(state.stay);
  Py_CLEAR(state.turn);
  for (PyObject*& one : state.facts) Py_CLEAR(one);
  return 0;
}

}  // namespace hoist::fast
