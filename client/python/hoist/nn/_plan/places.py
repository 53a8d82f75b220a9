"""The places behind one layer's experts, filled by the CPU: for devices that are
emulated. places_cuda.py has the same for GPUs."""

from __future__ import annotations

import dataclasses
from typing import Sequence

import torch

PLACES = 6
# Of the last cold guesses, the part that was chosen. Below it nothing is copied.
LEAST_RIGHT = 0.2
KEPT = 0.99  # Of a count of guesses, from layer to layer.
AT_FIRST = 20.0  # As if so many had been guessed and chosen.


@dataclasses.dataclass
class Shared:
    """What all layers have together."""

    counts: torch.Tensor  # Of guessed experts, fetched bytes, and read ones.
    lately: torch.Tensor  # Cold guesses, and those of them that were chosen.

    @classmethod
    def on(cls, device: torch.device) -> Shared:
        return cls(torch.zeros(3, dtype=torch.int64, device=device),
                   torch.full((2,), AT_FIRST, device=device))


class Places:
    """One layer's: `fetch`, then `answer` and `rename` of what its router
    chose.

    Places keep no copy from pass to pass: others fill them, too.
    """

    def __init__(self, weights: Sequence[torch.Tensor], units: int, first: int,
                 cold: torch.Tensor, touched: torch.Tensor,
                 shared: Shared) -> None:
        self._weights = weights  # Each with `first` + PLACES experts.
        self._units = units
        self._first = first
        self._cold = cold
        self._touched = touched  # A count for each, and for invalid numbers.
        self._shared = shared
        self._wanted: list[int] = []
        self._at: dict[int, int] = {}  # The place of each that was copied.
        self._bytes = sum(one[0].nbytes for one in weights)

    def fetch(self, guess: torch.Tensor) -> None:
        """Copies the cold ones of these; what comes of it is seen by
        `rename`."""
        shared = self._shared
        named = [one for one in dict.fromkeys(guess.reshape(-1).tolist())
                 if 0 <= one < self._units]
        shared.counts[0] += len(named)
        self._wanted = [one for one in named if self._cold[one]][:PLACES]
        guessed, chosen = shared.lately.tolist()
        pays = chosen >= LEAST_RIGHT * guessed
        self._at = {one: self._first + place for place, one
                    in enumerate(self._wanted) if pays}
        for one, place in self._at.items():
            for weight in self._weights:
                weight[place].copy_(weight[one])

    def answer(self, chosen: torch.Tensor) -> None:
        """Counts the chosen, and ends copies of others."""
        at = chosen.reshape(-1).long()
        at = at.where((at >= 0) & (at < self._units), self._units)
        self._touched.index_add_(0, at, torch.ones_like(at).int())

    def rename(self, chosen: torch.Tensor) -> torch.Tensor:
        """The places of those that have come, and the others' own numbers."""
        renamed = chosen.clone()
        found = 0
        for one, place in self._at.items():
            found += bool((chosen == one).any())
            renamed[chosen == one] = place
        shared = self._shared
        right = sum(bool((chosen == one).any()) for one in self._wanted)
        shared.lately.mul_(KEPT).add_(torch.tensor([len(self._wanted), right]))
        shared.counts += torch.tensor([0, len(self._at) * self._bytes,
                                       found * self._bytes])
        return renamed

    def rows(self, table: torch.Tensor) -> torch.Tensor:
        """Of a table with a row an expert, one with a row a place, too."""
        more = self._first + PLACES - self._units
        at = torch.zeros(more, dtype=torch.int64, device=table.device)
        for one, place in self._at.items():
            at[place - self._units] = one
        return torch.cat([table, table.index_select(0, at)])
