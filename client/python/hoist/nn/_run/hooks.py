"""Hooks and replaced methods of an attachment's modules.

Hooks call the passes. Replacements stand for methods that would move, convert,
replace or copy weights.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import weakref
from typing import Any, Callable, Iterable, NoReturn

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from ... import _hot
from ..._eager import eager, inlined
from ..._errors import FailedPrecondition
from .._graph.compiled import calls_from_here, is_there, may_be_there
from .._graph.operators import done, keeps_weights_in_place, stage
from .._show.group import Group
from .._show.tree import Tree, ways_to
from .._tensors.lent import own_output
from .._tree.others import Modules
from .calls import Call
from .move import device_of, to_device
from .passes import Passes
from .refusals import refuse_past_hooks


def renew_lists(modules: Iterable[nn.Module]) -> None:
    """torch's recurrent modules renew lists of their weights in forward: too
    late for weights that are released, or copied, before."""
    for module in modules:
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()


def do_nothing() -> None:
    """Replaces a module's flatten_parameters."""


def refuse_copies(_: Any) -> NoReturn:
    """Replaces a module's __reduce_ex__, which both copy and pickle call."""
    raise FailedPrecondition(
        "a module whose weights live in hoist cannot be copied or pickled: "
        "attach it with exclude= what is to be copied (a head that peft has "
        "among its modules_to_save), load a second one (it shares the "
        "weights), save its state_dict(), or hoist.detach(module) first")


class NotCopied:
    """Refuses copies, also those of a module with this as an attribute."""

    def __deepcopy__(self, memo: Any) -> NoReturn:
        refuse_copies(memo)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_copies(protocol)


@dataclasses.dataclass
class Hook(NotCopied, *_hot.fields("Hook")):  # type: ignore[misc]
    """Torch looks up whether a hook takes keywords when it calls it: a hook
    that another thread has just removed is called without."""

    passes: Passes
    # (A default would hide the field.)
    removed: bool = dataclasses.field(default_factory=bool, kw_only=True)


@dataclasses.dataclass
class Begin(Hook):
    groups: list[Group]
    call: Call = dataclasses.field(default_factory=Call)
    # The device of the inputs of each running call that moved them.
    came_from: list[torch.device] = dataclasses.field(default_factory=list)

    def front(self) -> Any:
        """What eager code calls: itself, or the common way in C."""
        gates = self.passes.gates
        return self if gates is None else gates.Entry(
            self, self.passes, tuple(self.groups), self.call)

    @inlined
    def __call__(self, module: nn.Module, args: Any, kwargs: Any = None) -> Any:
        if (self.passes.graph.active and torch.compiler.is_compiling()
                and self.are_operators()):
            for group in self.groups:
                stage(group.operands)
            return None
        return self._begin(args, kwargs)

    def are_operators(self) -> bool:
        """In code that is being compiled for the pass's one graph, this hook and
        the one after the call are operators."""
        for group in self.groups:
            if group.operands is None:
                return False
        return keeps_weights_in_place()

    @eager
    def _begin(self, args: Any, kwargs: Any, entered: int = 0) -> Any:
        """entered: the first groups, so many, in C."""
        if self.removed:
            return None
        passes = self.passes
        for group in self.groups[entered:]:
            passes.enter(group, self.call)
        if not passes.moves_inputs:
            return None
        device = self.groups[0].part.torch_device
        self.came_from.append(device_of((args, kwargs)) or
                              passes.parts[0].torch_device)
        return passes.move_inputs(args, kwargs, device)


@dataclasses.dataclass
class End(Hook):
    begin: Begin

    def front(self) -> Any:
        """See Begin."""
        gates = self.passes.gates
        return self if gates is None else gates.Exit(
            self, self.passes, tuple(self.begin.groups), self.begin.call)

    @inlined
    def __call__(self, module: nn.Module, args: Any, kwargs: Any,
                 output: Any = None) -> Any:
        if (self.passes.graph.active and torch.compiler.is_compiling()
                and self.begin.are_operators()):
            outputs = [one for one in tree_leaves(output)
                       if isinstance(one, torch.Tensor)]
            last = not self.begin.call.is_followed
            for group in self.begin.groups:
                done(group.operands, outputs, last)
            return None
        return self._end(output)

    @eager
    def _end(self, output: Any) -> Any:
        if self.removed:
            return None
        begin = self.begin
        passes = self.passes
        found = output
        back = begin.came_from.pop() if begin.came_from else None
        try:
            for group in begin.groups:
                if not isinstance(found, torch.Tensor):
                    found = own_output(found, group.is_lent)
                elif group.is_lent(found):
                    found = found.clone()
                if torch.is_grad_enabled():
                    refuse_past_hooks(group, output)
        finally:
            if len(begin.groups) == 1:
                passes.leave(begin.groups[0], begin.call)
            else:
                self._leave(begin.groups)
        if back is not None and output is not None:
            return to_device(found, back)
        return None if found is output else found

    def _leave(self, groups: list[Group]) -> None:
        """Leaves all of them, even if some fail."""
        if not groups:
            return
        try:
            self.passes.leave(groups[-1], self.begin.call)
        finally:
            self._leave(groups[:-1])


