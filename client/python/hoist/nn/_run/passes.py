"""Passes of a root module: their turns, the order of groups, and their ends.

A forward enters here and leaves here. Before a module of a group runs, the
group is staged on the worker's stream and its weights are put into the module.
In a pass of the root module the group ends at another group's turn (so a layer
that is called twice in a row is staged once). Otherwise it ends when the module
is done.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Callable, Iterator

import torch
from torch import nn

from ... import _hot
from ..._errors import Aborted, FailedPrecondition, HoistError, Unavailable
from .._graph.compiled import holds_addresses
from .._plan.in_place import InPlaceWeights
from .._plan.planning import Planning
from .._show.device_part import DevicePart
from .._show.gate import gates
from .._show.group import Group
from .._show.states import Resident
from .._tensors.idle import Shelf
from .autocast import is_on
from .backward import Backwards
from .calls import Call, Pass, Surroundings, handled
from .lending import Lending
from .move import device_of, to_device
from .one_graph import OneGraph
from .refusals import (are_graded, refuse_backward, refuse_freezing,
                       refuse_tracing, refuse_training)
from .saved import Pushed, claim_on
from .turns import Turns, calls_above, calls_on_stack, is_in_backward


log = logging.getLogger("hoist.nn")

_SOON = 0.02  # Seconds until another look at a module that is called.


class Passes(*_hot.fields("Passes")):  # type: ignore[misc]
    """The passes of one attached module.

    Threads: any; passes of several threads take turns, but the GPU work that
    they queue does not.
    """

    def __init__(self, root: nn.Module, parts: list[DevicePart],
                 groups: list[Group], planning: Planning, shelf: Shelf,
                 idle: str, exclude_kwargs: frozenset[str],
                 around: Surroundings, renew: Callable[[], None]) -> None:
        """renew: makes groups stageable again after hoistd's end, or raises.
        Called while nothing is staged."""
        self._root = root
        self.parts = parts
        self._groups = groups
        self._planning = planning
        self._shelf = shelf
        self._idle = idle
        self._exclude_kwargs = exclude_kwargs
        self._around = around
        self._renew = renew
        self.in_place: InPlaceWeights | None = None
        self.count = 0  # Of passes that returned an output.
        self.lending = Lending()
        # Every group is bound: a pass has nothing to stage.
        self.stands = False
        self._seen_there = False  # Inputs that were on the device already.
        self._to_bind: set[Group] = set()  # After their next stage.
        self._made = 0  # The version of the plans with these residents.
        self.turns = Turns(self._called)
        self.current: Pass | None = None
        self._keeps_shown = False  # idle="slot", after a pass that permits it.
        self._brought: set[Group] = set()  # By more modules than planned.
        self._reads_known = False  # The last pass read no idle weight.
        self.backwards = Backwards(self.turns, groups, self._begin_backward,
                                   self._renew, self._end_backward)
        self._pushed = Pushed()
        self.gates: Any = gates() if len(parts) == 1 else None  # For hooks.
        for part in parts:
            claim_on(part, self.backwards)
        self.graph = OneGraph(parts, groups, self.turns.is_mine,
                              self._end_open)

    # The root's calls.

    def begin(self, args: Any, kwargs: Any, compiled: bool = False) -> Any:
        """Returns the replaced arguments; None: unchanged.

        compiled: the call after this is compiled, by the root's caller.
        """
        if self._is_watched and not self.turns.is_mine():
            return None
        self._take()
        if not self.needs_root:
            self.turns.give()  # The hook was removed during the wait.
            return None
        # Only this thread gets here.
        if (self.current is not None and self.turns.held > 1
                and calls_on_stack(self._root) > 1):
            self.current.depth += 1
            return None  # The module calls itself.
        try:
            if self.turns.held > 1 and not is_in_backward():
                self._abandon(but=1)
            if self.turns.is_first:
                self._pushed.clear()
            this = self.current = Pass(handled())
            replaced = self._begin(this, args, kwargs, compiled)
            this.is_plain = not (this.is_compiled or self._keeps_shown)
            return replaced
        except BaseException:
            # No hooks follow a failure in a traced module.
            self.current = None
            self.graph.end()
            self.turns.give()
            raise

    def _begin(self, this: Pass, args: Any, kwargs: Any, compiled: bool
               ) -> Any:
        if not any(part.is_held for part in self.parts):
            self._renew()
        self._around.before_pass()
        if self.in_place is not None:
            self.in_place.before_pass()
        self._shelf.seen.clear()
        part = self.parts[0]
        if not self.stands:
            refuse_tracing()
            refuse_training(self._groups, args, kwargs)
        this.is_compiled = compiled or self._around.is_compiled()
        self._around.trace(this.is_compiled)
        if this.is_compiled:
            self._keeps_shown = False
            if not self.stands:
                refuse_freezing()
            # A graph in one piece bypasses the hooks on weights.
            if not (are_graded(args, kwargs) or (
                    torch.is_grad_enabled() and self._around.trains())):
                self._begin_graph(this)
        if part.torch_device.type == "cpu":
            return None
        came_from = device_of((args, kwargs))
        if came_from is not None and came_from != part.torch_device:
            this.return_to = came_from
        self._seen_there = this.return_to is None
        return self.move_inputs(args, kwargs, part.torch_device)

    def _begin_graph(self, this: Pass) -> None:
        """For compiled modules: one graph, once the order is known."""
        if self.stands or not self.graph.is_possible:
            return
        known = self._reads_known and not self._planning.learns
        if (known and self._made == self._planning.made
                and self._bind([*self._to_bind])):
            self._note_bound()  # Now, or the code would be compiled again.
        this.shown += self.graph.begin(self._planning.made, known)

    def end(self, output: Any) -> Any:
        """Returns the replaced output; None: unchanged."""
        this = self.current
        if this is None or not self.turns.is_mine():
            self.lending.note_use(output)  # Or a hook failed before a pass.
            return None
        if this.depth > 1:
            this.depth -= 1
            self.turns.give()
            return None
        try:
            try:
                self._end_open()
            finally:
                for group in this.shown:
                    group.rest()
            if self.graph.active and torch.is_grad_enabled():
                refuse_backward(self._groups, output)
            self.graph.end()
            if output is None and handled() != this.handled:
                return None  # The forward failed: nothing to learn.
            self.count += 1
            self.lending.note_use(output)
            self._planning.end_pass(this.sequence, torch.is_grad_enabled())
            self._reads_known = not self._shelf.seen
            if self._shelf.seen:
                self._hook_idle_reads()
            else:
                # As far as a pass can show, hooks cover all readers of weights.
                # Compiled code sees types alone, not the hooks.
                self._keeps_shown = (self._idle == "slot"
                                     and not this.is_compiled)
            self._bind_arrived(this.sequence)
            return (None if this.return_to is None else
                    to_device(output, this.return_to))
        finally:
            self.current = None
            if self.in_place is not None:
                self.in_place.after_pass()
            self.turns.give()

    # Memory that others need; see Lending.

    @property
    def _is_lent(self) -> bool:
        """hoistd may ask again: the ends of passes are noted."""
        return self.lending.asked and self._planning.lender is not None

    @property
    def _is_watched(self) -> bool:
        """The root has its hooks to note its use alone: threads run it at
        once."""
        return self._is_lent and self.stands and not self._has_work

    def in_use_for(self, idle: float) -> float | None:
        """Seconds after which it may have been idle for so long; None: its
        memory cannot be taken. 0: it can be, as long as the caller has the
        turn."""
        if not self.lending.asked:
            self.lending.watch()
            self._around.renew()
        left = self.lending.idle_in(idle)
        if (not self._is_lent or self.backwards.are_running
                or any(part.captured for part in self.parts)
                or (left == 0 and holds_addresses())):
            left = None
        if left != 0:
            if self.lending.hooked:
                self._note_bound()
            return left
        called = [*self._called()]
        if self.stands:
            # They stay until the memory is given back: else a module that is
            # called without a pause would be found in a call each time.
            self.stands = False
            self._around.renew(all_groups=True)
            self.lending.hook(called)
        return (_SOON if self.turns.held or self.lending.misses(called)
                else 0.0)

    # Residents.

    def leave_out(self, gone: set[Group]) -> None:
        """These groups' modules have ended. Nothing may be running; new plans
        for the parts follow."""
        self._abandon_stale()
        self._end_open()
        self._to_bind -= gone
        self._brought -= gone
        self.graph.note_hooks()
        for group in gone:
            group.leave_out()

    def once_free(self, work: Callable[[], None]) -> None:
        """See Turns."""
        self.turns.once_free(work)

    @property
    def needs_root(self) -> bool:
        """Whether a pass has to begin and to end here; on a GPU, until inputs
        came that were on the device already."""
        return not self.stands or self._is_lent or self._has_work

    @property
    def _has_work(self) -> bool:
        """For a pass whose groups are bound."""
        return (self._around.changed or self.in_place is not None
                or len(self.parts) > 1 or not (
                    self._seen_there
                    or self.parts[0].torch_device.type == "cpu"))

    def bind(self) -> None:
        """The plans are new: binds residents, at once if all groups can be,
        else after their next stage. Nothing may be running."""
        self._made = self._planning.made
        if not self._planning.takes_all:
            self.lending.asked = False  # For the last plans.
        residents = [group for group in self._groups if group.is_resident]
        self._to_bind = {group for group in residents if not group.bound}
        self._bind(residents if len(residents) == len(self._groups) else
                   [group for group in residents if group.pinned])
        self._note_bound()

    def unbind(self) -> None:
        """Plans are about to change; pinned groups are in none."""
        for group in self._groups:
            if not group.pinned:
                group.unbind()
        self._to_bind.clear()
        self._note_bound()

    def _bind_arrived(self, sequence: list[Group]) -> None:
        """Called at a pass's end."""
        if self.turns.held > 1 or any(part.is_capturing()
                                       for part in self.parts):
            return
        if self.stands:
            if not self.needs_root:
                self._around.renew()
        elif self._planning.learns:
            return  # A new plan follows.
        elif self._made != self._planning.made:
            self.bind()
        elif self._to_bind:
            came = [*sequence, *(group for group in self._to_bind
                                       if group.pinned)]
            if self._bind([one for one in came if one in self._to_bind]):
                self._note_bound()

    def _bind(self, groups: list[Group]) -> bool:
        """Whether any of them is bound."""
        bound = [group for group in groups if group.bind()]
        self._to_bind.difference_update(bound)
        return bool(bound)

    def _note_bound(self) -> None:
        self.lending.hooked = False
        self.stands = all(group.bound for group in self._groups)
        self._around.renew()

    def _hook_idle_reads(self) -> None:
        """A weight that a pass read idle belongs to a module with calls from
        outside its group. (diffusers' DiT calls a part of its first block at
        the end.) From now on that call stages the group; the next pass shows
        its place in the order."""
        for group in self._groups:
            if (group.binding.idle in self._shelf.seen
                    and group not in self._brought):
                self._brought.add(group)
                self._around.bring(group)
                self._planning.expect_new()
                self.graph.note_hooks()

    def _called(self) -> set[nn.Module]:
        """The modules whose calls come through here."""
        return {self._root, *(trigger for group in self._groups
                              for trigger in group.spec.triggers)}

    def _take(self) -> None:
        """Takes a turn, and ends stages that another thread abandoned."""
        self.turns.take()
        if self.turns.taken_over:
            self._after_take_over()

    def _after_take_over(self) -> None:
        try:
            self._abandon_stale()
        except BaseException:
            self.turns.give()
            raise

    # Backwards.

    def _begin_backward(self) -> None:
        """Ends stages without a running module."""
        if self.turns.is_this_threads:
            self._end_inactive()
        else:
            self._abandon_stale()
        self._end_open()

    def _end_backward(self, sequence: list[Group]) -> None:
        if self.turns.held:
            return  # Within a pass, and no part of its order.
        try:
            self._planning.end_backward(sequence)
            if self._made != self._planning.made:
                self.bind()
        except HoistError as error:  # The next pass raises it, if it matters.
            log.debug("a backward's order is not planned: %s", error.message)

    def _abandon_stale(self) -> None:
        if self.turns.taken_over:
            self.turns.taken_over = False
            self._abandon(but=self.turns.held)

    def _end_inactive(self) -> None:
        """Ends stages that another thread abandoned, or this one."""
        self._abandon_stale()
        if self.turns.held and not calls_on_stack(*self._called()):
            self._abandon()

    def _abandon(self, but: int = 0) -> None:
        """Ends passes that were cut short (KeyboardInterrupt) without hooks.
        but: the number of turns to keep."""
        with contextlib.ExitStack() as stack:
            for _ in range(self.turns.held - but):
                stack.callback(self.turns.give)
            stack.callback(self.graph.end)
            if self.in_place is not None:
                stack.callback(self.in_place.after_pass)
            this, self.current = self.current, None
            for group in this.shown if this is not None else ():
                stack.callback(group.rest)  # Also if others have its memory.
            self._around.forget_calls()
            for group in self._groups:
                if group.state.running:
                    group.state.running = 0
                if not group.bound:
                    stack.callback(group.rest if group.pinned else
                                   group.end)

    @contextlib.contextmanager
    def between(self, what: str) -> Iterator[None]:
        """During the block nothing runs, and no plan has staged groups; hoistd
        may have ended.

        FailedPrecondition: the module is running, so `what` is impossible.
        Passes that were cut short do not count.
        """
        if is_in_backward() and self.backwards.are_running:
            raise FailedPrecondition(
                f"a backward through the module is running; {what} after it")
        with self.turns.between():
            self._end_inactive()
            if self.turns.held:
                raise FailedPrecondition(
                    f"the module is running; {what} between passes")
            self._end_open()
            yield

    # Inputs between devices.

    @property
    def moves_inputs(self) -> bool:
        """For a group's modules: with several devices; or at a call without a
        pass (generate() calls an encoder)."""
        return len(self.parts) > 1 or (
            self.current is None and self.parts[0].torch_device.type != "cpu")

    def move_inputs(self, args: Any, kwargs: Any,
                    device: torch.device) -> tuple[Any, Any]:
        kept = {name: kwargs[name] for name in kwargs
                if name in self._exclude_kwargs}
        moved = to_device((args, {name: value for name, value in kwargs.items()
                                  if name not in kept}), device)
        return moved[0], {**moved[1], **kept}

    # Groups.

    def enter(self, group: Group, call: Call) -> None:
        """A module that needs the group is about to run."""
        turns = self.turns
        turns.take()
        if turns.taken_over:
            self._after_take_over()
        state = group.state
        if type(state) is Resident:
            self.turns.give()
            return
        this = self.current
        try:
            if state.running:
                pass
            elif group.pinned:
                group.stage()
            elif this and group in this.open:
                this.last.note(this.open, followed=True)
            else:
                if this is None:
                    refuse_tracing()
                self._end_open()
                if torch._C._current_graph_task_id() >= 0:  # is_in_backward().
                    self.backwards.enter(group)
                group.stage(group.binding.casts_bytes > 0
                            and group.needs_own_scratch())
                if this is not None:
                    this.sequence.append(group)
                    if self._keeps_shown:
                        this.shown.append(group)
        except BaseException as error:
            try:
                self._enter_anew(group, error)
            except BaseException:
                self.turns.give()
                raise
            if group.bound:
                self.turns.give()
                return
        if this is None and turns.is_first:
            self._pushed.clear()
        if torch.is_grad_enabled():
            device = group.part.torch_device
            self._pushed.begin(group, device, this.is_compiled
                               if this is not None else is_on(device)
                               and self._around.is_compiled())
        group.state.running += 1

    def _enter_anew(self, group: Group, error: BaseException) -> None:
        """After hoistd's end, a call outside passes recovers as a pass does;
        any other error is raised."""
        if (not isinstance(error, (Aborted, Unavailable))
                or self.current is not None or self.turns.held > 1 or any(
                    one.state.running and not one.pinned
                    for one in self._groups)):
            raise error
        self._renew()
        if not group.bound:  # The new hoistd may have more room.
            group.stage()

    def forget(self) -> None:
        """All stages are void. Nothing may be running."""
        for group in self._groups:
            group.forget()
        self._to_bind.clear()
        self._note_bound()

    def leave(self, group: Group, call: Call) -> None:
        """A module that needed the group has run."""
        if self._pushed.pairs:
            self._pushed.end(group)
        state = group.state
        if not state.running or not self.turns.is_mine():
            return  # It was never entered, or the pass was abandoned.
        state.running -= 1
        this = self.current
        try:
            if group.pinned:
                self._hide(group)
            elif state.running:
                pass
            elif this is not None:
                if self.graph.open or this.open and (
                        this.open[0].block != group.block):
                    self._end_open()
                if group not in this.open:
                    this.open.append(group)
                this.last = call
            else:
                if is_in_backward():
                    self.backwards.keep(group)
                group.end()
        finally:
            self.turns.give()

    def _hide(self, group: Group) -> None:
        """Hides a pinned group's weights once none of its modules runs."""
        if group.state.running:
            return
        if self._keeps_shown and self.current is not None:
            self.current.shown.append(group)
        else:
            group.rest()

    def _end_open(self) -> None:
        if self.graph.open:
            self.graph.end_open()
        this = self.current
        if this is None or not this.open:
            return
        if not this.last.is_last and not this.open[0].state.running:
            this.last.note(this.open, followed=False)
        while this.open:  # If one fails, the next call ends the others.
            group = this.open.pop()
            if not group.state.running:
                group.end(stays_shown=not self.graph.active
                          and group in this.shown)

    @contextlib.contextmanager
    def outside_plan(self, groups: list[Group]) -> Iterator[None]:
        """Stages them by leases of their own, except groups that are staged
        already."""
        with self.turns.between():
            self._end_inactive()
            self._end_open()
            if not self.turns.held:
                self._renew()
            with contextlib.ExitStack() as stack:
                for group in groups:
                    if group.state.running or group.bound:
                        continue
                    group.stage(outside_plan=True)
                    group.state.running += 1
                    stack.callback(self._end_outside_plan, group)
                self._pushed.begin(self, self.parts[0].torch_device)
                stack.callback(self._pushed.end, self)
                yield

    def _end_outside_plan(self, group: Group) -> None:
        if group.state.running:
            group.state.running -= 1  # Otherwise it was abandoned.
        if group.pinned:
            self._hide(group)
        else:
            group.end()

    def end_all(self) -> None:
        """Unstages and unbinds everything, after all work of the GPU; modules
        show no weights. Nothing may be running."""
        with self.turns.between(), contextlib.ExitStack() as stack:
            self._abandon_stale()
            for group in self._groups:
                stack.callback(group.leave_out)
            for part in self.parts:
                if part.torch_device.type == "cuda":
                    torch.cuda.synchronize(part.torch_device)
            self._end_open()
