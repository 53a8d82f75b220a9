"""Zero-copy tensors, in pieces that are hot or cold."""

from __future__ import annotations

import ctypes as c
import dataclasses
from typing import Any, Mapping, Sequence

from . import _dtypes
from . import _c
from . import _library as lib
from ._errors import InvalidArgument
from ._library import (DEVICE_KINDS, Owner, ask, call, described, make,
                       milliseconds, sized)
from ._model import Model, TensorInfo
from ._hot import Stream, handle_of
from ._tensor import Tensor


@dataclasses.dataclass(frozen=True)
class InPlaceTensor:
    """The parts of a zero-copy tensor.

    pieces: names of groups of one model, whose tensors form it end to end.
    units: equal parts of it whose touches are counted: rows, experts.
    first_count: index of the units' first count (see Session.in_place).
    scratch_bytes: writable device memory behind the pieces' last page, shared
        by tensors with an equal `scratch`, and part of the hot bytes.
    """

    dtype: str  # safetensors' name, "BF16".
    shape: tuple[int, ...]
    pieces: Sequence[str]
    units: int = 1
    first_count: int = 0
    scratch_bytes: int = 0
    scratch: int = 0


@dataclasses.dataclass(frozen=True)
class InPlaceStats:
    """See hoist_in_place_stats; bytes and numbers of pieces."""

    bytes: int
    hot_budget_bytes: int
    hot_bytes: int
    piece_count: int
    hot_piece_count: int
    moves: int
    touched_hot_bytes: int
    touched_cold_bytes: int


class InPlace(Owner, Mapping[str, Tensor]):
    """Zero-copy tensors by name, each at one address, with pieces in device
    memory (hot) or host memory (cold). Session.in_place makes them.

    Views are valid while this object lives, and read the same bytes from both.
    """

    def __init__(self, session: Any, device: Any, handle: c.c_void_p,
                 tensors: Mapping[str, InPlaceTensor], counts: object) -> None:
        self._session = session  # Keeps it alive.
        self._counts = counts
        self._own(handle, "in_place_free")
        self._begin: Any = lib.load().hoist_in_place_begin
        self._end: Any = lib.load().hoist_in_place_end
        self._pending: Any = lib.load().hoist_in_place_pending
        self._tensors = dict(tensors)
        self._numbers = {name: i for i, name in enumerate(self._tensors)}
        self.device_kind: int = DEVICE_KINDS[device.kind]
        self.device_uuid: bytes = device.uuid

    def close(self) -> None:
        """Requires that no reader is left; the views become invalid.
        Idempotent."""
        self._dispose()

    def __getitem__(self, name: str) -> Tensor:
        wanted = self._tensors[name]
        data = c.c_void_p()
        call("in_place_address", self._handle, self._numbers[name],
             c.byref(data))
        return Tensor(self, _info(name, wanted), data.value or 0)

    def __iter__(self) -> Any:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<hoist.InPlace: {len(self)} tensors>"

    def begin(self, stream: Stream = None) -> None:
        """Begins a pass on the stream: due pieces move first, for at most a
        fifth of the time.

        All readers must be on that stream, or in order with it, launched by the
        calling thread until `end`. In a captured CUDA graph each launch begins
        a pass.
        """
        error = c.c_void_p()
        code = self._begin(self._handle, handle_of(stream), c.byref(error))
        if code:
            lib.fail(code, error)

    def end(self) -> None:
        """The pass has been launched; it may still run."""
        error = c.c_void_p()
        code = self._end(self._handle, c.byref(error))
        if code:
            lib.fail(code, error)

    def touch(self, name: str, counts: Mapping[int, int]) -> None:
        """Reports the touches of one pass: each unit's count."""
        units = (c.c_uint32 * len(counts))(*counts)
        times = (c.c_uint32 * len(counts))(*counts.values())
        call("in_place_touch", self._handle, self._numbers[name], units, times,
             len(counts))

    def advance(self, *, wait: bool = False) -> None:
        """Moves due pieces between hot and cold; nothing may read the tensors
        meanwhile. wait: also for pieces whose copies are under way."""
        call("in_place_advance", self._handle, int(wait))

    @property
    def pending(self) -> int:
        """The number of pieces that `advance` would move now. Cheap."""
        return int(self._pending(self._handle))

    def set_budget(self, hot_bytes: int) -> None:
        """Sets the bytes of device memory for hot pieces."""
        call("in_place_set_budget", self._handle, hot_bytes)

    def check(self) -> None:
        """Raises if results with the tensors may be wrong."""
        call("in_place_check", self._handle)

    def check_hot(self) -> None:
        """Raises hoistd's last refusal of device memory within the budget,
        mostly ResourceExhausted; the pieces stay cold meanwhile."""
        call("in_place_check_hot", self._handle)

    @property
    def stats(self) -> InPlaceStats:
        """The hot pieces now, and the touches so far."""
        return described(InPlaceStats, _c.InPlaceStats, "in_place_get_stats",
                     self._handle)


def _info(name: str, wanted: InPlaceTensor) -> TensorInfo:
    strides, step = [], 1
    for size in reversed(wanted.shape):
        strides.append(step)
        step *= size
    bits = step * ask("dtype_bits", _dtypes.NUMBERS[wanted.dtype])
    return TensorInfo(name, wanted.dtype, tuple(wanted.shape),
                      tuple(reversed(strides)), 0, bits // 8)


def create(session: Any, model: Model, tensors: Mapping[str, InPlaceTensor], *,
           hot_bytes: int, device: int, deadline: float,
           counts: tuple[int, int] | None, cold: int,
           keep: object) -> InPlace:
    """See Session.in_place."""
    if not tensors:
        raise InvalidArgument("no tensors to read in place")
    facts = session._device(device)
    records = (_c.InPlaceTensor * len(tensors))()
    held = []
    for record, (name, wanted) in zip(records, tensors.items()):
        groups = model._numbers(wanted.pieces)
        held.append(groups)
        record.struct_size = c.sizeof(_c.InPlaceTensor)
        record.groups = groups
        record.group_count = len(groups)
        record.units = wanted.units
        record.first_count = wanted.first_count
        record.bytes = _info(name, wanted).nbytes
        record.scratch_bytes = wanted.scratch_bytes
        record.scratch = wanted.scratch
    options = sized(_c.InPlaceOptions)
    options.device = device
    options.hot_budget_bytes = hot_bytes
    options.deadline_ms = milliseconds(deadline)
    if counts is not None:
        options.counts, options.count_length = counts
        options.cold = c.cast(c.c_void_p(cold or None),
                              c.POINTER(c.c_uint8))
    handle = make("in_place_create", "in_place_free", session._handle,
                  model._handle, records, len(records), c.byref(options))
    return InPlace(session, facts, handle, tensors, keep)
