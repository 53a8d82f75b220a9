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

namespace of_group {
Name binding("binding"), state("state");
}
namespace of_binding {
Name gate("gate"), on("_on"), put("_put");
}
namespace of_lent {
Name seen("_seen");
}
namespace of_pass {
Name is_plain("is_plain"), last("last"), open("open"), sequence("sequence");
}
namespace of_plan {
Name done("_done"), stage("_stage");
}
namespace of_part {
Name ended("ended"), explained("explained");
}
Name is_last("is_last");    // Of a call.
Name data_ptr("data_ptr");  // Of a tensor.

Ref Get(PyObject* of, Name& name) {
  return Ref(PyObject_GetAttr(of, name.get()));
}

bool Is(PyObject* of, Name& name, PyObject* value) {
  return Get(of, name).get() == value;
}

void Assign(PyObject** field, PyObject* value) {
  const Ref last(std::exchange(*field, Py_NewRef(value)));
}

bool Set(PyObject* of, Name& name, PyObject* value) {
  return PyObject_SetAttr(of, name.get(), value) == 0;
}

Ref Call(PyObject* function, PyObject* first = nullptr,
         PyObject* second = nullptr) {
  return Ref(PyObject_CallFunctionObjArgs(function, first, second, nullptr));
}

PyObject* Answer(bool yes) {
  return PyErr_Occurred() != nullptr ? nullptr : PyBool_FromLong(yes);
}

// This thread alone has the turn, and took it over from no other.
bool IsMine(const State& state, PyObject* turns) {
  if (!PyObject_TypeCheck(turns, state.turn)) return false;
  const Turn& turn = *AsTurn(turns);
  return turn.depth > 0 &&
         turn.owner == static_cast<long>(PyThread_get_thread_ident()) &&
         PySet_Size(turn.joined) == 0 && turn.process == OwnProcess() &&
         !turn.taken_over;
}

// What is used of a group, so long as it is used.
struct Group {
  Group(const State& state, PyObject* group) : self(group) {
    binding = Get(group, of_group::binding);
    if (binding) kept = Get(binding.get(), of_binding::gate);
    if (kept && Py_TYPE(kept.get()) == state.gate) gate = AsGate(kept.get());
  }

  PyObject* operator[](Kept what) const { return gate->kept[what]; }

  // Binding._put, of all of them.
  bool Show(Kept swaps) const {
    const Ref on = Get(binding.get(), of_binding::on);
    if (!on) return false;
    const int there = Put(on.get(), (*this)[swaps]);
    if (there == 1) return Set(binding.get(), of_binding::on, (*this)[swaps]);
    return there == 0 &&
           Ref(PyObject_CallMethodObjArgs(binding.get(), of_binding::put.get(),
                                          (*this)[swaps], nullptr));
  }

  PyObject* self = nullptr;
  Ref binding, kept;
  Gate* gate = nullptr;  // `kept`; none: its ways are Python's.
};

// An error of libhoist's, as hoist.nn explains it.
bool Explain(const State& state, PyObject* part) {
  if (!PyErr_ExceptionMatches(state.facts[kHoistError])) return false;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const Ref raised[] = {Ref(type), Ref(value), Ref(trace)};
  const Ref error(PyObject_CallMethodObjArgs(part, of_part::explained.get(),
                                             value, nullptr));
  if (error) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())),
                    error.get());
  }
  return false;
}

bool Done(const Group& group, PyObject* stream) {
  const Ref done = Get(group[kPlan], of_plan::done);
  return done && Call(done.get(), group[kNumber], stream);
}

// Lent.is_held is False, as the counts alone tell.
bool AreBack(const State& state, const Group& group) {
  const Ref seen = Get(group[kLent], of_lent::seen);
  if (!seen) return false;
  const Ref now = Counts(group[kValues], group[kStorages], state.facts[kUses]);
  return now && PyObject_RichCompareBool(seen.get(), now.get(), Py_EQ) == 1;
}

// The group before, after its modules' calls.
struct Previous {
  Previous(const State& state, PyObject* self)
      : group(state, self), staged(Get(self, of_group::state)) {}

  bool MayEnd(const State& state) const {
    if (group.gate == nullptr || !staged ||
        !PyObject_TypeCheck(staged.get(), state.stay)) {
      return false;
    }
    const Stay& stay = *AsStay(staged.get());
    return stay.running == 0 && stay.holds == 0 &&
           stay.shown == group[kShown] && stay.before == state.facts[kIdle] &&
           stay.lease == Py_None && stay.streams != nullptr &&
           Is(group[kPart], of_part::ended, Py_False) && AreBack(state, group);
  }

