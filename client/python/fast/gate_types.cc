#include "gate_types.h"

#include <pthread.h>
#include <unistd.h>

#include <vector>

namespace hoist::fast {
namespace {

long own_process = 0;

// As bytes; none of them if the lists of swaps do not correspond.
PyObject* PlacesOf(PyObject* off, PyObject* on) {
  std::vector<Place> found;
  const Py_ssize_t count = PyList_Check(off) && PyList_Check(on) &&
                                   PyList_Size(off) == PyList_Size(on)
                               ? PyList_Size(on)
                               : 0;
  for (Py_ssize_t at = 0; at < count; ++at) {
    PyObject* const before = PyList_GetItem(off, at);
    PyObject* const after = PyList_GetItem(on, at);
    if (!IsSwap(before) || !IsSwap(after) ||
        PyTuple_GetItem(before, 0) != PyTuple_GetItem(after, 0) ||
        PyTuple_GetItem(before, 1) != PyTuple_GetItem(after, 1)) {
      found.clear();
      break;
    }
    found.push_back({PyTuple_GetItem(before, 0), PyTuple_GetItem(before, 1),
                     PyTuple_GetItem(before, 2), PyTuple_GetItem(after, 2)});
  }
  return PyBytes_FromStringAndSize(
      reinterpret_cast<const char*>(found.data()),
      static_cast<Py_ssize_t>(found.size() * sizeof(Place)));
}

PyObject* MakeGate(PyTypeObject* type, PyObject* arguments, PyObject*) {
  if (PyTuple_Size(arguments) != kGiven + 2) {
    PyErr_SetString(PyExc_TypeError,
                    "expected an address, bytes, and all kept");
    return nullptr;
  }
  const size_t address = PyLong_AsSize_t(PyTuple_GetItem(arguments, 0));
  const size_t bytes = PyLong_AsSize_t(PyTuple_GetItem(arguments, 1));
  if (PyErr_Occurred() != nullptr) return nullptr;
  const State& state = *static_cast<State*>(PyType_GetModuleState(type));
  const auto kept = [&](Kept what) {
    return PyTuple_GetItem(arguments, what + 2);
  };
  if (Py_TYPE(kept(kCalls)) != state.calls ||
      !state.Is(kept(kPart), kPartType) || !state.Is(kept(kLent), kLentType) ||
      !state.Is(kept(kStaged), kStagedType)) {
    PyErr_SetString(PyExc_TypeError,
                    "expected Calls, and a Part, a Lent and a Staged");
    return nullptr;
  }
  Ref places(PlacesOf(kept(kOff), kept(kOn)));
  if (!places) return nullptr;
  auto* make = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = make(type, 0);
  if (self == nullptr) return nullptr;
  Gate& gate = As<Gate>(self);
  gate.address = address;
  gate.bytes = bytes;
  for (int at = 0; at < kGiven; ++at) {
    gate.kept[at] = Py_NewRef(kept(static_cast<Kept>(at)));
  }
  gate.kept[kPlaces] = Py_NewRef(places.get());
  return self;
}

PyObject* MakeFront(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject *hook, *passes, *groups, *call;
  if (!PyArg_ParseTuple(arguments, "OOO!O", &hook, &passes, &PyTuple_Type,
                        &groups, &call)) {
    return nullptr;
  }
  const State& state = *static_cast<State*>(PyType_GetModuleState(type));
  if (!state.Is(hook, kHookType) || !state.Is(passes, kPassesType) ||
      !state.Is(call, kCallType)) {
    PyErr_SetString(PyExc_TypeError, "expected a Hook, Passes, and a Call");
    return nullptr;
  }
  auto* make = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = make(type, 0);
  if (self == nullptr) return nullptr;
  Front& front = As<Front>(self);
  front.hook = Py_NewRef(hook);
  front.passes = Py_NewRef(passes);
  front.groups = Py_NewRef(groups);
  front.call = Py_NewRef(call);
  return self;
}

// Copies and pickles are the hook's to refuse.
PyObject* Reduce(PyObject* self, PyObject* protocol) {
  return PyObject_CallMethod(As<Front>(self).hook, "__reduce_ex__", "O",
                             protocol);
}

PyObject** ObjectsOf(PyObject* self) {
  return reinterpret_cast<PyObject**>(self + 1);
}

template <int kObjects>
int Visit(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (int at = 0; at < kObjects; ++at) Py_VISIT(ObjectsOf(self)[at]);
  return 0;
}

template <int kObjects>
int Clear(PyObject* self) {
  for (int at = 0; at < kObjects; ++at) Py_CLEAR(ObjectsOf(self)[at]);
  return 0;
}

template <int kObjects>
void Delete(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Clear<kObjects>(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyMemberDef front_members[] = {
    {"hook", T_OBJECT, offsetof(Front, hook), READONLY, nullptr}, {}};

PyMethodDef front_methods[] = {{"__reduce_ex__", Reduce, METH_O, nullptr}, {}};

PyMemberDef hook_fields[] = {
    {"removed", T_BOOL, offsetof(HookFields, removed), 0, nullptr}, {}};

PyMemberDef passes_fields[] = {
    {"turns", T_OBJECT_EX, offsetof(PassesFields, turns), 0, nullptr},
    {"current", T_OBJECT_EX, offsetof(PassesFields, current), 0, nullptr},
    {}};

PyMemberDef staged_fields[] = {
    {"before", T_OBJECT, offsetof(StagedFields, before), 0, nullptr},
    {"shown", T_OBJECT, offsetof(StagedFields, shown), 0, nullptr},
    {"streams", T_OBJECT, offsetof(StagedFields, streams), 0, nullptr},
    {"lease", T_OBJECT, offsetof(StagedFields, lease), 0, nullptr},
    {"running", T_PYSSIZET, offsetof(StagedFields, running), 0, nullptr},
    {"holds", T_PYSSIZET, offsetof(StagedFields, holds), 0, nullptr},
    {}};

PyMemberDef turns_fields[] = {
    {"_joined", T_OBJECT, offsetof(TurnsFields, joined), 0, nullptr},
    {"_owner", T_LONG, offsetof(TurnsFields, owner), 0, nullptr},
    {"_depth", T_PYSSIZET, offsetof(TurnsFields, depth), 0, nullptr},
    {"held", T_PYSSIZET, offsetof(TurnsFields, held), 0, nullptr},
    {"_process", T_LONG, offsetof(TurnsFields, process), 0, nullptr},
    {"taken_over", T_BOOL, offsetof(TurnsFields, taken_over), 0, nullptr},
    {}};

PyMemberDef group_fields[] = {
    {"binding", T_OBJECT_EX, offsetof(GroupFields, binding), 0, nullptr},
    {"state", T_OBJECT_EX, offsetof(GroupFields, state), 0, nullptr},
    {}};

PyMemberDef binding_fields[] = {
    {"gate", T_OBJECT_EX, offsetof(BindingFields, gate), 0, nullptr},
    {"_on", T_OBJECT_EX, offsetof(BindingFields, on), 0, nullptr},
    {}};

PyMemberDef pass_fields[] = {
    {"open", T_OBJECT_EX, offsetof(PassFields, open), 0, nullptr},
    {"last", T_OBJECT_EX, offsetof(PassFields, last), 0, nullptr},
    {"sequence", T_OBJECT_EX, offsetof(PassFields, sequence), 0, nullptr},
    {"is_plain", T_BOOL, offsetof(PassFields, is_plain), 0, nullptr},
    {}};

PyMemberDef call_fields[] = {
    {"is_last", T_BOOL, offsetof(CallFields, is_last), 0, nullptr}, {}};

PyMemberDef part_fields[] = {
    {"ended", T_BOOL, offsetof(PartFields, ended), 0, nullptr}, {}};

PyMemberDef lent_fields[] = {
    {"_values", T_OBJECT_EX, offsetof(LentFields, values), 0, nullptr},
    {"_storages", T_OBJECT_EX, offsetof(LentFields, storages), 0, nullptr},
    {"_seen", T_OBJECT_EX, offsetof(LentFields, seen), 0, nullptr},
    {}};

template <int kObjects, PyMemberDef* kMembers>
PyType_Slot field_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(Delete<kObjects>)},
    {Py_tp_traverse, reinterpret_cast<void*>(Visit<kObjects>)},
    {Py_tp_clear, reinterpret_cast<void*>(Clear<kObjects>)},
    {Py_tp_members, kMembers},
    {}};

PyType_Slot gate_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(MakeGate)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Delete<kKept>)},
    {Py_tp_traverse, reinterpret_cast<void*>(Visit<kKept>)},
    {Py_tp_clear, reinterpret_cast<void*>(Clear<kKept>)},
    {}};

