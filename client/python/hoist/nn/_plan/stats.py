"""The results of hoist.stats."""

from __future__ import annotations

import dataclasses
from typing import Mapping

from ..._plan import PlanStats

# Counts of each plan, summed over all plans.
PLAN_COUNTS = tuple(field.name for field in dataclasses.fields(PlanStats))
# Counts of weights that are read in place.
AHEAD_COUNTS = ("guessed", "fetched_bytes", "fetched_read_bytes")
IN_PLACE_COUNTS = ("in_place_bytes", "hot_bytes", "hot_moves",
                   "touched_hot_bytes", "touched_cold_bytes", *AHEAD_COUNTS)


@dataclasses.dataclass(frozen=True)
class AttachStats:
    """Facts and counts of an attached module; bytes unless named otherwise."""

    model: str
    groups: int
    model_bytes: int  # That hoist holds of it.
    budget_bytes: int  # Of device memory, as granted: pinned, resident, ring.
    pinned_bytes: int  # On the device for the attachment's life.
    resident_bytes: int
    ring_bytes: int
    streamed_bytes: int  # Copied in each pass that keeps to the order.
    scratch_bytes: int  # The worker's own device memory for casts of weights.
    bound_groups: int  # Resident or pinned, without a hook or work for calls.
    passes: int  # Of the root module; without those that had all of it bound.
    stages: int
    resident_stages: int
    ready_stages: int
    skipped: int
    unplanned: int
    host_waits: int
    wake_ups: int
    idle_reads: int  # Operators that read a weight outside its forward.
    in_place_bytes: int  # Of weights that are read in place.
    hot_bytes: int  # Of device memory, for their cached pieces.
    hot_moves: int  # Pieces that came to the device, or left it.
    # Of touched experts and rows, by their place at that time.
    touched_hot_bytes: int
    touched_cold_bytes: int
    guessed: int  # Experts that guesses for a layer named.
    fetched_bytes: int  # Copied ahead of the experts' reads.
    fetched_read_bytes: int  # Of these, the bytes of experts that were chosen.


@dataclasses.dataclass(frozen=True)
class PipelineStats(AttachStats):
    """Of a pipeline: its budget, and the sums over its components."""

    components: Mapping[str, AttachStats]

    @staticmethod
    def of(pipeline: str, budget: int,
           components: Mapping[str, AttachStats]) -> PipelineStats:
        """The sums over these components."""
        sums: dict[str, int] = {
            field.name: sum(getattr(one, field.name)
                            for one in components.values())
            for field in dataclasses.fields(AttachStats)
            if field.name not in ("model", "budget_bytes")}
        return PipelineStats(model=pipeline, budget_bytes=budget,
                             components=components, **sums)
