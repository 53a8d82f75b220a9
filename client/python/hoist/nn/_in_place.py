"""Weights that are read where they lie: which, in which pieces, and bound.

Experts and embeddings are touched in part. Such a weight is no part of a group:
it has one address for good, and lies there in pieces (groups of the model of
their own) that are in device memory, if they are touched much, or in host memory
that the device reads over the link. What is touched is counted on the device, by
operators that a CUDA graph records as it does any other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import re
from typing import Any, Callable, Iterable, Sequence

import torch
from torch import nn

from .. import _dtypes
from .._errors import (HoistError, InvalidArgument, Unavailable,
                       Unimplemented)
from .._in_place import InPlace, InPlaceTensor
from .._model import Model
from .._session import Session
from .._tensor import Tensor
from ._casting import Pattern, as_patterns, matches, modules_that_match
from ._device_part import DevicePart
from ._inventory import Stored, Weight, copy_of
from ._layout import GroupSpec
from ._operators import (Operands, Tensors, is_static, new_token,
                         operands_of)
from ._options import InPlaceOption
from ._resident import KeptLease, guarded

log = logging.getLogger("hoist.nn")

_PAGE = 2 << 20  # What a device maps by itself.
_MOST_UNITS = 4  # Of a piece that is cut between units; else pages are.
# An embedding below this is resident for less than its pieces would cost.
_LEAST_EMBEDDING = 32 << 20


@dataclasses.dataclass
class PieceSpec(GroupSpec):
    """A group that is a piece of a weight: its elements from `start` on."""

    start: int = 0
    piece: Stored | None = None

    @property
    def stored(self) -> list[Stored]:
        assert self.piece is not None
        return [self.piece]


@dataclasses.dataclass
class InPlaceWeight:
    """One weight, with its pieces in order."""

    weight: Weight
    modules: list[nn.Module]  # Whose calls touch it.
    units: int
    pieces: list[PieceSpec] = dataclasses.field(default_factory=list)

    @property
    def stored(self) -> Stored:
        return self.weight.parts[0].stored

    def cut(self) -> None:
        """Into pieces, once its name and type are known."""
        meta = self.stored.meta
        size = meta.dtype.itemsize
        step = piece_bytes(self.stored.nbytes // self.units) // size
        tensor = self.stored.tensor
        flat = None if tensor is None else tensor.detach().reshape(-1)
        self.pieces = []
        for at in range(0, meta.numel(), step):
            count = min(step, meta.numel() - at)
            name = f"{self.stored.name}#{len(self.pieces)}"
            piece = Stored(name, None if flat is None else flat[at:at + count],
                           torch.empty(count, dtype=meta.dtype, device="meta"),
                           self.stored.device)
            self.pieces.append(PieceSpec(name, start=at, piece=piece))


def pieces_of(weights: Iterable[InPlaceWeight]) -> list[PieceSpec]:
    return [piece for one in weights for piece in one.pieces]


def piece_bytes(unit_bytes: int) -> int:
    """Of pieces of a weight with units of so many bytes: whole pages, and whole
    units where few of them fill pages; else as many pages as a unit nearly
    has."""
    together = math.lcm(max(unit_bytes, 1), _PAGE)
    if together <= _MOST_UNITS * unit_bytes:
        return together
    return max(1, round(unit_bytes / _PAGE)) * _PAGE


def choose(root: nn.Module, specs: list[GroupSpec], option: InPlaceOption,
           session: Session, refuse: Callable[[Weight], str | None] =
           lambda weight: None) -> list[InPlaceWeight]:
    """Takes out of the groups the weights that are to be read in place.

    refuse: why one cannot be, beside what the weight itself says.
    InvalidArgument: patterns that no weight matches, or one that cannot be.
    Unimplemented: patterns, and hoistd has nothing that is read in place;
    "auto" leaves all as it is then.
    """
    if option is None:
        return []
    try:
        session.check_in_place()
    except Unimplemented as error:
        if option != "auto":
            raise Unimplemented(f"in_place={option!r}: {error}") from None
        log.info("weights are staged whole, and not read in place: %s", error)
        return []
    names = {module: name for name, module in root.named_modules()}
    patterns = None if option == "auto" else as_patterns("in_place", option)
    named = set() if patterns is None else modules_that_match(root, patterns)
    chosen: list[InPlaceWeight] = []
    for spec in specs:
        for weight in list(spec.weights):
            wanted = (_is_touched_in_part(weight, names) if patterns is None
                      else _is_named(root, weight, named, patterns))
            if not wanted:
                continue
            why = (_why_not(weight, spec)
                   or refuse(weight))
            if why is None:
                spec.weights.remove(weight)
                chosen.append(_of(weight, names))
                chosen[-1].cut()
            elif patterns is not None:
                raise InvalidArgument(
                    f'in_place={option!r} means "{weight.name}", which cannot '
                    f"be read in place: {why}")
    if patterns is not None and not chosen:
        raise InvalidArgument(f"in_place={option!r} means none of the module's "
                              "parameters")
    specs[:] = [spec for spec in specs if spec.weights]
    return chosen


def _is_named(root: nn.Module, weight: Weight, modules: set[nn.Module],
              patterns: Iterable[Pattern]) -> bool:
    return weight.kind == "parameter" and (
        any(place.module in modules for place in weight.places)
        or matches(weight.name, root,
                   [one for one in patterns if isinstance(one, str)]))


def _is_touched_in_part(weight: Weight, names: dict[nn.Module, str]) -> bool:
    modules = [place.module for place in weight.places]
    if weight.kind != "parameter" or not all(
            isinstance(module, nn.Module) for module in modules):
        return False
    if all(isinstance(module, nn.Embedding) for module in modules):
        return weight.parts[0].stored.nbytes >= _LEAST_EMBEDDING
    module = modules[0]
    assert module is not None
    if _expert(names.get(module, "")):
        return True
    shape = weight.parts[0].shape
    return (len(shape) == 3 and shape[0] > 1
            and "expert" in f"{names.get(module, '')} {type(module).__name__}"
            .lower())


def _expert(name: str) -> bool:
    """One of a list of experts, or a part of one."""
    return re.search(r"(^|\.)experts\.\d+(\.|$)", name) is not None


def _why_not(weight: Weight, spec: GroupSpec) -> str | None:
    if not weight.plain or len(weight.parts) != 1:
        return "it is no plain tensor"
    part = weight.parts[0]
    whole = (part.offset_bytes == 0 and part.dtype == part.stored.meta.dtype
             and part.shape == tuple(part.stored.meta.shape))
    if not whole or not part.stored.meta.is_contiguous():
        return "it is a view, or not contiguous"
    if part.stored.nbytes == 0:
        return "it is empty"
    if part.stored.name in spec.storage:
        return "storage_dtype= stores it as another type; add it to skip="
    return None


def _of(weight: Weight, names: dict[nn.Module, str]) -> InPlaceWeight:
    modules = [place.module for place in weight.places
               if place.module is not None]
    shape = weight.parts[0].shape
    units = 1
    if all(isinstance(module, nn.Embedding) for module in modules) or (
            len(shape) == 3 and not _expert(names.get(modules[0], ""))):
        units = shape[0]
    return InPlaceWeight(weight, modules, units)


class _Keeper:
    """What views keep: the pieces' leases, until the GPU is done with them."""

    def __init__(self, tensors: InPlace, device: torch.device) -> None:
        self._kept = KeptLease(tensors, device)
        self.device_kind = tensors.device_kind
        self.device_uuid = tensors.device_uuid

    def check(self) -> None:
        """The bytes stay, whatever becomes of hoistd."""


