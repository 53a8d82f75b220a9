"""What stands in and around the modules of an attachment.

Hooks, which call the passes; and what takes the place of methods that would
move, convert, replace or copy weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Iterable, NoReturn

import torch
from torch import nn

from .._errors import FailedPrecondition
from ._eager import eager
from ._lent import own_output
from ._live import LiveGroup
from ._move import device_of, to_device
from ._passes import Passes
from ._tree import Tree


def renew_lists(modules: Iterable[nn.Module]) -> None:
    """torch's recurrent modules keep lists of their weights, which they renew
    in forward: too late for what is let go of, or copied, before."""
    for module in modules:
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()


def do_nothing() -> None:
    """In place of a module's flatten_parameters."""


def refuse_pickling(protocol: Any) -> NoReturn:
    """In place of a module's __reduce_ex__."""
    raise FailedPrecondition(
        "a module whose weights live in hoist cannot be pickled; save its "
        "state_dict(), or hoist.detach(module) first")


class NotCopied:
    """A module that is copied or pickled has what it holds copied or
    pickled."""

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise FailedPrecondition(
            "a module whose weights live in hoist cannot be copied; load a "
            "second one (it shares the weights), or hoist.detach(module) first")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_pickling(protocol)


@dataclasses.dataclass
class Hook(NotCopied):
    """Torch looks up whether a hook takes keywords when it calls it: one that
    another thread has removed meanwhile is called without."""

    passes: Passes
    removed: bool = dataclasses.field(default=False, kw_only=True)


@dataclasses.dataclass
class Begin(Hook):
    groups: list[LiveGroup]
    # Where the inputs were, of each running call that had them moved.
    came_from: list[torch.device] = dataclasses.field(default_factory=list)

    @eager
    def __call__(self, module: nn.Module, args: Any, kwargs: Any = None) -> Any:
        if self.removed:
            return None
        for group in self.groups:
            self.passes.enter(group)
        if not self.passes.moves_inputs:
            return None
        device = self.groups[0].part.torch_device
        self.came_from.append(device_of((args, kwargs)) or
                              self.passes.parts[0].torch_device)
        return self.passes.move_inputs(args, kwargs, device)


@dataclasses.dataclass
class End(Hook):
    begin: Begin

    @eager
    def __call__(self, module: nn.Module, args: Any, kwargs: Any,
                 output: Any = None) -> Any:
        if self.removed:
            return None
        with contextlib.ExitStack() as stack:  # All, whichever of them fails.
            for group in self.begin.groups:
                stack.callback(self.passes.leave, group)
            found = output
            for group in self.begin.groups:
                found = own_output(found, group.is_lent)
        if self.begin.came_from:
            back = self.begin.came_from.pop()
            if output is not None:
                return to_device(found, back)
        return None if found is output else found


class BeginPass(Hook):
    """Compiled code goes past it where nothing comes and goes."""

    def __call__(self, module: nn.Module, args: Any, kwargs: Any = None) -> Any:
        if self.passes.stands and torch.compiler.is_compiling():
            return None
        return self._begin(args, kwargs)

    @eager
    def _begin(self, args: Any, kwargs: Any) -> Any:
        return None if self.removed else self.passes.begin(args, kwargs)


class EndPass(Hook):
    def __call__(self, module: nn.Module, args: Any, kwargs: Any,
                 output: Any = None) -> Any:
        if self.passes.stands and torch.compiler.is_compiling():
            return None
        return self._end(output)

    @eager
    def _end(self, output: Any) -> Any:
        return None if self.removed else self.passes.end(output)


@dataclasses.dataclass
class Apply:
    """Stands in for a module's `_apply`, which .to(), .half() and .cuda() go
    through: what hoist holds can only stay what and where it is."""

    tree: Tree
    module: nn.Module

    def __call__(self, fn: Any, recurse: bool = True) -> nn.Module:
        module, tree = self.module, self.tree
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
            tree.note_change()  # Adapters stay where their inputs are.
        return module