template <ternaryfunc kCalled>
PyType_Slot front_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(MakeFront)},
    {Py_tp_call, reinterpret_cast<void*>(kCalled)},
    {Py_tp_members, front_members},
    {Py_tp_methods, front_methods},
    {Py_tp_dealloc, reinterpret_cast<void*>(Delete<4>)},
    {Py_tp_traverse, reinterpret_cast<void*>(Visit<4>)},
    {Py_tp_clear, reinterpret_cast<void*>(Clear<4>)},
    {}};

constexpr unsigned kCollected = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
constexpr unsigned kBase = kCollected | Py_TPFLAGS_BASETYPE;

PyType_Spec specs[kTypes] = {
    {"hoist._fast.Gate", sizeof(Gate), 0, kCollected, gate_slots},
    {"hoist._fast.Entry", sizeof(Front), 0, kCollected, front_slots<Enter>},
    {"hoist._fast.Exit", sizeof(Front), 0, kCollected, front_slots<Leave>},
    {"hoist._fast.Hook", sizeof(HookFields), 0, kBase,
     field_slots<0, hook_fields>},
    {"hoist._fast.Passes", sizeof(PassesFields), 0, kBase,
     field_slots<2, passes_fields>},
    {"hoist._fast.Staged", sizeof(StagedFields), 0, kBase,
     field_slots<4, staged_fields>},
    {"hoist._fast.Turns", sizeof(TurnsFields), 0, kBase,
     field_slots<1, turns_fields>},
    {"hoist._fast.Group", sizeof(GroupFields), 0, kBase,
     field_slots<2, group_fields>},
    {"hoist._fast.Binding", sizeof(BindingFields), 0, kBase,
     field_slots<2, binding_fields>},
    {"hoist._fast.Pass", sizeof(PassFields), 0, kBase,
     field_slots<3, pass_fields>},
    {"hoist._fast.Call", sizeof(CallFields), 0, kBase,
     field_slots<0, call_fields>},
    {"hoist._fast.Part", sizeof(PartFields), 0, kBase,
     field_slots<0, part_fields>},
    {"hoist._fast.Lent", sizeof(LentFields), 0, kBase,
     field_slots<3, lent_fields>},
};

}  // namespace