class Touches:
    """How often the units of each weight were touched: counted by hooks, as an
    operator on the device, and read by libhoist."""

    def __init__(self, weights: Sequence[InPlaceWeight],
                 device: torch.device) -> None:
        self.first: list[int] = []
        ranges: dict[int, tuple[int, int]] = {}  # By a module's id().
        length = 0
        for one in weights:
            key = id(one.modules[0])
            if key not in ranges or ranges[key][1] != one.units:
                ranges[key] = length, one.units
                length += one.units + 1  # And for numbers of no unit.
            self.first.append(ranges[key][0])
        # One tensor, or compilers would make no CUDA graph of what adds to it.
        self.counts = is_static(torch.zeros(max(length, 1), dtype=torch.int32,
                                            device=device))
        one_more = torch.ones(1, dtype=torch.int32, device=device)
        self._hooks = []
        seen: set[int] = set()
        for weight, first in zip(weights, self.first):
            for module in weight.modules:
                if id(module) not in seen:
                    seen.add(id(module))
                    count = _Count(self.counts, first, weight.units, one_more)
                    self._hooks.append(module.register_forward_pre_hook(
                        count, with_kwargs=True))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


class _Count:
    """A module's forward pre-hook. Of what it is called with, the first tensor
    of whole numbers says which units it touches; a weight of one unit is
    touched by each call."""

    def __init__(self, counts: torch.Tensor, first: int, units: int,
                 one_more: torch.Tensor) -> None:
        self._counts = counts
        # No number: compiled blocks that are alike share code.
        self._first = torch.tensor([first], device=counts.device)
        self._one_more = one_more
        self._units = units  # And numbers of no unit.

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if (not torch.compiler.is_compiling()
                and torch._C._functorch.peek_interpreter_stack() is not None):
            return  # torch.func's transforms refuse writes to others' tensors.
        if self._units == 1:
            self._counts.index_add_(0, self._first, self._one_more)
            return
        for value in (*args, *kwargs.values()):
            if (isinstance(value, torch.Tensor)
                    and value.dtype in (torch.int64, torch.int32)):
                at = value.detach().reshape(-1).to(
                    self._counts.device).clamp(0, self._units)
                more = self._one_more.expand(at.numel())
                if at.numel() > self._units:  # A prompt reads a unit once.
                    more = torch.zeros(self._units + 1, dtype=torch.int32,
                                       device=at.device).index_fill_(0, at, 1)
                    at = torch.arange(self._units + 1, device=at.device)
                self._counts.index_add_(0, self._first + at, more)
                return