@dataclasses.dataclass
class CompiledRoot(NotCopied):
    """Replaces the root's compiled call, which module.compile() has set: it
    wraps compiled code that includes the root's hooks."""

    passes: Passes
    root: nn.Module
    instead_of: Any
    removed: bool = False
    runs: bool = False  # A pass that has begun here, in this thread:
    thread: int = 0

    @eager
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        me = threading.get_ident()
        if self.removed or not self.passes.needs_root or (
                self.runs and self.thread == me):
            return self.instead_of(*args, **kwargs)
        output = None
        replaced = self.passes.begin(args, kwargs, compiled=True)
        self.runs, self.thread = True, me
        try:
            if replaced is not None:
                args, kwargs = replaced
            output = self.instead_of(*args, **kwargs)
        finally:
            self.runs = False
            returned = self.passes.end(output)
        return output if returned is None else returned

    def remove(self) -> None:
        self.removed = True
        if vars(self.root).get("_compiled_call_impl") is self:
            vars(self.root)["_compiled_call_impl"] = self.instead_of


@dataclasses.dataclass
class Compile:
    """Replaces the root's compile(), which sets its call."""

    root: nn.Module
    then: Callable[[], None]

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        type(self.root).compile(self.root, *args, **kwargs)
        self.then()


@dataclasses.dataclass
class BeginPass(Hook):
    """Compiled code skips it if all groups are bound."""

    around: CompiledRoot | None  # Begins the pass instead, if it runs.

    @inlined
    def __call__(self, module: nn.Module, args: Any, kwargs: Any = None) -> Any:
        if self.around is not None and self.around.runs:
            return None
        if self.passes.stands and torch.compiler.is_compiling():
            if self.has_operators():
                stage(self.passes.in_place.operands)  # type: ignore[union-attr]
            return None
        replaced = self._begin(args, kwargs, calls_from_here())
        self.passes.graph.pause.hold_back()
        return replaced

    def has_operators(self) -> bool:
        """In code that is being compiled, an operator moves pieces in place.
        Without it they stay where they are, which is right for any code."""
        in_place = self.passes.in_place
        return (in_place is not None and in_place.operands is not None
                and not torch.is_grad_enabled() and keeps_weights_in_place())

    @eager
    def _begin(self, args: Any, kwargs: Any, compiled: bool) -> Any:
        if self.removed:
            return None
        return self.passes.begin(args, kwargs, compiled)


@dataclasses.dataclass
class EndPass(Hook):
    begin: BeginPass

    @inlined
    def __call__(self, module: nn.Module, args: Any, kwargs: Any,
                 output: Any = None) -> Any:
        if self.begin.around is not None and self.begin.around.runs:
            return None
        if self.passes.stands and torch.compiler.is_compiling():
            if self.begin.has_operators():
                done(self.passes.in_place.operands,  # type: ignore[union-attr]
                     [one for one in tree_leaves(output)
                      if isinstance(one, torch.Tensor)], last=True)
            return None
        replaced = self._end(output)
        self.passes.graph.pause.release()
        return replaced

    @eager
    def _end(self, output: Any) -> Any:
        return None if self.removed else self.passes.end(output)


@dataclasses.dataclass
class Apply:
    """Replaces a module's `_apply`, the base of .to(), .half() and .cuda():
    weights of hoist's can only keep their device and type."""

    tree: Tree
    of: weakref.ref[nn.Module]  # The module with this call.

    def __call__(self, fn: Any, recurse: bool = True) -> nn.Module:
        module, tree = self.of(), self.tree
        assert module is not None
        kept: list[tuple[dict[str, Any], str, Any]] = []
        for holder in (module._parameters, module._buffers):
            for key, value in holder.items():
                if value is not None and tree.manages(module, key):
                    _refuse_conversion(fn, value.dtype, tree.device)
                    kept.append((holder, key, value))
        for holder, key, _ in kept:
            holder[key] = None
        try:
            type(module)._apply(module, fn, recurse)
        finally:
            for holder, key, value in kept:
                holder[key] = value
            renew_lists([module])
            tree.note_change()  # Adapters stay on their inputs' device.
        return module


