// The common ways into a module's groups and out of them, in one call each:
// torch calls an Entry or an Exit. hoist.nn has every way in Python
// (Passes.enter, Passes.leave, Group.stage, Group.end), which these call for
// others. A group that is not entered or left here is Python's to do, and is as
// it was; the groups before may have ended, as they would have.
#include <algorithm>
#include <span>
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
Name begin("_begin"), end("_end");  // Of a hook.
Name put("_put");                   // Of a binding.
Name explained("explained");        // Of a part.
Name data_ptr("data_ptr");          // Of a tensor.

void Assign(PyObject** field, PyObject* value) {
  const Ref last(std::exchange(*field, Py_NewRef(value)));
}

Ref Call(PyObject* function) { return Ref(PyObject_CallNoArgs(function)); }

Ref Call(PyObject* function, PyObject* first, PyObject* second = nullptr) {
  return Ref(PyObject_CallFunctionObjArgs(function, first, second, nullptr));
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

  std::span<const Place> Places() const {
    return {
        reinterpret_cast<const Place*>(PyBytes_AsString((*this)[kPlaces])),
        static_cast<size_t>(PyBytes_Size((*this)[kPlaces])) / sizeof(Place)};
  }

  // Put() between kOff and kOn, in fewer places of memory.
  int PutPlaces(bool on) const {
    for (const Place& one : Places()) {
      PyObject* const there = PyDict_GetItemWithError(one.holder, one.key);
      if (there == nullptr && PyErr_Occurred() != nullptr) return -1;
      if (there != (on ? one.off : one.on)) return 0;
    }
    for (const Place& one : Places()) {
      if (PyDict_SetItem(one.holder, one.key, on ? one.on : one.off) != 0) {
        return -1;
      }
    }
    return 1;
  }

  // The lists may have grown since.
  bool HavePlaces() const {
    const auto count = static_cast<Py_ssize_t>(Places().size());
    return count == PyList_Size((*this)[kOff]) &&
           count == PyList_Size((*this)[kOn]);
  }

  // Binding._put, of all of them.
  bool Show(Kept swaps) const {
    const bool on = swaps == kOn;
    const int there = Shown().on == (*this)[on ? kOff : kOn] && HavePlaces()
                          ? PutPlaces(on)
                          : Put(Shown().on, (*this)[swaps]);
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

// How many of the groups are entered; the others are Python's. -1: an
// exception.
Py_ssize_t EnterAll(const State& state, PyObject* turns, PyObject* current,
                    PyObject* groups) {
  const PassFields* const pass = PassOf(state, current);
  Py_ssize_t entered = 0;
  if (pass != nullptr && pass->is_plain && IsMine(state, turns) &&
      Call(state.facts[kIsGradEnabled]).get() == Py_False) {
    const Ref task = Call(state.facts[kGraphTask]);
    Ref stream;
    while (task && PyLong_AsLong(task.get()) < 0 &&
           entered < PyTuple_Size(groups)) {
      const Group group(state, PyTuple_GetItem(groups, entered));
      if (!group.IsResident(state) &&
          !EnterOne(state, &As<TurnsFields>(turns), *pass, group, &stream)) {
        break;
      }
      ++entered;
    }
  }
  return PyErr_Occurred() != nullptr ? -1 : entered;
}

// Whether none of its tensors is over the groups' bytes, as far as is seen.
bool IsApart(const State& state, const std::vector<Group>& groups,
             PyObject* output) {
  if (output == Py_None) return true;
  if (PyTuple_CheckExact(output)) {
    for (Py_ssize_t at = 0; at < PyTuple_Size(output); ++at) {
      if (!IsApart(state, groups, PyTuple_GetItem(output, at))) return false;
    }
    return true;
  }
  if (!PyObject_TypeCheck(
          output, reinterpret_cast<PyTypeObject*>(state.facts[kTensor]))) {
    return false;
  }
  const Ref there(PyObject_CallMethodObjArgs(output, data_ptr.get(), nullptr));
  const size_t address = there ? PyLong_AsSize_t(there.get()) : 0;
  if (PyErr_Occurred() != nullptr) return false;
  return std::none_of(groups.begin(), groups.end(), [&](const Group& group) {
    return address - group.gate->address < group.gate->bytes;
  });
}

// Leaves all of the groups, or none. Also false with an exception.
bool LeaveAll(const State& state, PyObject* turns, PyObject* current,
              const Front& front, PyObject* output) {
  PassFields* const pass = PassOf(state, current);
  std::vector<Group> leaving;
  bool may = true;
  for (Py_ssize_t at = 0; at < PyTuple_Size(front.groups); ++at) {
    Group group(state, PyTuple_GetItem(front.groups, at));
    if (group.IsResident(state)) continue;
    may = group.gate != nullptr && std::exchange(group.gate->entered, false) &&
          group.fields->state == group[kStaged] &&
          As<StagedFields>(group[kStaged]).running == 1 && may;
    leaving.push_back(std::move(group));
  }
  const auto held = static_cast<Py_ssize_t>(leaving.size());
  if (!may || held == 0 || pass == nullptr || !IsMine(state, turns) ||
      As<TurnsFields>(turns).depth <= held || PyList_Size(pass->open) != 0) {
    return false;
  }
  if (!IsApart(state, leaving, output)) {
    PyErr_Clear();  // A tensor's; Python gets it again.
    return false;
  }
  Assign(&pass->last, front.call);
  for (; !leaving.empty(); leaving.pop_back()) {
    const Group& group = leaving.back();
    if (PyList_Append(pass->open, group.self.get()) != 0) return false;
    As<StagedFields>(group[kStaged]).running = 0;
    --As<TurnsFields>(turns).depth;
    --As<TurnsFields>(turns).held;
  }
  return true;
}

// A front's call, as far as both kinds have it in common.
struct Called {
  explicit Called(PyObject* self)
      : front(As<Front>(self)),
        state(*static_cast<State*>(PyType_GetModuleState(Py_TYPE(self)))),
        turns(Py_XNewRef(As<PassesFields>(front.passes).turns)),
        current(Py_XNewRef(As<PassesFields>(front.passes).current)) {}

  // These are not a hook's arguments, so many: torch takes a hook that was just
  // removed for one without keywords.
  bool IsUnusual(PyObject* given, PyObject* keywords, Py_ssize_t usual) const {
    return PyTuple_Size(given) != usual ||
           (keywords != nullptr && PyDict_Size(keywords) != 0);
  }

  bool IsRemoved() const { return As<HookFields>(front.hook).removed != 0; }

  const Front& front;
  const State& state;
  const Ref turns, current;
};

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

// A hook before a module's call: (module, args, kwargs).
PyObject* Enter(PyObject* self, PyObject* given, PyObject* keywords) {
  const Called called(self);
  const Front& front = called.front;
  if (called.IsUnusual(given, keywords, 3)) {
    return PyObject_Call(front.hook, given, keywords);
  }
  if (called.IsRemoved()) Py_RETURN_NONE;
  const Py_ssize_t entered = EnterAll(called.state, called.turns.get(),
                                      called.current.get(), front.groups);
  if (entered < 0) return nullptr;
  if (entered == PyTuple_Size(front.groups)) Py_RETURN_NONE;
  const Ref count(PyLong_FromSsize_t(entered));
  return PyObject_CallMethodObjArgs(
      front.hook, begin.get(), PyTuple_GetItem(given, 1),
      PyTuple_GetItem(given, 2), count.get(), nullptr);
}

// One after it: (module, args, kwargs, output).
PyObject* Leave(PyObject* self, PyObject* given, PyObject* keywords) {
  const Called called(self);
  const Front& front = called.front;
  if (called.IsUnusual(given, keywords, 4)) {
    return PyObject_Call(front.hook, given, keywords);
  }
  PyObject* const output = PyTuple_GetItem(given, 3);
  if (called.IsRemoved() || LeaveAll(called.state, called.turns.get(),
                                     called.current.get(), front, output)) {
    Py_RETURN_NONE;
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  return PyObject_CallMethodObjArgs(front.hook, end.get(), output, nullptr);
}

PyMethodDef gate_methods[] = {{"know", Erased(Know), METH_FASTCALL, nullptr},
                              {}};

}  // namespace hoist::fast
