"""hoist: a module in memory that is attached, or a file that is loaded."""

from __future__ import annotations

import dataclasses
import time

import torch

from .casting import SKIP, STORAGE
from .job import Job, LeftOut, Ready, ready
from .models import load_weights
from .pipeline import Pipeline, ready as pipeline_ready


def hoisted(job: Job, device: torch.device) -> Ready:
    """job.options: how ("attach", "load", "pipeline"), cold (the
    latter, from files), budget, groups, storage.

    The socket comes by HOIST_SOCKET.
    """
    import hoist
    if not hasattr(hoist, "attach"):
        raise LeftOut("this hoist has no attach")
    options = job.options
    settings = {"groups": options.get("groups", "block"),
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
    if options["how"] == "load":
        module = hoist.load(job.spec.build, job.weights, **settings)
    else:
        begin = time.perf_counter()
        module = job.spec.build()
        load_weights(module, job.path)
        loaded = time.perf_counter() - begin
        module = hoist.attach(module, **settings)
    return ready(job, module, loaded, hoist.stats(module).streamed_bytes,
                 lambda: dataclasses.asdict(hoist.stats(module)))