@dataclasses.dataclass
class LoadStateDict:
    """Before a module's part of a state_dict is copied into its weights: torch
    would refuse each with a message, or skip those on meta."""

    tree: Tree

    def __call__(self, module: nn.Module, state: Any, prefix: str,
                 *_: Any) -> None:
        for holder in (module._parameters, module._buffers):
            for key in holder:
                if prefix + key in state and self.tree.shares(module, key):
                    raise FailedPrecondition(
                        f'"{prefix + key}" lives in hoist, where it is shared '
                        "and read-only; hoist.detach(module) before "
                        "load_state_dict, or leave it out of the state_dict")


@dataclasses.dataclass
class StateDict:
    """After a module's part of a state_dict was made: during another thread's
    pass a weight is a view of memory that is refilled."""

    tree: Tree

    def __call__(self, module: nn.Module, state: Any, prefix: str,
                 *_: Any) -> None:
        for key, value in self.tree.idle_values(module).items():
            found = state.get(prefix + key)
            if isinstance(found, torch.Tensor):
                state[prefix + key] = (value if isinstance(found, nn.Parameter)
                                       else value.detach())


def _refuse_conversion(fn: Any, dtype: torch.dtype,
                       device: torch.device) -> None:
    probe = torch.empty(0, dtype=dtype, device=device)
    made = fn(probe)
    if made.dtype != dtype or made.device != device:
        raise FailedPrecondition(
            f"the module's weights live in hoist, which stages them as {dtype} "
            f"on {device}; they cannot become {made.dtype} on {made.device}. "
            "hoist.detach(module) first, or attach with storage_dtype=, or "
            "load with dtype=")


class Hooks:
    """All hooks and replacements of one attached tree. Bound groups have no
    hooks.

    Threads: one at a time; the attachment's lock. Others may be calling.
    """

    def __init__(self, root: nn.Module, groups: list[Group], tree: Tree,
                 watch: Callable[[bool], None]) -> None:
        """watch: turns reports of additions to the tree on or off."""
        self._root = root
        self._groups = groups
        self._tree = tree
        self._watch = watch
        self._watches = True  # The tree was visited just before.
        self._passes: Passes | None = None
        self._compiled: CompiledRoot | None = None
        self._ways: Modules | None = None  # From the root to calls.
        self._handles: list[Any] = []
        self._pass = _Pair()
        self._traced = False  # The hooks are those for compiled code.
        # By module with groups.
        self._calls: weakref.WeakKeyDictionary[nn.Module, _Pair] = (
            weakref.WeakKeyDictionary())

    def install(self, passes: Passes) -> None:
        """Routes forwards through the passes."""
        self._passes = passes
        self._stand_around_compiled()
        vars(self._root)["compile"] = Compile(self._root,
                                              self._stand_around_compiled)
        self.renew()
        for module in self._stood_in():
            vars(module)["_apply"] = Apply(self._tree, weakref.ref(module))
            # Pickling would meet the hooks first, and blame those.
            vars(module)["__reduce_ex__"] = refuse_copies
            # register_load_state_dict_pre_hook came with torch 2.5.
            self._handles.append(module._register_load_state_dict_pre_hook(
                LoadStateDict(self._tree), with_module=True))
            self._handles.append(module._register_state_dict_hook(
                StateDict(self._tree)))
            if isinstance(module, nn.RNNBase):
                # It would copy its staged weights into memory of its own.
                vars(module)["flatten_parameters"] = do_nothing

    def renew(self, all_groups: bool = False) -> None:
        """Bound groups have changed: sets hooks where calls have work to do, or
        on all groups."""
        assert self._passes is not None
        self._ways = None
        triggers: dict[nn.Module, list[Group]] = {}
        for group in self._groups:
            # With several devices inputs have to move.
            if (all_groups or not group.bound
                    or len(self._passes.parts) > 1):
                for trigger in group.spec.triggers:
                    triggers.setdefault(trigger, []).append(group)
        for module, pair in list(self._calls.items()):
            if triggers.get(module) != pair.groups:
                self._calls.pop(module).remove()
        for module, groups in triggers.items():
            if module not in self._calls:
                begin = Begin(self._passes, groups)
                pair = self._calls[module] = _Pair(
                    module, begin, End(self._passes, begin), groups)
                self._put(module, pair)
        # If all groups are bound, later weights stay where they were made, as
        # in any module.
        watches = not self._passes.stands
        if watches and not self._watches:
            self._tree.note_change()
        self._watches = watches
        self._watch(watches)
        # Last, so that it precedes a group's hook on the same module.
        self._pass.remove()
        if self._passes.needs_root:
            self.hook_root()
        renew_lists(self._tree.modules)

    def hook_root(self) -> None:
        """Hooks the next pass. Threads: any."""
        if self._passes is not None and not self._pass.stands:
            begin = BeginPass(self._passes, self._compiled)
            self._pass = _Pair(self._root, begin, EndPass(self._passes, begin))
            self._pass.put(traced=True)

    def _stand_around_compiled(self) -> None:
        """The root's call may have been compiled in place."""
        before = vars(self._root).get("_compiled_call_impl")
        if self._passes is None or before is None or hasattr(
                before, "instead_of"):
            return
        self._compiled = CompiledRoot(self._passes, self._root, before)
        vars(self._root)["_compiled_call_impl"] = self._compiled
        if self._pass.stands:
            self._pass.remove()
            self.hook_root()

    def remove(self) -> None:
        if self._passes is None:
            return  # Never installed, or removed.
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for pair in list(self._calls.values()):
            pair.remove()
        self._calls.clear()
        self._pass.remove()
        if self._compiled is not None:
            self._compiled.remove()
        self._passes = self._compiled = None
        for module in self._stood_in():
            for name in ("_apply", "__reduce_ex__", "flatten_parameters",
                         "compile"):
                vars(module).pop(name, None)

    def _stood_in(self) -> set[nn.Module]:
        return {self._root, *self._tree.modules}

    # For Passes: its Surroundings.

    @property
    def changed(self) -> bool:
        return self._tree.changed

    def is_compiled(self) -> bool:
        if not may_be_there():
            return False
        if self._ways is None:
            self._ways = Modules(ways_to(self._root, {*self._calls}))
        return is_there(self._ways)

    def trace(self, traced: bool) -> None:
        if traced == self._traced:
            return
        self._traced = traced
        for module, pair in self._calls.items():
            self._put(module, pair)

    def _put(self, module: nn.Module, pair: _Pair) -> None:
        # Code of the root's call has read its hooks before a pass begins.
        pair.put(self._traced or module is self._root)

    def trains(self) -> bool:
        return self._tree.trains()

    def before_pass(self) -> None:
        if self._tree.changed:
            self._ways = None
            self._tree.admit()
            self._watch(self._watches)

    def bring(self, group: Group) -> None:
        for weight in group.spec.weights:
            for place in weight.places:
                if place.module is not None:
                    group.spec.triggers.add(place.module)
        self.renew()

    def forget_calls(self) -> None:
        for pair in list(self._calls.values()):
            pair.begin.came_from.clear()


