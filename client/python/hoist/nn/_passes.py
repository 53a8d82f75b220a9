"""Passes of a root module: who is in them, in which order groups come, and how
they end.

A forward enters here and leaves here. Before a module that a group belongs to
runs, the group is staged on the worker's stream and its weights are put into
the module; in a pass of the root module it is ended when another group's turn
comes (a layer that is called twice in a row is staged once), else when the
module is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from typing import Any, Callable, Iterator, Protocol

import torch
from torch import nn

from .._errors import FailedPrecondition, HoistError, Unavailable
from ._backward import Backwards
from ._device_part import DevicePart
from ._idle import Shelf
from ._live import LiveGroup
from ._move import device_of, to_device
from ._one_graph import OneGraph
from ._operators import Operands
from ._planning import Planning
from ._refusals import (are_graded, refuse_backward, refuse_tracing,
                        refuse_training)
from ._saved import Pushed, claim_on
from ._turns import Turns, calls_on_stack, is_in_backward


log = logging.getLogger("hoist.nn")


class Surroundings(Protocol):
    """What stands around the modules, and calls Passes."""

    @property
    def changed(self) -> bool:
        """Modules or weights came to the tree that are not seen to yet."""

    def is_compiled(self) -> bool:
        """Calls of the groups' modules are a part of compiled code, as far as
        modules show it."""

    def trains(self) -> bool:
        """Something of the tree that is not hoist's needs gradients."""

    def before_pass(self) -> None:
        """A pass begins; what came to the tree since is seen to."""

    def bring(self, group: LiveGroup) -> None:
        """From now on any call of the group's modules enters it."""

    def forget_calls(self) -> None:
        """Calls that were under way will not end."""

    def renew(self) -> None:
        """Other groups are bound than before."""


class InPlace(Protocol):
    """Weights that are no group's, and of which pieces change places."""

    @property
    def operands(self) -> Operands | None:
        """Of the operator that compiled code has for `before_pass`."""

    def before_pass(self) -> None:
        """Pieces change places, behind what passes have put on streams."""

    def after_pass(self) -> None:
        """It has been launched, or was cut short."""


@dataclasses.dataclass
class Call:
    """What passes have shown of the calls of a module that has groups."""

    is_followed: bool = False  # By a call that needs the same group.
    is_last: bool = False  # By one that does not, or by none.


