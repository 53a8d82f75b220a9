"""The places behind one layer's experts, filled by the GPU itself.

One kernel reads over the link what a guess names, with few blocks, on the side
stream. The router's answer is a word that it looks at: it then goes on with what
was chosen alone. So a layer waits for no wrong guess.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from typing import Any, Sequence

import torch

from ..._errors import Unimplemented
from .places import KEPT, LEAST_RIGHT, PLACES, Places, Shared

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise Unimplemented("ahead= on a GPU needs Triton, which PyTorch's CUDA "
                        f"wheels bring: {error}") from error

_BLOCK = 4096  # Words of 4 bytes, at a time and block.
_BLOCKS = 16  # Enough for the link, and few of a GPU's.
_SLOTS = tl.constexpr(8)  # The next power of 2 of PLACES.
_PLACES = tl.constexpr(PLACES)
_LEAST_RIGHT = tl.constexpr(LEAST_RIGHT)
_KEPT = tl.constexpr(KEPT)


@triton.jit(do_not_specialize=["length"])
def _choose(guess, length, cold, slots, counts, lately, units,
            GUESSES: tl.constexpr):
    """Writes the cold experts, no copied block of any of them, and whether
    they are to be copied."""
    i = tl.arange(0, GUESSES)
    ids = tl.load(guess + i, mask=i < length, other=-1)
    valid = (ids >= 0) & (ids < units)
    again = ((ids[:, None] == ids[None, :]) & (i[None, :] < i[:, None])
             & valid[None, :])
    named = valid & (tl.sum(again.to(tl.int32), 1) == 0)
    wanted = named & (tl.load(cold + ids, mask=named, other=0) != 0)
    pays = tl.load(lately + 1) >= tl.load(lately) * _LEAST_RIGHT
    place = tl.cumsum(wanted.to(tl.int32), 0) - 1
    s = tl.arange(0, _SLOTS)
    here = (wanted[None, :] & (place[None, :] == s[:, None])
            & (s[:, None] < _PLACES))
    tl.store(slots + s, tl.max(
        tl.where(here, ids[None, :], -1), 1).to(tl.int32))
    tl.store(slots + _SLOTS + s, tl.zeros([_SLOTS], tl.int32))
    tl.store(slots + 2 * _SLOTS, pays.to(tl.int32))
    tl.store(counts, tl.load(counts) + tl.sum(named.to(tl.int64), 0))


@triton.jit
def _copy_expert(weight, words, expert, place, answered, units,
                 BLOCK: tl.constexpr):
    """The number of blocks that this program copied."""
    lanes = tl.arange(0, BLOCK)
    source = weight + expert.to(tl.int64) * words
    target = weight + place.to(tl.int64) * words
    copied = 0
    block = tl.program_id(0)
    blocks = tl.cdiv(words, BLOCK)
    while block < blocks:
        open_ = tl.load(answered + units, volatile=True) == 0
        chosen = tl.load(answered + expert, volatile=True) != 0
        if open_ | chosen:
            at = block * BLOCK + lanes
            tl.store(target + at, tl.load(source + at, mask=at < words),
                     mask=at < words)
            copied += 1
            block += tl.num_programs(0)
        else:  # At once: a look at each other block would cost its latency.
            block = blocks
    return copied


@triton.jit
def _copy(slots, answered, first, units, one, one_words, other, other_words,
          BLOCK: tl.constexpr):
    pays = tl.load(slots + 2 * _SLOTS)
    for s in range(_PLACES):
        expert = tl.load(slots + s)
        if (expert >= 0) & (pays != 0):
            copied = _copy_expert(one, one_words, expert, first + s, answered,
                                  units, BLOCK)
            copied += _copy_expert(other, other_words, expert, first + s,
                                   answered, units, BLOCK)
            tl.atomic_add(slots + _SLOTS + s, copied)


@triton.jit(do_not_specialize=["length"])
def _answer(chosen, length, answered, touched, units, CHOSEN: tl.constexpr):
    i = tl.arange(0, CHOSEN)
    ids = tl.load(chosen + i, mask=i < length, other=-1)
    valid = (ids >= 0) & (ids < units)
    tl.store(answered + ids, tl.full([CHOSEN], 1, tl.int32), mask=valid)
    tl.debug_barrier()
    tl.atomic_xchg(answered + units, 1)
    tl.atomic_add(touched + tl.where(valid, ids, units), 1, mask=i < length)


@triton.jit(do_not_specialize=["length"])
def _rename(chosen, length, renamed, slots, answered, counts, lately, first,
            units, blocks, block_bytes, CHOSEN: tl.constexpr,
            UNITS: tl.constexpr):
    i = tl.arange(0, CHOSEN)
    s = tl.arange(0, _SLOTS)
    ids = tl.load(chosen + i, mask=i < length, other=-1)
    expert = tl.load(slots + s)
    copied = tl.load(slots + _SLOTS + s)
    # All loads before any store: a load behind a store waits for its value.
    was_guessed, was_right = tl.load(lately), tl.load(lately + 1)
    fetched, fetched_read = tl.load(counts + 1), tl.load(counts + 2)
    wanted = expert >= 0
    right = (ids[:, None] == expert[None, :]) & wanted[None, :]
    same = right & (copied == blocks)[None, :]
    place = tl.max(tl.where(same, s[None, :], -1), 1)
    tl.store(renamed + i, tl.where(place >= 0, first + place, ids),
             mask=i < length)
    found = tl.sum(tl.max(same.to(tl.int32), 0), 0)
    tl.store(lately, was_guessed * _KEPT + tl.sum(wanted.to(tl.float32), 0))
    tl.store(lately + 1, was_right * _KEPT
             + tl.sum(tl.max(right.to(tl.int32), 0), 0).to(tl.float32))
    tl.store(counts + 1, fetched + tl.sum(copied.to(tl.int64), 0) * block_bytes)
    tl.store(counts + 2, fetched_read
             + found.to(tl.int64) * blocks * block_bytes)
    u = tl.arange(0, UNITS)
    tl.store(answered + u, tl.zeros([UNITS], tl.int32), mask=u <= units)


class CudaPlaces(Places):
    """One layer's, of two weights. See Places."""

    def __init__(self, weights: Sequence[torch.Tensor], units: int, first: int,
                 cold: torch.Tensor, touched: torch.Tensor,
                 shared: Shared) -> None:
        super().__init__(weights, units, first, _seen_by_gpu(cold, shared),
                         touched, shared)
        device = shared.counts.device
        # The experts, their copied blocks, and whether any are to be copied.
        self._slots = torch.zeros(2 * _SLOTS.value + 1, dtype=torch.int32,
                                  device=device)
        self._slots[:_SLOTS.value] = -1
        # A mark for each that was chosen, and that the router has answered.
        self._answered = torch.zeros(units + 1, dtype=torch.int32,
                                     device=device)
        self._flat = [one.view(-1).view(torch.int32) for one in weights]
        self._words = [one.numel() // (first + PLACES) for one in self._flat]
        self._blocks = sum(triton.cdiv(one, _BLOCK) for one in self._words)
        self._identity = torch.arange(first + PLACES, device=device)
        self._compile()

    def _compile(self) -> None:
        """Before a graph is captured."""
        nothing = torch.full((1,), -1, dtype=torch.int64,
                             device=self._slots.device)
        self.fetch(nothing)
        self.answer(nothing)
        self.rename(nothing)

    def fetch(self, guess: torch.Tensor) -> None:
        shared = self._shared
        guess = guess.contiguous()
        _choose[(1,)](guess, guess.numel(), self._cold, self._slots,
                      shared.counts, shared.lately, self._units,
                      GUESSES=_width(guess), num_warps=1)
        _copy[(_BLOCKS,)](self._slots, self._answered, self._first, self._units,
                          self._flat[0], self._words[0], self._flat[1],
                          self._words[1], BLOCK=_BLOCK, num_warps=8)

    def answer(self, chosen: torch.Tensor) -> None:
        _answer[(1,)](chosen.contiguous(), chosen.numel(), self._answered,
                      self._touched, self._units, CHOSEN=_width(chosen),
                      num_warps=1)

    def rename(self, chosen: torch.Tensor) -> torch.Tensor:
        shared = self._shared
        chosen = chosen.contiguous()
        renamed = torch.empty_like(chosen)
        _rename[(1,)](chosen, chosen.numel(), renamed, self._slots,
                      self._answered, shared.counts, shared.lately, self._first,
                      self._units, self._blocks, 4 * _BLOCK,
                      CHOSEN=_width(chosen), UNITS=_power(self._units + 1),
                      num_warps=1)
        return renamed

    def rows(self, table: torch.Tensor) -> torch.Tensor:
        at = self._identity.clamp(max=self._units - 1)
        at[self._first:] = self._slots[:PLACES].clamp(min=0)
        return table.index_select(0, at)


def _power(least: int) -> int:
    return max(16, 1 << (least - 1).bit_length())


def _width(ids: torch.Tensor) -> int:
    return _power(ids.numel())


class _Address:
    """Host memory that a GPU reads, as its own."""

    def __init__(self, host: torch.Tensor) -> None:
        self.__cuda_array_interface__: Any = {
            "shape": (host.numel(),), "typestr": "|u1", "version": 3,
            "data": (host.data_ptr(), False)}


def _seen_by_gpu(cold: torch.Tensor, shared: Shared) -> torch.Tensor:
    if not shared.counts.is_cuda:  # Triton's interpreter.
        return cold
    return torch.as_tensor(_Address(cold), device=shared.counts.device)