  // Also with an error nothing of it is left to end.
  bool End(const State& state) const {
    Stay& stay = *AsStay(staged.get());
    Assign(&stay.shown, Py_None);
    if (!group.Show(kOff) ||
        !Set(group.self, of_group::state, state.facts[kIdle]) ||
        PyDict_DelItem(group[kStagedGroups], group.self) != 0) {
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
  const Ref function = Get(group[kPlan], of_plan::stage);
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
  Stay& stay = *AsStay(group[kStaged]);
  const Ref streams(PyList_New(1));
  if (!streams || PyList_SetItem(streams.get(), 0, Py_NewRef(stream)) != 0) {
    return false;
  }
  Assign(&stay.streams, streams.get());
  Assign(&stay.before, state.facts[kIdle]);
  Assign(&stay.shown, group[kShown]);
  stay.running = 1;
  stay.holds = 0;
  return Set(group.self, of_group::state, group[kStaged]) &&
         PyDict_SetItem(group[kStagedGroups], group.self, Py_None) == 0 &&
         group.Show(kOn);
}

// Passes._end_open. False: it is Python's to do, or failed.
bool EndOpen(const State& state, PyObject* pass) {
  const Ref open = Get(pass, of_pass::open);
  if (!open) return false;
  std::vector<Previous> ending;
  for (Py_ssize_t at = 0; at < PyList_Size(open.get()); ++at) {
    ending.emplace_back(state, PyList_GetItem(open.get(), at));
    if (!ending.back().MayEnd(state)) return false;
  }
  if (ending.empty()) return true;
  const Ref last = Get(pass, of_pass::last);
  if (!last || !Is(last.get(), is_last, Py_True)) return false;
  for (auto at = static_cast<Py_ssize_t>(ending.size()); at-- > 0;) {
    if (PyList_SetSlice(open.get(), at, at + 1, nullptr) != 0 ||
        !ending[static_cast<size_t>(at)].End(state)) {
      return false;
    }
  }
  return true;
}

// Passes.enter, with the turn. The stream: see Stream; none yet.
bool EnterOne(const State& state, Turn* turn, PyObject* pass,
              const Group& group, Ref* stream) {
  if (group.gate == nullptr ||
      !Is(group.self, of_group::state, state.facts[kIdle]) ||
      PyDict_Size(group[kTold]) != 0 || PySet_Size(group[kPointers]) != 0) {
    return false;
  }
  if (!*stream) *stream = Stream(state, group);
  if (!*stream || !EndOpen(state, pass) ||
      !Stage(state, group, stream->get())) {
    return false;
  }
  const Ref sequence = Get(pass, of_pass::sequence);
  if (!Show(state, group, stream->get()) || !sequence ||
      PyList_Append(sequence.get(), group.self) != 0) {
    return false;
  }
  ++turn->depth;
  ++turn->held;
  group.gate->entered = true;
  return true;
}

bool IsResident(const State& state, PyObject* group) {
  const Ref now = Get(group, of_group::state);
  return now && Py_TYPE(now.get()) ==
                    reinterpret_cast<PyTypeObject*>(state.facts[kResident]);
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
  PyObject* const pass = given[1];
  Py_ssize_t entered = 0;
  if (pass != Py_None && IsMine(state, turns) &&
      Is(pass, of_pass::is_plain, Py_True) &&
      Call(state.facts[kIsGradEnabled]).get() == Py_False) {
    const Ref task = Call(state.facts[kGraphTask]);
    Ref stream;
    while (task && PyLong_AsLong(task.get()) < 0 &&
           entered < PyTuple_Size(given[2])) {
      PyObject* const group = PyTuple_GetItem(given[2], entered);
      if (!IsResident(state, group) &&
          !EnterOne(state, AsTurn(turns), pass, Group(state, group), &stream)) {
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
  PyObject* const pass = given[1];
  std::vector<Group> leaving;
  bool may = true;
  for (Py_ssize_t at = 0; at < PyTuple_Size(given[2]); ++at) {
    PyObject* const group = PyTuple_GetItem(given[2], at);
    if (IsResident(state, group)) continue;
    const Group& one = leaving.emplace_back(state, group);
    may = one.gate != nullptr && std::exchange(one.gate->entered, false) &&
          Is(group, of_group::state, one[kStaged]) &&
          AsStay(one[kStaged])->running == 1 && may;
  }
  const auto held = static_cast<Py_ssize_t>(leaving.size());
  if (!may || held == 0 || pass == Py_None || !IsMine(state, turns) ||
      AsTurn(turns)->depth <= held) {
    return Answer(false);
  }
  const Ref open = Get(pass, of_pass::open);
  if (!open || PyList_Size(open.get()) != 0) return Answer(false);
  for (const Group& group : leaving) {
    if (!IsApart(state, *group.gate, given[4])) {
      PyErr_Clear();  // A tensor's; Python gets it again.
      return Answer(false);
    }
  }
  if (!Set(pass, of_pass::last, given[3])) return nullptr;
  for (; !leaving.empty(); leaving.pop_back()) {
    const Group& group = leaving.back();
    if (PyList_Append(open.get(), group.self) != 0) return nullptr;
    AsStay(group[kStaged])->running = 0;
    --AsTurn(turns)->depth;
    --AsTurn(turns)->held;
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