class Passes:
    """Of one attached module.

    Threads: any; passes of several threads take turns, while the GPU work that
    they queue does not.
    """

    def __init__(self, root: nn.Module, parts: list[DevicePart],
                 groups: list[LiveGroup], planning: Planning, shelf: Shelf,
                 idle: str, exclude_kwargs: frozenset[str],
                 around: Surroundings, renew: Callable[[], None]) -> None:
        """renew: groups can be staged again where hoistd had ended; else it
        raises. Called when nothing is."""
        self._root = root
        self.parts = parts
        self._groups = groups
        self._planning = planning
        self._shelf = shelf
        self._idle = idle
        self._exclude_kwargs = exclude_kwargs
        self._around = around
        self._renew = renew
        self.in_place: InPlace | None = None
        self.count = 0  # That gave something.
        # Every group is bound: a pass has nothing to bring.
        self.stands = False
        self._seen_there = False  # A pass's inputs, on the device.
        self._to_bind: set[LiveGroup] = set()  # Once they have been staged.
        self._made = 0  # The plans of which these are residents.
        self._turns = Turns(self._called)
        self._depth = 0  # Of the root module's calls within one another.
        self._handled = 0  # As the pass began; see _handled.
        self._running = 0  # Modules that are running and have groups.
        self._open: LiveGroup | None = None  # Staged, and nobody runs in it.
        self._left_by: Call | None = None  # Who ran in it last.
        self._shown: list[LiveGroup] = []  # idle="slot": shown in this pass.
        self._return_to: torch.device | None = None
        self._keeps_shown = False  # idle="slot", after a pass that shows it.
        self._brought: set[LiveGroup] = set()  # By more modules than planned.
        self._sequence: list[LiveGroup] = []  # What this pass has staged.
        self._is_compiled = False  # In this pass something is.
        self._reads_known = False  # The last pass read no idle weight.
        self.backwards = Backwards(self._turns, groups, self._begin_backward,
                                   self._renew, self._end_backward)
        self._pushed = Pushed()
        for part in parts:
            claim_on(part, self.backwards)
        self.graph = OneGraph(parts, groups, lambda: self._turns.is_mine,
                              self._end_open)

    # The root.

    def begin(self, args: Any, kwargs: Any, compiled: bool = False) -> Any:
        """Returns what is to replace the arguments; None: nothing.

        compiled: what is called next is, by what has called the root.
        """
        self._take()
        if not self.needs_root:
            self._turns.give()  # The hook went while this waited for its turn.
            return None
        # Only this thread can be here.
        if self._turns.held > 1 and calls_on_stack(self._root) > 1:
            self._depth += 1
            return None  # The module calls itself.
        try:
            if self._turns.held > 1 and not is_in_backward():
                self._abandon(but=1)
            if self._turns.is_first:
                self._pushed.clear()
            self._depth = 1
            self._handled = _handled()
            return self._begin(args, kwargs, compiled)
        except BaseException:
            # A module that is traced calls no hooks after it.
            self._depth = 0
            self.graph.end()
            self._turns.give()
            raise

    def _begin(self, args: Any, kwargs: Any, compiled: bool) -> Any:
        if not any(group.holds for group in self._groups):
            self._renew()
        self._around.before_pass()
        if self.in_place is not None:
            self.in_place.before_pass()
        self._shelf.seen.clear()
        self._sequence.clear()
        part = self.parts[0]
        if not self.stands:
            refuse_tracing()
            refuse_training(self._groups, args, kwargs)
        self._return_to = None
        self._is_compiled = compiled or self._around.is_compiled()
        if self._is_compiled:
            self._keeps_shown = False
            # A graph of one piece has its weights past hooks.
            if not (are_graded(args, kwargs) or (
                    torch.is_grad_enabled() and self._around.trains())):
                self._begin_graph()
        if part.torch_device.type == "cpu":
            return None
        came_from = device_of((args, kwargs))
        if came_from is not None and came_from != part.torch_device:
            self._return_to = came_from
        self._seen_there = self._return_to is None
        return self.move_inputs(args, kwargs, part.torch_device)

    def _begin_graph(self) -> None:
        """Of compiled modules: in one graph, once the order is known."""
        if self.stands or not self.graph.is_possible:
            return
        known = self._reads_known and not self._planning.learns
        if (known and self._made == self._planning.made
                and self._bind([*self._to_bind])):
            self._note_bound()  # So that it is the last graph, too.
        self._shown += self.graph.begin(self._planning.made, known)

    def end(self, output: Any) -> Any:
        """Returns what is to replace the output; None: nothing."""
        if not self._depth or not self._turns.is_mine:
            return None  # Another hook failed before a pass began.
        if self._depth > 1:
            self._depth -= 1
            self._turns.give()
            return None
        try:
            self._end_open()
            for group in self._shown:
                group.end_in_place()  # What failed in the middle.
                group.binding.show_idle()
            self._shown.clear()
            if self.graph.active and torch.is_grad_enabled():
                refuse_backward(self._groups, output)
            self.graph.end()
            if output is None and _handled() != self._handled:
                return None  # It failed: no pass to learn.
            self.count += 1
            self._planning.end_pass(self._sequence, torch.is_grad_enabled())
            self._reads_known = not self._shelf.seen
            if self._shelf.seen:
                self._bring_what_was_read()
            else:
                # All that reads weights is hooked, as far as a pass can show.
                # What is compiled sees none of the hooks, but types alone.
                self._keeps_shown = (self._idle == "slot"
                                     and not self._is_compiled)
            self._bind_what_came()
            if self._return_to is not None:
                return to_device(output, self._return_to)
            return None
        finally:
            self._depth = 0
            if self.in_place is not None:
                self.in_place.after_pass()
            self._turns.give()

    # What stays on the device.

    def leave_out(self, gone: set[LiveGroup]) -> None:
        """Nobody has these groups' modules any more. Nothing may be running,
        and the parts' plans are made anew next."""
        self._end_what_was_left()
        self._end_open()
        self._to_bind -= gone
        self._brought -= gone
        self._sequence = [one for one in self._sequence if one not in gone]
        self.graph.note_hooks()
        for group in gone:
            group.leave_out()

    def once_free(self, work: Callable[[], None]) -> None:
        """See Turns."""
        self._turns.once_free(work)

    @property
    def needs_root(self) -> bool:
        """Whether a pass has to begin and to end here. On a GPU it has until
        inputs came that did not have to be moved there."""
        return (not self.stands or self._around.changed
                or self.in_place is not None or len(self.parts) > 1 or not (
                    self._seen_there
                    or self.parts[0].torch_device.type == "cpu"))

    def bind(self) -> None:
        """The plans were made, or made anew: residents stay where they are, at
        once where nothing else comes and goes, else once they have been
        staged. Nothing may be running."""
        self._made = self._planning.made
        residents = [group for group in self._groups if group.is_resident]
        self._to_bind = {group for group in residents if not group.bound}
        self._bind(residents if len(residents) == len(self._groups) else
                   [group for group in residents if group.pinned])
        self._note_bound()

    def unbind(self, all_groups: bool = False) -> None:
        """Plans are about to change; pinned groups are in none."""
        for group in self._groups:
            if all_groups or not group.pinned:
                group.unbind()
        self._to_bind.clear()
        self._note_bound()

    def _bind_what_came(self) -> None:
        """At a pass's end."""
        if self._turns.held > 1 or any(part.is_capturing()
                                       for part in self.parts):
            return
        if self.stands:
            if not self.needs_root:
                self._around.renew()
        elif self._planning.learns:
            return  # The plan is about to be made anew.
        elif self._made != self._planning.made:
            self.bind()
        elif self._to_bind:
            came = [*self._sequence, *(group for group in self._to_bind
                                       if group.pinned)]
            if self._bind([one for one in came if one in self._to_bind]):
                self._note_bound()

    def _bind(self, groups: list[LiveGroup]) -> bool:
        """Whether any of them is bound."""
        bound = [group for group in groups if group.bind()]
        self._to_bind.difference_update(bound)
        return bool(bound)

    def _note_bound(self) -> None:
        self.stands = all(group.bound for group in self._groups)
        self._around.renew()

    def _bring_what_was_read(self) -> None:
        """A weight that was read idle within a pass belongs to a module that is
        also called from outside its group (diffusers' DiT calls a part of its
        first block at the end): from now on that call brings the group. The
        next pass shows when."""
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
        """A turn, after what another thread left behind has been ended."""
        self._turns.take()
        if self._turns.taken_over:
            try:
                self._end_what_was_left()
            except BaseException:
                self._turns.give()
                raise

    # Backwards.

    def _begin_backward(self) -> None:
        """Nothing is left staged of what does not run."""
        if self._turns.is_this_threads:
            self._end_what_does_not_run()
        else:
            self._end_what_was_left()
        self._end_open()

    def _end_backward(self, sequence: list[LiveGroup]) -> None:
        if self._turns.held:
            return  # It was within a pass, whose order it is none of.
        try:
            self._planning.end_backward(sequence)
            if self._made != self._planning.made:
                self.bind()
        except HoistError as error:  # The next pass says so, if it matters.
            log.debug("a backward's order is not planned: %s", error.message)

    def _end_what_was_left(self) -> None:
        if self._turns.taken_over:
            self._turns.taken_over = False
            self._abandon(but=self._turns.held)

    def _end_what_does_not_run(self) -> None:
        """What another thread left behind, or this one."""
        self._end_what_was_left()
        if self._turns.held and not calls_on_stack(*self._called()):
            self._abandon()

    def _abandon(self, but: int = 0) -> None:
        """Ends what was cut short (KeyboardInterrupt), when torch calls no
        hooks. `but`: turns that are no part of it."""
        with contextlib.ExitStack() as stack:
            for _ in range(self._turns.held - but):
                stack.callback(self._turns.give)
            stack.callback(self.graph.end)
            if self.in_place is not None:
                stack.callback(self.in_place.after_pass)
            self._open = None
            self._running = 0
            for group in self._shown:  # Also where others' bytes lie by now.
                stack.callback(group.binding.show_idle)
            self._shown.clear()
            self._depth = 0
            self._around.forget_calls()
            for group in self._groups:
                group.depth = 0
                if not group.bound:
                    stack.callback(group.binding.show_idle if group.pinned else
                                   group.end)

    @contextlib.contextmanager
    def between(self, what: str) -> Iterator[None]:
        """For the block nothing runs and nothing of a plan is staged; hoistd
        may have ended.

        FailedPrecondition: the module is running, which is no time to `what`.
        What was cut short does not run.
        """
        if is_in_backward() and self.backwards.are_running:
            raise FailedPrecondition(
                f"a backward through the module is running; {what} after it")
        with self._turns.between():
            self._end_what_does_not_run()
            if self._turns.held:
                raise FailedPrecondition(
                    f"the module is running; {what} between passes")
            self._end_open()
            yield

    # Inputs on their way between devices.

    @property
    def moves_inputs(self) -> bool:
        """Of a group's modules: between devices; and into a pass's middle,
        where a caller begins there (generate() with an encoder)."""
        return len(self.parts) > 1 or (
            not self._depth and self.parts[0].torch_device.type != "cpu")

    def move_inputs(self, args: Any, kwargs: Any,
                    device: torch.device) -> tuple[Any, Any]:
        kept = {name: kwargs[name] for name in kwargs
                if name in self._exclude_kwargs}
        moved = to_device((args, {name: value for name, value in kwargs.items()
                                  if name not in kept}), device)
        return moved[0], {**moved[1], **kept}

    # Groups.

    def enter(self, group: LiveGroup, call: Call) -> None:
        """A module that needs the group is about to run."""
        self._take()
        if group.bound:
            self._turns.give()
            return
        try:
            if group.pinned:
                if group.depth == 0:
                    group.show()
            elif group.depth == 0 and self._open is group:
                assert self._left_by is not None
                self._note_call(group, self._left_by, True)
            elif group.depth == 0:
                if not self._depth:
                    refuse_tracing()
                self._end_open()
                if is_in_backward():
                    self.backwards.enter(group)
                group.stage(group.needs_own_scratch())
                if self._depth:
                    self._sequence.append(group)
                if self._keeps_shown and self._depth:
                    self._shown.append(group)
        except BaseException as error:
            try:
                self._enter_anew(group, error)
            except BaseException:
                self._turns.give()
                raise
        if not self._depth and self._turns.is_first:
            self._pushed.clear()
        if torch.is_grad_enabled():
            self._pushed.begin(group)
        group.depth += 1
        if not group.pinned:
            self._running += 1

    def _enter_anew(self, group: LiveGroup, error: BaseException) -> None:
        """A call from outside of passes, before which hoistd had ended, is hit
        by that no more than a pass; raises what else it is."""
        if (not isinstance(error, Unavailable) or self._depth or self._running
                or self._turns.held > 1):
            raise error
        self._renew()
        if group.pinned:
            group.show()
        else:
            group.stage()

    def forget(self) -> None:
        """What was staged is there no more. Nothing may be running."""
        self._open = None
        self._shown.clear()
        for group in self._groups:
            group.forget()

    def leave(self, group: LiveGroup, call: Call) -> None:
        """A module that needed the group has run."""
        self._pushed.end(group)
        if not group.depth or not self._turns.is_mine:
            return  # It was never entered, or the pass was abandoned.
        group.depth -= 1
        if not group.pinned:
            self._running -= 1
        try:
            if group.pinned:
                self._hide(group)
            elif group.depth == 0 and self._open is group:
                self._left_by = call
            elif group.depth == 0:
                if self._depth:
                    self._end_open()
                    self._open, self._left_by = group, call
                else:
                    if is_in_backward():
                        self.backwards.keep(group)
                    group.end()
        finally:
            self._turns.give()

    def _hide(self, group: LiveGroup) -> None:
        """A pinned group's weights, once nobody runs in it."""
        if group.depth:
            return
        if self._keeps_shown and self._depth:
            self._shown.append(group)
        else:
            group.binding.show_idle()

    def _end_open(self) -> None:
        if self.graph.open is not None:
            self.graph.end_open()
        group, self._open = self._open, None
        if group is not None and not group.depth:
            assert self._left_by is not None
            if not self._left_by.is_last:
                self._note_call(group, self._left_by, False)
            group.end(show_idle=group not in self._shown)
            if self.graph.active and group in self._shown:
                group.binding.show_placed_again()

    @staticmethod
    def _note_call(group: LiveGroup, call: Call, followed: bool) -> None:
        """For code that is compiled, which has one stage for all of them."""
        call.is_followed |= followed
        call.is_last |= not followed
        if call.is_followed and call.is_last:
            group.operable = False

    @contextlib.contextmanager
    def beside_the_plan(self, groups: list[LiveGroup]) -> Iterator[None]:
        """Stages them by leases of their own, but for those that are staged
        anyway."""
        with self._turns.between():
            self._end_what_does_not_run()
            self._end_open()
            if not self._turns.held:
                self._renew()
            with contextlib.ExitStack() as stack:
                for group in groups:
                    if group.depth or group.bound:
                        continue
                    if group.pinned:
                        group.show()
                    else:
                        group.stage(beside_plan=True)
                    group.depth += 1
                    stack.callback(self._end_beside_the_plan, group)
                self._pushed.begin(self)
                stack.callback(self._pushed.end, self)
                yield

    def _end_beside_the_plan(self, group: LiveGroup) -> None:
        group.depth -= 1
        if group.pinned:
            self._hide(group)
        else:
            group.end()

    def end_all(self) -> None:
        """Nothing is staged or bound any more, and the GPU reads nothing; no
        weight is shown in its place. Nothing may be running."""
        with self._turns.between(), contextlib.ExitStack() as stack:
            self._end_what_was_left()
            for group in self._groups:
                stack.callback(group.end, show_idle=False)
                group.unbind(show_idle=False)
            for part in self.parts:
                if part.torch_device.type == "cuda":
                    torch.cuda.synchronize(part.torch_device)
            self._end_open()


def _handled() -> int:
    """Which exception is being handled here; torch calls hooks after a forward
    that has failed within its own handler, as after one that gives None."""
    return id(sys.exc_info()[1])