class _Pair:
    """A hook before a module's calls, and one after them; or none.

    Keys are the same in each module: torch.compile guards keys, and different
    ones would keep equal blocks from sharing code.
    """

    def __init__(self, module: nn.Module | None = None, begin: Any = None,
                 end: Any = None, groups: list[Group] | None = None
                 ) -> None:
        """groups: those that the module needs; None: the pair of a pass."""
        self.begin, self.end, self.groups = begin, end, groups
        self._module = None if module is None else weakref.ref(module)
        self._key = _KEY_OF_PASSES if groups is None else _KEY_OF_GROUPS
        if module is not None:
            module._forward_pre_hooks_with_kwargs[self._key] = True
            module._forward_hooks_with_kwargs[self._key] = True
            module._forward_hooks_always_called[self._key] = True

    def put(self, traced: bool) -> None:
        """traced: torch.compile may read the hooks, which it does in Python."""
        module = None if self._module is None else self._module()
        if module is None:
            return
        before: Any = module._forward_pre_hooks
        is_new = self._key not in before
        before[self._key] = self.begin if traced else self.begin.front()
        if is_new:
            before.move_to_end(self._key, last=False)
        module._forward_hooks[self._key] = (self.end if traced else
                                            self.end.front())

    @property
    def stands(self) -> bool:
        return self._module is not None

    def remove(self) -> None:
        if self._module is None:
            return
        module, self._module = self._module(), None
        self.begin.removed = self.end.removed = True
        if module is None:
            return
        for hooks in (module._forward_pre_hooks, module._forward_hooks,
                      module._forward_pre_hooks_with_kwargs,
                      module._forward_hooks_with_kwargs,
                      module._forward_hooks_always_called):
            hooks.pop(self._key, None)


def _new_key() -> int:
    """A key that no other hook has."""
    return int(RemovableHandle(collections.OrderedDict()).id)


_KEY_OF_PASSES = _new_key()
_KEY_OF_GROUPS = _new_key()