@dataclasses.dataclass
class LoadStateDict:
    """Before a module's part of a state_dict is copied into its weights, which
    torch would refuse with a message for each, or skip if they are on meta."""

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
    """After a module's part of a state_dict was made: another thread may be in
    the middle of a pass, and the weight a view of memory that is refilled."""

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
    """All that stands in one attached tree. What stays on the device has no
    hooks.

    Threads: one at a time; the attachment's lock. Others may be calling.
    """

    def __init__(self, root: nn.Module, groups: list[LiveGroup], tree: Tree,
                 watch: Callable[[bool], None]) -> None:
        """watch: what comes to the tree from now on is to be told, or not."""
        self._root = root
        self._groups = groups
        self._tree = tree
        self._watch = watch
        self._watches = True  # The tree is looked at just before.
        self._passes: Passes | None = None
        self._handles: list[Any] = []
        self._pass = _Pair()
        self._calls: dict[nn.Module, _Pair] = {}  # Of groups' modules.

    def install(self, passes: Passes) -> None:
        """From here on forwards go through the passes."""
        self._passes = passes
        self.renew()
        for module in self._stood_in():
            vars(module)["_apply"] = Apply(self._tree, module)
            # Pickling would meet the hooks first, and blame those.
            vars(module)["__reduce_ex__"] = refuse_pickling
            # As register_load_state_dict_pre_hook, which came with torch 2.5.
            self._handles.append(module._register_load_state_dict_pre_hook(
                LoadStateDict(self._tree), with_module=True))
            self._handles.append(module._register_state_dict_hook(
                StateDict(self._tree)))
            if isinstance(module, nn.RNNBase):
                # It would copy its staged weights into memory of its own.
                vars(module)["flatten_parameters"] = do_nothing

    def renew(self) -> None:
        """Other groups stay on the device than before: hooks stand where a call
        still has something to wait for."""
        assert self._passes is not None
        triggers: dict[nn.Module, list[LiveGroup]] = {}
        for group in self._groups:
            # Between devices inputs are to be moved.
            if not group.bound or len(self._passes.parts) > 1:
                for trigger in group.spec.triggers:
                    triggers.setdefault(trigger, []).append(group)
        for module, pair in list(self._calls.items()):
            if triggers.get(module) != pair.groups:
                self._calls.pop(module).remove()
        for module, groups in triggers.items():
            if module not in self._calls:
                begin = Begin(self._passes, groups)
                self._calls[module] = _Pair(
                    module, begin, End(self._passes, begin), groups)
        # Where nothing comes and goes, weights that come later are where their
        # maker put them, as in any module.
        watches = not self._passes.stands
        if watches and not self._watches:
            self._tree.note_change()
        self._watches = watches
        self._watch(watches)
        # Last, so that it comes before a group's that has the same module.
        self._pass.remove()
        if self._passes.needs_root:
            self.hook_root()
        renew_lists(self._tree.modules)

    def hook_root(self) -> None:
        """The next pass goes through the passes. Threads: any."""
        if self._passes is not None and not self._pass.stands:
            self._pass = _Pair(self._root, BeginPass(self._passes),
                               EndPass(self._passes))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for pair in self._calls.values():
            pair.remove()
        self._calls = {}
        self._pass.remove()
        self._passes = None
        for module in self._stood_in():
            for name in ("_apply", "__reduce_ex__", "flatten_parameters"):
                vars(module).pop(name, None)

    def _stood_in(self) -> set[nn.Module]:
        return {self._root, *self._tree.modules}

    # What Passes asks of its surroundings.

    @property
    def changed(self) -> bool:
        return self._tree.changed

    def before_pass(self) -> None:
        if self._tree.changed:
            self._tree.admit()
            self._watch(self._watches)

    def bring(self, group: LiveGroup) -> None:
        for weight in group.spec.weights:
            for place in weight.places:
                if place.module not in group.spec.triggers:
                    group.spec.triggers.append(place.module)
        self.renew()

    def forget_calls(self) -> None:
        for pair in self._calls.values():
            pair.begin.came_from.clear()


class _Pair:
    """A hook before a module's calls, and one after them; or none."""

    def __init__(self, module: nn.Module | None = None, begin: Any = None,
                 end: Any = None, groups: list[LiveGroup] | None = None
                 ) -> None:
        self.begin, self.end, self.groups = begin, end, groups
        self._handles = [] if module is None else [
            module.register_forward_pre_hook(begin, prepend=True,
                                             with_kwargs=True),
            module.register_forward_hook(end, with_kwargs=True,
                                         always_call=True)]

    @property
    def stands(self) -> bool:
        return bool(self._handles)

    def remove(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        if handles:
            self.begin.removed = self.end.removed = True