class InPlaceWeights:
    """Of one attached module: bound for the attachment's life.

    Threads: one at a time; the attachment's lock.
    """

    def __init__(self, session: Session, model: Model, part: DevicePart,
                 weights: Sequence[InPlaceWeight], hot_bytes: int,
                 deadline: float) -> None:
        self._part = part
        self._session = session
        self._weights = weights
        self._device = part.torch_device
        self.operands: Operands | None = None  # For compiled code, once bound.
        self._touches = Touches(weights, self._device)
        counts = self._touches.counts
        tensors = {}
        for one, first in zip(weights, self._touches.first):
            meta = one.stored.meta
            tensors[one.weight.name] = InPlaceTensor(
                _dtypes.from_torch(meta.dtype), tuple(meta.shape),
                [model[piece.name] for piece in one.pieces], one.units, first)
        try:
            self._tensors: Any = session.in_place(
                model, tensors, hot_bytes=hot_bytes, device=part.device.index,
                deadline=deadline, counts=(counts.data_ptr(), counts.numel()),
                keep=counts)
        except BaseException:
            self._touches.remove()
            raise
        self._before = [one.weight.value for one in weights]
        self._bound: list[torch.Tensor] = []  # What modules have, in order.
        self._keeper: _Keeper | None = _Keeper(self._tensors, self._device)

    @property
    def nbytes(self) -> int:
        return sum(one.stored.nbytes for one in self._weights)

    @property
    def weights(self) -> list[Weight]:
        return [one.weight for one in self._weights]

    def bind(self) -> None:
        """The modules have them from now on; what they had is let go."""
        for one in self._weights:
            view = self._tensors[one.weight.name]
            tensor = Tensor(self._keeper, view.info, view.address).torch()  # type: ignore[arg-type]
            made = guarded(one.weight.put_together([tensor]).requires_grad_(
                one.weight.requires_grad))
            one.weight.put(made)
            self._bound.append(made)
            one.stored.tensor = None
            for piece in one.pieces:
                piece.stored[0].tensor = None
        self._before = []
        self.operands = operands_of(
            self, new_token(self._device),
            [one.weight.value for one in self._weights], [])

    def stage(self, weights: Tensors) -> None:
        """In compiled code, where a pass begins; see Staged."""
        self.before_pass()

    def read(self, weights: Tensors, outputs: Tensors) -> None:
        """Nothing to see to: what comes after may read them."""

    def done(self, weights: Tensors, last: bool) -> None:
        """Likewise, where it ends."""
        self.after_pass()

    def misplaced(self) -> None:
        """They may be read at any time."""

    def before_pass(self) -> None:
        """What is to become hot or cold does, before this pass and once the GPU
        has done what came before; not while another thread launches one."""
        try:
            self._tensors.begin(self._part.stream())
        except HoistError as error:
            raise self._part.explained(error) from None

    def after_pass(self) -> None:
        """All of it has been launched."""
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
        """All is read from the host until there is a budget again; nothing
        reads it just now."""
        self._tensors.set_budget(0)
        with contextlib.suppress(HoistError):  # hoistd has ended, and has all.
            self._tensors.advance(wait=True)

    def own_weights(self, devices: dict[str, torch.device]
                    ) -> list[tuple[dict[str, Any], str, Any]]:
        """Copies, where the module had them; what goes where, but where
        somebody has put something else, or has taken ours out."""
        own: list[tuple[dict[str, Any], str, Any]] = []
        for one, bound in zip(self._weights, self._bound):
            # Of memory that is mapped here, also when hoistd has ended.
            made = one.weight.put_together([copy_of(
                torch.Tensor.detach(bound), devices[one.stored.name])])
            made.requires_grad_(bound.requires_grad)
            own += [swap for swap in one.weight.swaps(made)
                    if swap[0].get(swap[1]) is bound]
        return own

    def restore(self) -> None:
        """Of an attach that failed, before `bind`: nothing was changed."""
        self.let_go()

    def let_go(self) -> None:
        """What somebody holds keeps its bytes."""
        self._touches.remove()
        self._bound = []
        self._keeper = self._tensors = self.operands = None

    def counts(self) -> dict[str, int]:
        """For AttachStats."""
        stats = self._tensors.stats
        return {"in_place_bytes": stats.bytes, "hot_bytes": stats.hot_bytes,
                "hot_moves": stats.moves,
                "touched_hot_bytes": stats.touched_hot_bytes,
                "touched_cold_bytes": stats.touched_cold_bytes}


def refuse_several(parts: Sequence[DevicePart]) -> None:
    if len(parts) > 1:
        raise InvalidArgument("in_place= is for one device; give a budget of "
                              "one, or in_place=None")
