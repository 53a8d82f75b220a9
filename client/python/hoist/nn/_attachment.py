"""A module under hoist: hooks, passes, and what undoes them.

A forward enters here and leaves here. Before a module that a group belongs to
runs, the group is staged on the worker's stream and its weights are put into
the module; in a pass of the root module it is ended when another group's turn
comes (a layer that is called twice in a row is staged once), else when the
module is done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import types
import weakref
from typing import Any, Iterator, NoReturn

import torch
from torch import nn

from .. import _session
from .._errors import FailedPrecondition, NotFound, ResourceExhausted
from .._model import Model
from ._hooks import (Apply, Begin, BeginPass, End, EndPass, LoadStateDict,
                     do_nothing, forget, know, renew_lists,
                     watch_registrations)
from ._idle import Shelf
from ._live import DevicePart, Held, LiveGroup
from ._move import device_of, to_device
from ._stats import AttachStats


log = logging.getLogger("hoist.nn")


class Attachment:
    """The link between a module tree and hoistd.

    Threads: any may call the module; passes of several threads take turns,
    while the GPU work that they queue does not.
    """

    model: Model  # As it is staged.
    original: Model  # With the weights as they were; often the same.

    def __init__(self, root: nn.Module, session: _session.Session, idle: str,
                 exclude_kwargs: frozenset[str]) -> None:
        self.root = root
        self.session = session
        self.idle = idle
        self.parts: list[DevicePart] = []
        self.groups: list[LiveGroup] = []
        self.shelf = Shelf()
        self.devices: dict[str, torch.device] = {}  # Of stored tensors, before.
        self.excluded: set[nn.Module] = set()
        self.wanted: Any = None  # As attach was called.
        self.learns = False  # The order of the groups.
        self._exclude_kwargs = exclude_kwargs
        self._lock = threading.RLock()
        self._passes = 0
        self._held = 0  # Times that running modules took the lock.
        self._owner = 0  # The thread that took it.
        self._pass_depth = 0
        self._running = 0  # Modules that are running and have groups.
        self._open: LiveGroup | None = None  # Staged, and nobody runs in it.
        self._shown: list[LiveGroup] = []  # idle="slot": shown in this pass.
        self._return_to: torch.device | None = None
        self._handles: list[Any] = []
        self._keeps_shown = False  # idle="slot", after a pass that shows it.
        self._brought: set[LiveGroup] = set()  # By more modules than planned.
        self._sequence: list[LiveGroup] = []  # What this pass has staged.
        self._process = os.getpid()
        self._at_collection: Any = None
        self._begins: dict[nn.Module, Begin] = {}  # Of modules with groups.
        self._managed: dict[nn.Module, set[str]] = {}
        self._changed = False  # The tree has modules or weights we do not know.

    # Set-up and its undoing.

    def install(self) -> None:
        """Hooks the modules; from here on forwards come through here."""
        triggers: dict[nn.Module, list[LiveGroup]] = {}
        for group in self.groups:
            for weight in group.spec.weights:
                for place in weight.places:
                    self._managed.setdefault(place.module, set()).add(place.key)
            for trigger in group.spec.triggers:
                triggers.setdefault(trigger, []).append(group)
        for module, groups in triggers.items():
            begin = Begin(self, groups)
            self._hook(module, begin, End(self, begin))
            self._begins[module] = begin
        # Last, so that it comes before a group's that has the same module.
        self._hook(self.root, BeginPass(self), EndPass(self))
        for module in {self.root, *self._managed}:
            vars(module)["_hoist"] = self
            vars(module)["_apply"] = Apply(self, module)
            # Pickling would meet the hooks first, and blame those.
            vars(module)["__reduce_ex__"] = self.__reduce_ex__
            # As register_load_state_dict_pre_hook, which came with torch 2.5.
            self._handles.append(module._register_load_state_dict_pre_hook(
                LoadStateDict(self), with_module=True))
            know(module, self)
            if isinstance(module, nn.RNNBase):
                # It would copy its staged weights into memory of its own.
                vars(module)["flatten_parameters"] = do_nothing
        renew_lists(self._managed)
        watch_registrations()
        # A module that is let go of without detach is collected in any order.
        self._at_collection = weakref.finalize(
            self.root, _give_back, [part.held for part in self.parts])
        self._at_collection.atexit = False

    def _hook(self, module: nn.Module, begin: Any, end: Any) -> None:
        self._handles += [
            module.register_forward_pre_hook(begin, prepend=True,
                                             with_kwargs=True),
            module.register_forward_hook(end, with_kwargs=True,
                                         always_call=True)]

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for module in {self.root, *self._managed}:
            for name in ("_hoist", "_apply", "__reduce_ex__",
                         "flatten_parameters"):
                vars(module).pop(name, None)
            forget(module)
        if self._at_collection is not None:
            self._at_collection.detach()

    def close(self) -> None:
        """Gives hoistd everything back; nothing may be running."""
        with self._lock, contextlib.ExitStack() as stack:
            stack.callback(_give_back, [part.held for part in self.parts])
            for group in self.groups:
                stack.callback(group.end, show_idle=False)
            for part in self.parts:
                if part.torch_device.type == "cuda":
                    torch.cuda.synchronize(part.torch_device)
            self._end_open()

    def detach(self) -> None:
        with self._lock:
            self._refuse_while_running("detach it")
            self._end_open()
            own = [swap for group in self.groups
                   for swap in group.own_weights(self.devices)]
            self.uninstall()
            for holder, key, value in own:
                holder[key] = value
            renew_lists(self._managed)
            self.close()

    # Passes.

    def begin_pass(self, args: Any, kwargs: Any) -> Any:
        self._check_process()
        self._lock.acquire()
        if self._held:
            # Only this thread can be here.
            if self._calls_on_stack(self.root) > 1:
                self._held += 1
                self._pass_depth += 1
                return None  # The module calls itself.
            try:
                self._abandon()
            except BaseException:
                self._lock.release()
                raise
        self._held, self._owner = 1, threading.get_ident()
        self._pass_depth = 1
        if self._changed:
            self._admit()
        self.shelf.seen.clear()
        self._sequence.clear()
        part = self.parts[0]
        self._refuse_training(args, kwargs)
        self._return_to = None
        if part.torch_device.type == "cpu":
            return None
        came_from = device_of((args, kwargs))
        if came_from is not None and came_from != part.torch_device:
            self._return_to = came_from
        return self.move_inputs(args, kwargs, part.torch_device)

    @property
    def moves_inputs(self) -> bool:
        """Of a group's modules: between devices; and into a pass's middle,
        where a caller begins there (generate() with an encoder)."""
        return len(self.parts) > 1 or (
            not self._pass_depth
            and self.parts[0].torch_device.type != "cpu")

    def move_inputs(self, args: Any, kwargs: Any,
                    device: torch.device) -> tuple[Any, Any]:
        kept = {name: kwargs[name] for name in kwargs
                if name in self._exclude_kwargs}
        moved = to_device((args, {name: value for name, value in kwargs.items()
                                  if name not in kept}), device)
        return moved[0], {**moved[1], **kept}

    def end_pass(self, output: Any) -> Any:
        """Returns what is to replace the output; None: nothing."""
        if not self._pass_depth or not self._is_mine():
            return None  # Another hook failed before a pass began.
        if self._pass_depth > 1:
            self._pass_depth -= 1
            self._release()
            return None
        try:
            self._end_open()
            for group in self._shown:
                group.show_idle()
            self._shown.clear()
            if output is None:
                return None  # It failed, or gave nothing: no pass to learn.
            self._passes += 1
            if self.learns:
                self._learn()
            else:
                self._plan_what_came()
            if self.shelf.seen:
                self._bring_what_was_read()
            else:
                # All that reads weights is hooked, as far as a pass can show.
                self._keeps_shown = self.idle == "slot"
            if self._return_to is not None:
                return to_device(output, self._return_to)
            return None
        finally:
            self._pass_depth = 0
            self._release()

    def _learn(self) -> None:
        self.learns = False
        for part in self.parts:
            if part.plan is None or part.is_capturing():
                continue
            if part.plan.end_pass():
                self._forget_addresses(part)
                part.planned = [group for group in self._sequence
                                if group.part is part]
            self.learns |= part.plan.info.learning

    def _bring_what_was_read(self) -> None:
        """A weight that was read idle within a pass belongs to a module that is
        also called from outside its group (diffusers' DiT calls a part of its
        first block at the end): from now on that call brings the group. The
        next pass shows when."""
        for group in self.groups:
            if group.idle not in self.shelf.seen or group in self._brought:
                continue
            self._brought.add(group)
            for weight in group.spec.weights:
                for place in weight.places:
                    if place.module in group.spec.triggers:
                        continue
                    group.spec.triggers.append(place.module)
                    begin = Begin(self, [group])
                    self._hook(place.module, begin, End(self, begin))
            for part in self.parts:
                part.missed = -1  # Whatever comes in the next pass is new.

    def _plan_what_came(self) -> None:
        """Plans anew with this pass's order if it staged what the plan does not
        have; what else the plan has comes last. So each group is planned for
        after the first pass that it comes in. Where hoistd refuses, groups are
        staged without a plan. A plan that a CUDA graph was captured with stays:
        the graph's addresses are its."""
        for part in self.parts:
            if part.plan is None or part.captured:
                continue
            missed = part.plan.stats.unplanned
            if missed == part.missed:
                continue
            part.missed = missed
            came = [group for group in self._sequence if group.part is part
                    and group.staged.image_bytes]
            order = came + [group for group in part.planned
                            if group not in came]
            if not came or order == part.planned:
                continue
            self._forget_addresses(part)
            try:
                part.plan_again(order)
            except ResourceExhausted as error:
                log.warning("%s goes on without a plan: %s", self.model.name,
                            error)

    def _forget_addresses(self, part: DevicePart) -> None:
        for group in self.groups:
            if group.part is part and not group.pinned:
                group.forget_addresses()

    def _abandon(self) -> None:
        """Ends what was cut short (KeyboardInterrupt), when torch calls no
        hooks."""
        with contextlib.ExitStack() as stack:
            while self._held:
                stack.callback(self._lock.release)
                self._held -= 1
            self._open = None
            self._running = 0
            self._shown.clear()
            self._pass_depth = 0
            for begin in self._begins.values():
                begin.came_from.clear()
            for group in self.groups:
                group.depth = 0
                stack.callback(group.show_idle if group.pinned else group.end)

    def _calls_on_stack(self, *modules: nn.Module) -> int:
        """Of these modules, by this thread; 1 at least within compiled code,
        which does not tell."""
        found = 0
        frame: types.FrameType | None = sys._getframe()
        while frame is not None:
            code = frame.f_code
            if code is nn.Module._call_impl.__code__:
                found += any(frame.f_locals["self"] is one for one in modules)
            elif code.co_name.startswith("torch_dynamo_resume"):
                found = max(found, 1)
            frame = frame.f_back
        return found

    def _refuse_while_running(self, what: str) -> None:
        """Under the lock. What was cut short does not run."""
        if self._held and not self._calls_on_stack(self.root, *self._begins):
            self._abandon()
        if self._held:
            raise FailedPrecondition(
                f"the module is running; {what} between passes")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise FailedPrecondition(
                "the module was attached in the process that this one is a "
                "fork of; attach or load it here, after the fork")

    def _acquire(self) -> None:
        self._check_process()
        self._lock.acquire()
        self._held += 1
        self._owner = threading.get_ident()

    def _is_mine(self) -> bool:
        """Whether what is running was begun by this thread."""
        return self._held > 0 and self._owner == threading.get_ident()

    def _release(self) -> None:
        self._held -= 1
        self._lock.release()

    def _refuse_training(self, args: Any, kwargs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                raise FailedPrecondition(
                    "hoist's weights are for inference: gradients would flow "
                    "through memory that later holds other weights; call the "
                    "module under torch.no_grad() or torch.inference_mode()")

    # Groups.

    def enter(self, group: LiveGroup) -> None:
        self._acquire()
        try:
            if group.pinned:
                if group.depth == 0:
                    group.show()
            elif group.depth == 0 and self._open is not group:
                self._end_open()
                # A cast has one place to go to for all groups of the plan.
                group.stage(beside_plan=self._running > 0
                            and group.casts_bytes > 0)
                if self._pass_depth:
                    self._sequence.append(group)
                if self._keeps_shown and self._pass_depth:
                    self._shown.append(group)
        except BaseException:
            self._release()
            raise
        group.depth += 1
        if not group.pinned:
            self._running += 1

    def leave(self, group: LiveGroup) -> None:
        if not group.depth or not self._is_mine():
            return  # It was never entered, or the pass was abandoned.
        group.depth -= 1
        if not group.pinned:
            self._running -= 1
        try:
            if group.pinned:
                self._hide(group)
            elif group.depth == 0 and self._open is not group:
                if self._pass_depth:
                    self._end_open()
                    self._open = group
                else:
                    group.end()
        finally:
            self._release()

    def _hide(self, group: LiveGroup) -> None:
        """A pinned group's weights, once nobody runs in it."""
        if group.depth:
            return
        if self._keeps_shown and self._pass_depth:
            self._shown.append(group)
        else:
            group.show_idle()

    def _end_open(self) -> None:
        group, self._open = self._open, None
        if group is not None and not group.depth:
            group.end(show_idle=group not in self._shown)

    def groups_below(self, modules: set[nn.Module]) -> list[LiveGroup]:
        """Those that any of the modules has weights of."""
        return [group for group in self.groups
                if any(place.module in modules for weight in group.spec.weights
                       for place in weight.places)]

    def groups_named(self, name: str | None) -> list[LiveGroup]:
        """All, or the one of that name."""
        found = [group for group in self.groups
                 if name is None or group.spec.name == name]
        if not found:
            raise NotFound(f'"{self.model.name}" has no group "{name}"')
        return found

    @contextlib.contextmanager
    def staged_beside_the_plan(self,
                               groups: list[LiveGroup]) -> Iterator[None]:
        """By leases of their own, but for those that are staged anyway."""
        with self._lock:
            self._end_open()
            with contextlib.ExitStack() as stack:
                for group in groups:
                    if group.depth:
                        continue
                    if group.pinned:
                        group.show()
                    else:
                        group.stage(beside_plan=True)
                    group.depth += 1
                    stack.callback(self._end_beside_the_plan, group)
                yield

    def _end_beside_the_plan(self, group: LiveGroup) -> None:
        group.depth -= 1
        if group.pinned:
            self._hide(group)
        else:
            group.end()

    # The tree's changes.

    def note_change(self) -> None:
        self._changed = True

    def manages(self, module: nn.Module, name: str) -> bool:
        return name in self._managed.get(module, ())

    def shares(self, module: nn.Module, name: str) -> bool:
        """True where the bytes are hoist's, not the worker's own."""
        return self.manages(module, name) and not any(
            group.is_own_place(module, name) for group in self.groups)

    def _admit(self) -> None:
        """Weights that came after attach (adapters) are the worker's own, and
        are moved to the device that their inputs come on: that of the module
        with groups that they are below, else the root's."""
        self._changed = False
        devices: dict[nn.Module, torch.device] = {}

        def visit(module: nn.Module, device: torch.device) -> None:
            if module in devices or module in self.excluded:
                return
            begin = self._begins.get(module)
            devices[module] = device if begin is None else (
                begin.groups[0].part.torch_device)
            for child in module.children():
                visit(child, devices[module])

        visit(self.root, self.parts[0].torch_device)
        for module, device in devices.items():
            holders: list[Any] = [module._parameters, module._buffers]
            for holder in holders:
                for key, value in holder.items():
                    if value is None or self.manages(module, key) or (
                            value.device == device):
                        continue
                    with torch.no_grad():
                        if isinstance(value, nn.Parameter):
                            value.data = value.data.to(device)
                        else:
                            holder[key] = value.to(device)

    # Budget and facts.

    def pinned_bytes(self, part: DevicePart) -> int:
        return sum(group.staged.image_bytes for group in self.groups
                   if group.pinned and group.part is part)

    def least_bytes(self, part: DevicePart) -> int:
        """The smallest budget: what is pinned, and the plan's largest group."""
        return self.pinned_bytes(part) + max(
            (group.staged.image_bytes for group in self.groups
             if group.part is part and not group.pinned), default=0)

    def explain(self, error: ResourceExhausted, part: DevicePart) -> NoReturn:
        """Raises a plan's refusal; plans know nothing of what is pinned."""
        pinned = self.pinned_bytes(part)
        if not pinned:
            raise error
        raise ResourceExhausted(
            f"{error}; besides, {pinned} bytes of the budget are pinned: "
            "groups that are needed while others come and go; the least that "
            f"would do is {self.least_bytes(part)} bytes in all") from None

    def stats(self) -> AttachStats:
        plans = [part.plan for part in self.parts if part.plan is not None]
        infos = [plan.info for plan in plans]
        pinned = sum(map(self.pinned_bytes, self.parts))
        return AttachStats(
            model=self.model.name, groups=len(self.groups),
            model_bytes=self.model.image_bytes,
            budget_bytes=pinned + sum(info.budget_bytes for info in infos),
            pinned_bytes=pinned,
            resident_bytes=sum(info.resident_bytes for info in infos),
            ring_bytes=sum(info.ring_bytes for info in infos),
            streamed_bytes=sum(info.streamed_bytes for info in infos),
            scratch_bytes=sum(part.scratch_bytes for part in self.parts),
            passes=self._passes, idle_reads=self.shelf.reads,
            **{name: sum(part.count(name) for part in self.parts)
               for name in ("stages", "resident_stages", "ready_stages",
                            "skipped", "unplanned", "host_waits",
                            "wake_ups")})

    def set_budget(self, budgets: list[int]) -> None:
        """Of the plans, a part each; between passes."""
        with self._lock:
            self._refuse_while_running("set its budget")
            self._end_open()
            before = [part.budget for part in self.parts]
            for at, part in enumerate(self.parts):
                try:
                    self._set_budget(part, budgets[at])
                except ResourceExhausted as error:
                    for done, old in zip(self.parts[:at], before):
                        self._set_budget(done, old)
                    self.explain(error, part)

    def _set_budget(self, part: DevicePart, budget: int) -> None:
        if part.plan is not None:
            part.plan.set_budget(budget)
            part.budget = budget
            self._forget_addresses(part)

    def check(self) -> None:
        """Raises if results since the last check may not be trusted."""
        for part in self.parts:
            if part.plan is not None:
                part.plan.check()

    def __deepcopy__(self, memo: Any) -> Any:
        raise FailedPrecondition(
            "a module whose weights live in hoist cannot be copied; load a "
            "second one (it shares the weights), or hoist.detach(module) first")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise FailedPrecondition(
            "a module whose weights live in hoist cannot be pickled; save its "
            "state_dict(), or hoist.detach(module) first")


def _give_back(held: list[Held]) -> None:
    with contextlib.ExitStack() as stack:  # All, whichever of them fails.
        for one in held:
            stack.callback(one.give_back)
