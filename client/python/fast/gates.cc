// The common ways into a module's groups and out of them, in one call each.
// hoist.nn has every way in Python (Passes.enter, Passes.leave, Group.stage,
// Group.end), and asks here first. A group that is not entered or left here is
// Python's to do, and is as it was; the groups before may have ended, as they
// would have.
#include <vector>

#include "gate_types.h"

namespace hoist::fast {
namespace {

// An attribute's name, made at its first use.
class Name {
 public:
  constexpr explicit Name(const char* spelled) : spelled_(spelled) {}

  PyObject* get() {
    if (made_ == nullptr) made_ = PyUnicode_InternFromString(spelled_);
    return made_;
  }

 private:
  const char* spelled_;
  PyObject* made_ = nullptr;
};

namespace of_plan {
Name done("_done"), stage("_stage");
}
Name put("_put");             // Of a binding.
Name explained("explained");  // Of a part.
Name data_ptr("data_ptr");    // Of a tensor.

void Assign(PyObject** field, PyObject* value) {
  const Ref last(std::exchange(*field, Py_NewRef(value)));
}

Ref Call(PyObject* function) { return Ref(PyObject_CallNoArgs(function)); }

Ref Call(PyObject* function, PyObject* first, PyObject* second = nullptr) {
  return Ref(PyObject_CallFunctionObjArgs(function, first, second, nullptr));
}

PyObject* Answer(bool yes) {
  return PyErr_Occurred() != nullptr ? nullptr : PyBool_FromLong(yes);
}

// This thread alone has the turn, and took it over from no other.
bool IsMine(const State& state, PyObject* turns) {
  if (!state.Is(turns, kTurnsType)) return false;
  const auto& turn = As<TurnsFields>(turns);
  return turn.depth > 0 &&
         turn.owner == static_cast<long>(PyThread_get_thread_ident()) &&
         PySet_Size(turn.joined) == 0 && turn.process == OwnProcess() &&
         !turn.taken_over;
}

// What is used of a group, so long as it is used.
struct Group {
  Group(const State& state, PyObject* given) : self(Py_NewRef(given)) {
    if (!state.Is(given, kGroupType)) return;
    fields = &As<GroupFields>(given);
    if (!state.Is(fields->binding, kBindingType)) return;
    binding = Ref(Py_NewRef(fields->binding));
    if (!state.Is(Shown().gate, kGateType)) return;
    kept = Ref(Py_NewRef(Shown().gate));
    gate = &As<Gate>(kept.get());
  }

  BindingFields& Shown() const { return As<BindingFields>(binding.get()); }

  PyObject* operator[](Kept what) const { return gate->kept[what]; }

  bool IsResident(const State& state) const {
    return fields != nullptr && fields->state != nullptr &&
           Py_TYPE(fields->state) ==
               reinterpret_cast<PyTypeObject*>(state.facts[kResident]);
  }

  // Binding._put, of all of them.
  bool Show(Kept swaps) const {
    const int there = Put(Shown().on, (*this)[swaps]);
    if (there == 1) Assign(&Shown().on, (*this)[swaps]);
    return there == 1 || (there == 0 && Ref(PyObject_CallMethodObjArgs(
                                            binding.get(), put.get(),
                                            (*this)[swaps], nullptr)));
  }

  Ref self, binding, kept;
  GroupFields* fields = nullptr;  // Of `self`.
  Gate* gate = nullptr;           // `kept`; none: its ways are Python's.
};

// An error of libhoist's, as hoist.nn explains it.
bool Explain(const State& state, PyObject* part) {
  if (!PyErr_ExceptionMatches(state.facts[kHoistError])) return false;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const Ref raised[] = {Ref(type), Ref(value), Ref(trace)};
  const Ref error(
      PyObject_CallMethodObjArgs(part, explained.get(), value, nullptr));
  if (error) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())),
                    error.get());
  }
  return false;
}

bool Done(const Group& group, PyObject* stream) {
  const Ref done(PyObject_GetAttr(group[kPlan], of_plan::done.get()));
  return done && Call(done.get(), group[kNumber], stream);
}

// Lent.is_held is False, as the counts alone tell.
bool AreBack(const State& state, const Group& group) {
  const auto& lent = As<LentFields>(group[kLent]);
  return AreCounts(lent.values, lent.storages, state.facts[kUses], lent.seen);
}

// The group before, after its modules' calls.
struct Previous {
  Previous(const State& state, PyObject* self) : group(state, self) {
    if (group.gate != nullptr && state.Is(group.fields->state, kStagedType)) {
      staged = Ref(Py_NewRef(group.fields->state));
    }
  }

  bool MayEnd(const State& state) const {
    if (!staged) return false;
    const auto& stay = As<StagedFields>(staged.get());
    return stay.running == 0 && stay.holds == 0 &&
           stay.shown == group[kShown] && stay.before == state.facts[kIdle] &&
           stay.lease == Py_None && stay.streams != nullptr &&
           !As<PartFields>(group[kPart]).ended && AreBack(state, group);
  }

