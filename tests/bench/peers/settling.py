"""How soon what is read in place has found its place, by itself."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable

TOGETHER = 4  # Passes whose mean says how things are.
NEAR = 1.1  # Times what it comes to: there.


class Settling:
    """Counts what passes touch, from the first one on.

    counts: so far, touched_hot_bytes and touched_cold_bytes.
    """

    def __init__(self, counts: Callable[[], dict[str, int]],
                 tokens: int) -> None:
        self._counts, self._tokens = counts, tokens
        self._last = counts()
        self.shares: list[float] = []  # Of cold bytes, by pass.

    def note(self) -> None:
        """A pass has ended."""
        now = self._counts()
        hot, cold = (now[name] - self._last[name] for name in
                     ("touched_hot_bytes", "touched_cold_bytes"))
        if hot + cold:
            self.shares.append(cold / (hot + cold))
            self._last = now

    def until_steady(self, run: Callable[[], Any], seconds: float,
                     most: int = 40) -> None:
        """Passes until the mean of some is that of those before them."""
        end = time.monotonic() + seconds
        while (len(self.shares) < most and time.monotonic() < end
               and not self._steady()):
            run()
            self.note()

    def _steady(self) -> bool:
        if len(self.shares) < 3 * TOGETHER:
            return False
        before, now = (statistics.fmean(self.shares[part]) for part in
                       (slice(-2 * TOGETHER, -TOGETHER),
                        slice(-TOGETHER, None)))
        return abs(now - before) <= 0.03 * max(before, now)

    def facts(self) -> dict[str, Any]:
        """settle_tokens: before the first pass that is near what the last ones
        are, or None: there were too few to say."""
        if len(self.shares) < 2 * TOGETHER:
            return {"cold_shares": self.shares, "settle_tokens": None}
        last = statistics.fmean(self.shares[-TOGETHER:])
        before = next(at for at, share in enumerate(self.shares)
                      if share <= NEAR * last + 0.002 or
                      at == len(self.shares) - 1)
        return {"cold_shares": self.shares,
                "settle_tokens": before * self._tokens}
