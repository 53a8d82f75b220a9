"""What a worker process is told, and what a way of running a model gives it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any, Callable

import torch

from .models import Spec


@dataclasses.dataclass(frozen=True)
class Job:
    """One row's work; travels to the worker as JSON."""

    row: str
    spec: Spec
    weights: str  # The safetensors file.
    scratch: str  # A folder of this row's own, for what it offloads to disk.
    device: str  # "cuda" or "cpu".
    passes: int
    # The output of the model with all weights on the device, if known; the row
    # "resident" writes it.
    expected: str
    seconds: float  # Few passes are made where one takes long.
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Of the hoistd to use: its folder, its hoistctl and its process id.
    hoistd: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Stop after the set-up, and after the passes, for a line on stdin.
    in_step: bool = False

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        found = json.loads(text)
        return Job(**{**found, "spec": Spec(**found["spec"])})

    @property
    def path(self) -> pathlib.Path:
        return pathlib.Path(self.weights)


@dataclasses.dataclass
class Ready:
    """A model that is set up: `run` gives the module's output."""

    run: Callable[..., torch.Tensor]
    load_seconds: float  # Of the set-up: file to module in memory.
    streamed_bytes: int  # A pass, by construction.
    module: torch.nn.Module
    # What the library says of itself after the passes.
    facts: Callable[[], dict[str, Any]] = dict
    units: int = 1  # Of a pass, whose figures are those of one: tokens.
    # Where passes differ: what is compared, which is the same each time.
    check: Callable[..., torch.Tensor] | None = None
    # Passes until it is as it will be; after the first ones.
    settle: Callable[..., None] | None = None
    # So far; what passes add to them is the row's, for one unit.
    counts: Callable[[], dict[str, int]] = dict


def ready(job: Job, module: torch.nn.Module, load_seconds: float,
          streamed_bytes: int,
          facts: Callable[[], dict[str, Any]] = dict) -> Ready:
    """A module whose pass is a call of it, or, of a decoder, some tokens."""
    if job.spec.kind == "moe":
        from .moe import Passes
        passes = Passes(module, job.spec, torch.device(job.device), job.options)
        return Ready(passes, load_seconds, streamed_bytes, module, facts,
                     passes.units, passes.check)
    static = bool(job.options.get("static"))
    if job.spec.kind == "llama":
        from .llama import NEW_TOKENS, generating
        return Ready(generating(module, static), load_seconds, streamed_bytes,
                     module, facts, NEW_TOKENS)
    return Ready(module, load_seconds, streamed_bytes, module, facts)


class LeftOut(Exception):
    """This row cannot be run here; says why."""