  // Also with an error nothing of it is left to end.
  bool End(const State& state) const {
    auto& stay = As<StagedFields>(staged.get());
    Assign(&stay.shown, Py_None);
    if (!group.Show(kOff)) return false;
    Assign(&group.fields->state, state.facts[kIdle]);
    if (PyDict_DelItem(group[kStagedGroups], group.self.get()) != 0) {
      return false;
    }
    const Ref streams(Py_NewRef(stay.streams));
    for (Py_ssize_t at = 0; at < PyList_Size(streams.get()); ++at) {
      if (!Done(group, PyList_GetItem(streams.get(), at))) {
        return Explain(state, group[kPart]);
      }
    }
    return true;
  }

  Group group;
  Ref staged;
};

// The current stream, for a stage; none: Python's to do.
Ref Stream(const State& state, const Group& group) {
  if (group[kIndex] == Py_None) return Ref(Py_NewRef(Py_None));
  const Ref captured = Call(state.facts[kIsCapturing]);
  if (captured.get() != Py_False) return Ref();
  return Call(state.facts[kCudaStream], group[kIndex]);
}

// Plan.stage. Of a refusal nothing is left, also no error: libhoist refuses a
// streamed group again at once, for Python to act on it.
bool Stage(const State& state, const Group& group, PyObject* stream) {
  auto& calls = *reinterpret_cast<Calls*>(group[kCalls]);
  calls.address = nullptr;
  const Ref function(PyObject_GetAttr(group[kPlan], of_plan::stage.get()));
  const Ref address =
      function ? Call(function.get(), group[kNumber], stream) : Ref();
  if (address && PyLong_AsSize_t(address.get()) == group.gate->address) {
    return true;
  }
  PyObject *type, *value, *trace;  // Ctrl-C, raised after the wait.
  PyErr_Fetch(&type, &value, &trace);
  if (calls.address != nullptr && !Done(group, stream)) PyErr_Clear();
  PyErr_Restore(type, value, trace);
  if (type != nullptr && PyErr_ExceptionMatches(state.facts[kHoistError])) {
    PyErr_Clear();
  }
  return false;
}

// Modules show the weights, which are there.
bool Show(const State& state, const Group& group, PyObject* stream) {
  auto& stay = As<StagedFields>(group[kStaged]);
  // The list of the last time, unless others have it.
  if (stay.streams == nullptr || Py_REFCNT(stay.streams) != 1 ||
      PyList_Size(stay.streams) != 1) {
    const Ref made(PyList_New(1));
    if (!made) return false;
    Assign(&stay.streams, made.get());
  }
  if (PyList_SetItem(stay.streams, 0, Py_NewRef(stream)) != 0) return false;
  Assign(&stay.before, state.facts[kIdle]);
  Assign(&stay.shown, group[kShown]);
  stay.running = 1;
  stay.holds = 0;
  Assign(&group.fields->state, group[kStaged]);
  return PyDict_SetItem(group[kStagedGroups], group.self.get(), Py_None) == 0 &&
         group.Show(kOn);
}

// Passes._end_open. False: it is Python's to do, or failed.
bool EndOpen(const State& state, const PassFields& pass) {
  const Ref open(Py_NewRef(pass.open));
  std::vector<Previous> ending;
  for (Py_ssize_t at = 0; at < PyList_Size(open.get()); ++at) {
    ending.emplace_back(state, PyList_GetItem(open.get(), at));
    if (!ending.back().MayEnd(state)) return false;
  }
  if (ending.empty()) return true;
  if (!state.Is(pass.last, kCallType) || !As<CallFields>(pass.last).is_last) {
    return false;
  }
  for (auto at = static_cast<Py_ssize_t>(ending.size()); at-- > 0;) {
    if (PyList_SetSlice(open.get(), at, at + 1, nullptr) != 0 ||
        !ending[static_cast<size_t>(at)].End(state)) {
      return false;
    }
  }
  return true;
}

// Passes.enter, with the turn. The stream: see Stream; none yet.
bool EnterOne(const State& state, TurnsFields* turn, const PassFields& pass,
              const Group& group, Ref* stream) {
  if (group.gate == nullptr || group.fields->state != state.facts[kIdle] ||
      PyDict_Size(group[kTold]) != 0 || PySet_Size(group[kPointers]) != 0) {
    return false;
  }
  if (!*stream) *stream = Stream(state, group);
  if (!*stream || !EndOpen(state, pass) ||
      !Stage(state, group, stream->get()) ||
      !Show(state, group, stream->get()) ||
      PyList_Append(pass.sequence, group.self.get()) != 0) {
    return false;
  }
  ++turn->depth;
  ++turn->held;
  group.gate->entered = true;
  return true;
}