long OwnProcess() { return own_process; }

const Py_ssize_t kGatesBytes = sizeof(State);

int AddGates(PyObject* module, PyObject* calls) {
  State& state = StateOf(module);
  state.calls = reinterpret_cast<PyTypeObject*>(Py_NewRef(calls));
  for (int at = 0; at < kTypes; ++at) {
    state.types[at] = reinterpret_cast<PyTypeObject*>(
        PyType_FromModuleAndSpec(module, &specs[at], nullptr));
    if (state.types[at] == nullptr ||
        PyModule_AddType(module, state.types[at]) != 0) {
      return -1;
    }
  }
  own_process = getpid();
  pthread_atfork(nullptr, nullptr, [] { own_process = getpid(); });
  return PyModule_AddFunctions(module, gate_methods);
}

int VisitGates(PyObject* module, visitproc visit, void* arg) {
  const State& state = StateOf(module);
  Py_VISIT(state.calls);
  for (PyTypeObject* one : state.types) Py_VISIT(one);
  for (PyObject* one : state.facts) Py_VISIT(one);
  return 0;
}

int ClearGates(PyObject* module) {
  State& state = StateOf(module);
  Py_CLEAR(state.calls);
  for (PyTypeObject*& one : state.types) Py_CLEAR(one);
  for (PyObject*& one : state.facts) Py_CLEAR(one);
  return 0;
}

}  // namespace hoist::fast
