"""Weights that are read in place: bound, moved, and counted.

Such a weight has one fixed address. Its most touched pieces are in device
memory, the others in host memory that the device reads over the link.
Operators count touches on the device; a CUDA graph records them like others.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Sequence

import torch
from torch import nn

from ... import _dtypes
from ..._errors import HoistError, InvalidArgument, Unavailable
from ..._in_place import InPlaceTensor
from ..._model import Model
from ..._session import Session
from .._graph.operators import (Operands, Tensors, is_static, new_token,
                                operands_of)
from .._show.device_part import DevicePart
from .._tensors.resident import KeptLease, guarded
from .._tensors.views import Views
from .._tree.inventory import Weight, copy_of
from .._tree.pieces import InPlaceWeight
from .ahead import Ahead
from .stats import AHEAD_COUNTS


class Touches:
    """Counts the touches of each weight's units: hooks count by an operator on
    the device, and libhoist reads the counts."""

    def __init__(self, weights: Sequence[InPlaceWeight],
                 device: torch.device) -> None:
        self.first: list[int] = []
        ranges: dict[int, tuple[int, int]] = {}  # By a module's id().
        length = 0
        for one in weights:
            key = id(one.modules[0])
            if key not in ranges or ranges[key][1] != one.units:
                ranges[key] = length, one.units
                length += one.units + 1  # One more for invalid numbers.
            self.first.append(ranges[key][0])
        # One tensor, or compilers would make no CUDA graph of the additions.
        self.counts = is_static(torch.zeros(max(length, 1), dtype=torch.int32,
                                            device=device))
        one_more = torch.ones(1, dtype=torch.int32, device=device)
        self._hooks = []
        self.by_module: dict[nn.Module, Count] = {}
        for weight, first in zip(weights, self.first):
            for module in weight.modules:
                if module not in self.by_module:
                    count = Count(self.counts, first, weight.units, one_more)
                    self.by_module[module] = count
                    self._hooks.append(module.register_forward_pre_hook(
                        count, with_kwargs=True))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self.by_module.clear()  # Counts know of calls that read the weights.


class Count:
    """A module's forward pre-hook. The first integer tensor of the arguments
    names the touched units; each call touches a weight of one unit."""

    def __init__(self, counts: torch.Tensor, first: int, units: int,
                 one_more: torch.Tensor) -> None:
        self._counts = counts
        # No number here: equal compiled blocks share code.
        self._first = torch.tensor([first], device=counts.device)
        self._one_more = one_more
        self._units = units  # Also the place of invalid numbers.
        # Whether an uncompiled call counts its touches by itself.
        self.counts_itself: Callable[[Any, Any], bool] = lambda *_: False

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            # torch.func's transforms refuse writes to others' tensors.
            if (torch._C._functorch.peek_interpreter_stack() is not None
                    or self.counts_itself(args, kwargs)):
                return
        if self._units == 1:
            self._counts.index_add_(0, self._first, self._one_more)
            return
        for value in (*args, *kwargs.values()):
            if (isinstance(value, torch.Tensor)
                    and value.dtype in (torch.int64, torch.int32)):
                self.add(value)
                return

    def add(self, chosen: torch.Tensor) -> None:
        """Counts the units that it names, by number."""
        at = chosen.detach().reshape(-1).to(
            self._counts.device).clamp(0, self._units)
        more = self._one_more.expand(at.numel())
        if at.numel() > self._units:  # A prompt reads a unit once.
            # An index of index_fill_ has 64 bits.
            more = torch.zeros(self._units + 1, dtype=torch.int32,
                               device=at.device).index_fill_(0, at.long(), 1)
            at = torch.arange(self._units + 1, device=at.device)
        self._counts.index_add_(0, self._first + at, more)


class InPlaceWeights:
    """Those of one attached module: bound for the attachment's life.

    Threads: one at a time; the attachment's lock.
    """

    def __init__(self, session: Session, model: Model, part: DevicePart,
                 weights: Sequence[InPlaceWeight], hot_bytes: int,
                 deadline: float, ahead: Ahead | None = None) -> None:
        self._part = part
        self._ahead = ahead
        self._session = session
        self._weights = weights
        self._device = part.torch_device
        self.operands: Operands | None = None  # For compiled code, once bound.
        self._touches = Touches(weights, self._device)
        counts = self._touches.counts
        # Written by the CPU, and read by the kernels that copy ahead.
        self._cold = (None if ahead is None else torch.ones(
            counts.numel(), dtype=torch.uint8, pin_memory=counts.is_cuda))
        self._bound: list[torch.Tensor] = []  # The modules' tensors, in order.
        try:
            self._tensors: Any = session.in_place(
                model, self._asked(), hot_bytes=hot_bytes,
                device=part.device.index, deadline=deadline,
                counts=(counts.data_ptr(), counts.numel()),
                cold=0 if self._cold is None else self._cold.data_ptr(),
                keep=(counts, self._cold))
            self._views: Views | None = Views(
                part.device, KeptLease(self._tensors, self._device))
        except BaseException:
            self._touches.remove()
            raise

    def _asked(self) -> dict[str, InPlaceTensor]:
        """By name."""
        return {one.weight.name: InPlaceTensor(
                    _dtypes.from_torch(one.stored.meta.dtype),
                    tuple(one.stored.meta.shape),
                    [name for name, _, _ in one.cuts()], one.units,
                    first, *(self._ahead.ring_of(one) if self._ahead else ()))
                for one, first in zip(self._weights, self._touches.first)}

    @property
    def nbytes(self) -> int:
        return sum(one.stored.nbytes for one in self._weights)

    @property
    def weights(self) -> list[Weight]:
        return [one.weight for one in self._weights]

    def bind(self) -> None:
        """Puts them into the modules."""
        for one in self._weights:
            view = self._tensors[one.weight.name]
            assert self._views is not None
            tensor = self._views.at(view.address, view.info)
            made = guarded(one.weight.put_together([tensor]).requires_grad_(
                one.weight.requires_grad))
            one.weight.put(made)
            self._bound.append(made)
        if self._ahead is not None:
            bound = self._ahead.bind(self._wide, self._marks_of)
            for module, renaming in bound.items():
                self._touches.by_module[module].counts_itself = renaming.takes
        self.operands = operands_of(
            self, new_token(self._device),
            [one.weight.value for one in self._weights], [])

    def _wide(self, one: InPlaceWeight, units: int) -> torch.Tensor:
        """The weight, with the places behind it."""
        view = self._tensors[one.weight.name]
        assert self._views is not None
        return self._views.at(view.address, dataclasses.replace(
            view.info, shape=(units, *view.info.shape[1:]),
            nbytes=view.info.nbytes // one.units * units))

    def _marks_of(self, weight: InPlaceWeight
                  ) -> tuple[torch.Tensor, torch.Tensor]:
        """Which units are cold, and the counts of touches."""
        assert self._cold is not None
        first = self._touches.first[self._weights.index(weight)]
        return (self._cold[first:first + weight.units],
                self._touches.counts[first:first + weight.units + 1])

    def stage(self, weights: Tensors) -> None:
        """In compiled code, at a pass's begin; see Staged."""
        self.before_pass()

    def read(self, weights: Tensors, outputs: Tensors) -> None:
        """Nothing to do: later code may read them."""

    def done(self, weights: Tensors, last: bool) -> None:
        """Likewise, at a pass's end."""
        self.after_pass()

    def misplaced(self) -> None:
        """They may be read at any time."""

    def before_pass(self) -> None:
        """Moves pieces that become hot or cold, before this pass and after the
        GPU's earlier work; not while another thread launches one."""
        try:
            self._tensors.begin(self._part.stream())
        except HoistError as error:
            raise self._part.explained(error) from None

    def after_pass(self) -> None:
        """The pass is launched completely."""
        if self._ahead is not None:
            self._ahead.end_pass()
        if self._tensors is not None:  # None: detached meanwhile.
            self._tensors.end()

    def advance(self, wait: bool = False) -> None:
        try:
            self._tensors.advance(wait=wait)
        except HoistError as error:
            if self._part.session is not self._session:
                raise Unavailable(
                    "what is read in place is right, and stays where it is, as "
                    "the hoistd that it came from has ended; hoist.detach("
                    "module) and attach it again, and it moves") from None
            raise self._part.explained(error) from None

    def set_hot_bytes(self, hot_bytes: int) -> None:
        self._tensors.set_budget(hot_bytes)

    def cool(self) -> None:
        """Reads all from the host until there is a budget again. Nothing may be
        reading."""
        self._tensors.set_budget(0)
        with contextlib.suppress(HoistError):  # hoistd's end freed everything.
            self._tensors.advance(wait=True)

    def private_weights(self, devices: dict[str, torch.device]
                    ) -> list[tuple[dict[str, Any], str, Any]]:
        """Copies on the modules' own devices, with their places; without places
        that were overwritten or cleared."""
        own: list[tuple[dict[str, Any], str, Any]] = []
        for one, bound in zip(self._weights, self._bound):
            # From memory that is mapped here, even after hoistd's end.
            made = one.weight.put_together([copy_of(
                torch.Tensor.detach(bound), devices[one.stored.name])])
            made.requires_grad_(bound.requires_grad)
            own += [swap for swap in one.weight.swaps(made)
                    if swap[0].get(swap[1]) is bound]
        return own

    def release(self) -> None:
        """Tensors that are still referenced keep their bytes."""
        self._touches.remove()
        if self._ahead is not None:
            self._ahead.remove()
        self._ahead = None
        self._bound = []
        self._views = self._tensors = self.operands = None

    def counts(self) -> dict[str, int]:
        """For AttachStats."""
        stats = self._tensors.stats
        return {"in_place_bytes": stats.bytes, "hot_bytes": stats.hot_bytes,
                "hot_moves": stats.moves,
                "touched_hot_bytes": stats.touched_hot_bytes,
                "touched_cold_bytes": stats.touched_cold_bytes,
                **(dict.fromkeys(AHEAD_COUNTS, 0) if self._ahead is None
                   else self._ahead.counts())}


def refuse_several(parts: Sequence[DevicePart]) -> None:
    if len(parts) > 1:
        raise InvalidArgument("in_place= is for one device; give a budget of "
                              "one, or in_place=None")
