"""hoist: a module in memory that is attached, or a file that is loaded."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch

from .casting import SKIP, STORAGE
from .job import Job, LeftOut, Ready, ready
from .models import in_file, load_weights, name_in_file
from .pipeline import Pipeline, ready as pipeline_ready
from .settling import Settling

# Of what moves while passes are made.
COUNTS = ("touched_hot_bytes", "touched_cold_bytes", "hot_moves")
PATIENCE = 300.0  # Seconds, for tens of gigabytes to be read and pinned.


def hoisted(job: Job, device: torch.device) -> Ready:
    """job.options: how ("attach", "load", "pipeline"), cold (the
    latter, from files), budget, groups, storage, in_place.

    The socket comes by HOIST_SOCKET.
    """
    import hoist
    if not hasattr(hoist, "attach"):
        raise LeftOut("this hoist has no attach")
    options = job.options
    settings: dict[str, Any] = {"groups": options.get("groups", "block"),
                                "budget": options["budget"]}
    if options.get("storage") == "fp8":
        settings["storage_dtype"] = STORAGE
        settings["skip"] = SKIP  # The same weights as diffusers casts.
    if options["how"] == "pipeline":
        pipe = (Pipeline(job) if not options.get("cold") else
                Pipeline(job, lambda spec, file: hoist.load(
                    spec.build, file, options["budget"] // 2,
                    groups=settings["groups"])))
        hoist.attach_pipeline(pipe, **settings)
        return pipeline_ready(job, device, pipe, 0,
                              lambda: dataclasses.asdict(hoist.stats(pipe)))
    loaded = 0.0
    if options.get("in_place"):
        settings["in_place"] = "auto"
    if options["how"] == "load":
        module = hoist.load(job.spec.build, job.weights, **settings,
                            **_of_file(job))
    else:
        begin = time.perf_counter()
        module = job.spec.build()
        load_weights(module, job.path)
        loaded = time.perf_counter() - begin
        module = hoist.attach(module, **settings)
    made = ready(job, module, loaded, hoist.stats(module).streamed_bytes,
                 lambda: dataclasses.asdict(hoist.stats(module)))
    return _in_place(made, hoist, module, job) if options.get(
        "in_place") else made


def _of_file(job: Job) -> dict[str, Any]:
    """A mixture's file has some layers' weights, which all have in turns."""
    if job.spec.kind != "moe":
        return {}
    layers = in_file(job.spec).blocks
    return {"rename": lambda name: name_in_file(name, layers),
            "deadline": PATIENCE}


def _in_place(made: Ready, hoist: Any, module: torch.nn.Module,
              job: Job) -> Ready:
    """Its first passes are noted, until it has settled by itself. What is
    counted is exact: the pieces are where they belong by then, and that is
    where the passes that are timed begin."""
    def so_far() -> dict[str, int]:
        stats = hoist.stats(module)
        return {name: getattr(stats, name) for name in COUNTS}

    def counts() -> dict[str, int]:
        hoist.advance(module, wait=True)
        return so_far()

    stats, plain = made.facts, made.run
    settling = Settling(so_far, made.units)

    def noted(*inputs: torch.Tensor) -> torch.Tensor:
        found = plain(*inputs)
        settling.note()
        return found

    def settle(*inputs: torch.Tensor) -> None:
        settling.until_steady(lambda: plain(*inputs), 2 * job.seconds)
        made.run = plain

    if not job.options.get("prefill"):  # Each touches everything.
        made.run, made.settle = noted, settle
        made.facts = lambda: {**stats(), **settling.facts()}
    made.counts = counts
    return made
