"""What diffusers and accelerate offer for models larger than the GPU."""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
from typing import Any

import torch

from .casting import STORAGE, stored_bytes
from .job import Job, LeftOut, Ready, ready
from .models import DTYPE, blocks_of, bytes_of, load_weights
from .pipeline import Pipeline, ready as pipeline_ready
from .sizes import budget_bytes


def import_of(kind: str) -> None:
    """Imports what a row needs. Its memory counts, its time does not: these
    libraries are imported once, and take seconds."""
    names = {"diffusers": "diffusers.hooks", "accelerate":
             "accelerate.big_modeling"}
    if kind in names:
        with contextlib.suppress(Exception):  # The row itself will say so.
            importlib.import_module(names[kind])


def _in_memory(job: Job) -> tuple[torch.nn.Module, float]:
    begin = time.perf_counter()
    module = job.spec.build()
    load_weights(module, job.path)
    return module, time.perf_counter() - begin


def diffusers(job: Job, device: torch.device) -> Ready:
    """job.options: type ("block" or "leaf"), stream, record, disk, storage,
    pipeline."""
    if device.type != "cuda":
        raise LeftOut("diffusers' group offloading needs an accelerator")
    try:
        from diffusers import hooks
    except ImportError as error:
        raise LeftOut(f"no diffusers here: {error}") from error
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    options = job.options
    if options.get("pipeline"):
        pipe = Pipeline(job)
        for module in pipe.components.values():
            _offload(hooks, module, job, device)
        return pipeline_ready(job, device, pipe,
                              bytes_of(pipe.components["transformer"]))
    module, loaded = _in_memory(job)
    streamed = bytes_of(module)
    if options.get("storage") == "fp8":
        streamed = stored_bytes(module)
        hooks.apply_layerwise_casting(module, storage_dtype=STORAGE,
                                      compute_dtype=DTYPE)
    _offload(hooks, module, job, device)
    return ready(job, module, loaded, streamed)


def _offload(hooks: Any, module: torch.nn.Module, job: Job,
             device: torch.device) -> None:
    options = job.options
    hooks.apply_group_offloading(
        module, onload_device=device, offload_device=torch.device("cpu"),
        offload_type=options["type"] + "_level",
        num_blocks_per_group=1 if options["type"] == "block" else None,
        non_blocking=bool(options.get("stream")),
        use_stream=bool(options.get("stream")),
        record_stream=bool(options.get("record")),
        offload_to_disk_path=job.scratch if options.get("disk") else None)


def accelerate(job: Job, device: torch.device) -> Ready:
    """job.options: disk; budget, of what stays on the device."""
    try:
        from accelerate import big_modeling
    except ImportError as error:
        raise LeftOut(f"no accelerate here: {error}") from error
    module, loaded = _in_memory(job)
    streamed = bytes_of(module)
    if "budget" in job.options:
        if device.type != "cuda":
            raise LeftOut("accelerate's max_memory needs an accelerator")
        kept = budget_bytes(job.spec, job.options["budget"], "block", False)
        places = big_modeling.infer_auto_device_map(
            module, max_memory={device.index or 0: kept, "cpu": 1 << 40},
            no_split_module_classes=[type(blocks_of(module)[0]).__name__])
        streamed = sum(bytes_of(module.get_submodule(name))
                       for name, place in places.items() if place == "cpu")
        module = big_modeling.dispatch_model(module, places)
    elif job.options.get("disk"):
        module = big_modeling.disk_offload(module, job.scratch,
                                           execution_device=device)
    else:
        module = big_modeling.cpu_offload(module, execution_device=device)
    return ready(job, module, loaded, streamed)