// The pass, if it has begun.
PassFields* PassOf(const State& state, PyObject* given) {
  if (!state.Is(given, kPassType)) return nullptr;
  auto& pass = As<PassFields>(given);
  return pass.open != nullptr && pass.sequence != nullptr ? &pass : nullptr;
}

// enter(turns, pass or None, groups, call): how many of them are entered; the
// others are Python's.
PyObject* Enter(PyObject* module, PyObject* const* given, Py_ssize_t count) {
  if (count != 4 || !PyTuple_Check(given[2])) {
    PyErr_SetString(PyExc_TypeError, "expected four arguments, a tuple third");
    return nullptr;
  }
  const State& state = StateOf(module);
  PyObject* const turns = given[0];
  const PassFields* const pass = PassOf(state, given[1]);
  Py_ssize_t entered = 0;
  if (pass != nullptr && pass->is_plain && IsMine(state, turns) &&
      Call(state.facts[kIsGradEnabled]).get() == Py_False) {
    const Ref task = Call(state.facts[kGraphTask]);
    Ref stream;
    while (task && PyLong_AsLong(task.get()) < 0 &&
           entered < PyTuple_Size(given[2])) {
      const Group group(state, PyTuple_GetItem(given[2], entered));
      if (!group.IsResident(state) &&
          !EnterOne(state, &As<TurnsFields>(turns), *pass, group, &stream)) {
        break;
      }
      ++entered;
    }
  }
  return PyErr_Occurred() != nullptr ? nullptr : PyLong_FromSsize_t(entered);
}

// Whether none of its tensors is over the group's bytes, as far as is seen.
bool IsApart(const State& state, const Gate& gate, PyObject* output) {
  if (output == Py_None) return true;
  if (PyTuple_CheckExact(output)) {
    for (Py_ssize_t at = 0; at < PyTuple_Size(output); ++at) {
      if (!IsApart(state, gate, PyTuple_GetItem(output, at))) return false;
    }
    return true;
  }
  if (!PyObject_TypeCheck(
          output, reinterpret_cast<PyTypeObject*>(state.facts[kTensor]))) {
    return false;
  }
  const Ref there(PyObject_CallMethodObjArgs(output, data_ptr.get(), nullptr));
  const size_t address = there ? PyLong_AsSize_t(there.get()) : 0;
  return PyErr_Occurred() == nullptr && address - gate.address >= gate.bytes;
}

// leave(turns, pass or None, groups, call, output): of all of them, or none.
PyObject* Leave(PyObject* module, PyObject* const* given, Py_ssize_t count) {
  if (count != 5 || !PyTuple_Check(given[2])) {
    PyErr_SetString(PyExc_TypeError, "expected five arguments, a tuple third");
    return nullptr;
  }
  const State& state = StateOf(module);
  PyObject* const turns = given[0];
  PassFields* const pass = PassOf(state, given[1]);
  std::vector<Group> leaving;
  bool may = true;
  for (Py_ssize_t at = 0; at < PyTuple_Size(given[2]); ++at) {
    Group group(state, PyTuple_GetItem(given[2], at));
    if (group.IsResident(state)) continue;
    may = group.gate != nullptr && std::exchange(group.gate->entered, false) &&
          group.fields->state == group[kStaged] &&
          As<StagedFields>(group[kStaged]).running == 1 && may;
    leaving.push_back(std::move(group));
  }
  const auto held = static_cast<Py_ssize_t>(leaving.size());
  if (!may || held == 0 || pass == nullptr || !IsMine(state, turns) ||
      As<TurnsFields>(turns).depth <= held || PyList_Size(pass->open) != 0) {
    return Answer(false);
  }
  for (const Group& group : leaving) {
    if (!IsApart(state, *group.gate, given[4])) {
      PyErr_Clear();  // A tensor's; Python gets it again.
      return Answer(false);
    }
  }
  Assign(&pass->last, given[3]);
  for (; !leaving.empty(); leaving.pop_back()) {
    const Group& group = leaving.back();
    if (PyList_Append(pass->open, group.self.get()) != 0) return nullptr;
    As<StagedFields>(group[kStaged]).running = 0;
    --As<TurnsFields>(turns).depth;
    --As<TurnsFields>(turns).held;
  }
  return Answer(true);
}

// know(*facts): before the first gate.
PyObject* Know(PyObject* module, PyObject* const* given, Py_ssize_t count) {
  if (count != kFacts) {
    PyErr_SetString(PyExc_TypeError, "expected all facts");
    return nullptr;
  }
  State& state = StateOf(module);
  for (int at = 0; at < kFacts; ++at) {
    const Ref before(state.facts[at]);
    state.facts[at] = Py_NewRef(given[at]);
  }
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef gate_methods[] = {{"know", Erased(Know), METH_FASTCALL, nullptr},
                              {"enter", Erased(Enter), METH_FASTCALL, nullptr},
                              {"leave", Erased(Leave), METH_FASTCALL, nullptr},
                              {}};

}  // namespace hoist::fast
