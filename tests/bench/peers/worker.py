"""The process that one row is measured in: a fresh context, its own memory.

python3 -m peers.worker JOB.json RESULT.json
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from . import (expert_peers, hoist_peer, library_peers, measure,
               plain_peers)
from .job import Job, LeftOut, Ready
from .models import blocks_of, write_weights
from .pipeline import encoder_file

KINDS = {
    "resident": plain_peers.resident,
    "two-slot": plain_peers.two_slot,
    "diffusers": library_peers.diffusers,
    "accelerate": library_peers.accelerate,
    "hoist": hoist_peer.hoisted,
    "lru": expert_peers.lru,
    "uva": expert_peers.uva,
}


class Hoistd:
    """hoistd's own account of itself."""

    def __init__(self, facts: dict[str, Any], alone: bool) -> None:
        self._facts = facts
        self._alone = alone

    def look(self) -> dict[str, int]:
        """Bytes: allocated on the device, pinned, moved to the device; of one
        worker alone, once its ring is full and nothing moves any more."""
        found = self._look()
        while self._alone and found != (again := self._look()):
            found = again
        return found

    def _look(self) -> dict[str, int]:
        if not self._facts:
            return {"device": 0, "pinned": 0, "moved": 0}
        status = json.loads(subprocess.run(
            [self._facts["ctl"], "--socket", self._facts["grpc_socket"],
             "status", "--json"], check=True, capture_output=True).stdout)
        allocated = {tier["tier"]: int(tier["allocated_bytes"])
                     for tier in status["tiers"] if tier.get("device", 0) == 0}
        return {"device": allocated["TIER_DEVICE"],
                "pinned": allocated["TIER_HOST"],
                "moved": int(status["counters"]["host_to_device_bytes"])}


class Stagings:
    """Where each linear layer's weight lies in each of its forwards."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.calls = 0
        self.places: dict[str, set[int]] = {}
        for name, part in module.named_modules():
            if isinstance(part, torch.nn.Linear):
                part.register_forward_pre_hook(self._looker(name))

    def _looker(self, name: str):
        places = self.places.setdefault(name, set())

        def look(module: torch.nn.Module, args: object) -> None:
            self.calls += 1
            places.add(module.weight.data_ptr())
        return look

    def moved(self) -> int:
        return sum(len(places) > 1 for places in self.places.values())


def in_step(job: Job, said: dict[str, Any]) -> None:
    """Tells the parent, and waits until all others are as far."""
    if job.in_step:
        print(json.dumps(said), flush=True)
        sys.stdin.readline()


def check_finite(output: torch.Tensor) -> None:
    if not torch.isfinite(output).all():
        raise FloatingPointError("the output is not finite")


class Compared:
    """A row's outputs beside those of the model with all weights on the
    device; the row "resident" writes them."""

    def __init__(self, job: Job, ready: Ready,
                 inputs: tuple[torch.Tensor, ...]) -> None:
        self._job, self._check, self._inputs = job, ready.check, inputs
        self._equal: list[bool | None] = []
        self._difference = self._largest = 0.0

    def add(self, output: torch.Tensor) -> None:
        """Of a pass; or, where passes differ, of one that is always the
        same."""
        if self._check is not None:
            output = self._check(*self._inputs)
            check_finite(output)
        path = self._job.expected
        if self._job.options["kind"] == "resident" and not os.path.exists(path):
            torch.save(output.cpu(), path)
        if not os.path.exists(path):
            self._equal.append(None)
            return
        output, expected = output.cpu(), torch.load(path)
        if self._check is not None:  # Some decode fewer tokens.
            expected = expected[:output.numel()]
        self._equal.append(torch.equal(output, expected))
        if output.shape == expected.shape:
            self._difference = max(self._difference, float(
                (output.float() - expected.float()).abs().max()))
        self._largest = max(self._largest, float(expected.float().abs().max()))

    def result(self) -> dict[str, Any]:
        """equal: None if nobody knows what is expected. What has kernels of its
        own rounds as it likes: that is no failure."""
        equal = None if None in self._equal else all(self._equal)
        if self._job.options["kind"] == "lru" and not equal:
            equal = None
        return {"equal": equal, "difference": self._difference,
                "largest": self._largest}


def how_many(job: Job, steady: float) -> int:
    """Passes of `steady` seconds each that fit the row's time, 2 at least."""
    return max(2, min(job.passes, int(job.seconds / max(steady, 1e-9))))


def stage_many(job: Job, ready: Ready, inputs: tuple[torch.Tensor, ...],
               device: torch.device) -> dict[str, Any]:
    """job.options["stagings"] stagings of groups: what grew meanwhile?"""
    places = Stagings(ready.module)
    groups = len(blocks_of(ready.module)) + 1
    for _ in range(2):
        ready.run(*inputs)
    measure.synchronize(device)
    rss, used = measure.rss_bytes(), measure.device_used_bytes(device)
    count = -(-job.options["stagings"] // groups)
    for _ in range(count):
        ready.run(*inputs)
    measure.synchronize(device)
    return {"stagings": count * groups, "weights_moved": places.moved(),
            "rss_grew_bytes": measure.rss_bytes() - rss,
            "device_grew_bytes": measure.device_used_bytes(device) - used}


def files_of(job: Job) -> list[pathlib.Path]:
    """That a row reads weights from."""
    return [job.path, encoder_file(job),
            *pathlib.Path(job.scratch).rglob("*.safetensors")]


def prepare(job: Job) -> dict[str, Any]:
    """The machine's facts, and the weights' file if it is not there."""
    device = torch.device(job.device)
    measure.warm_up(job.spec, device)
    idle = measure.device_used_bytes(device)
    if not job.path.exists():
        write_weights(job.spec, job.path, device)
    name = (torch.cuda.get_device_name(device) if device.type == "cuda"
            else "emulated")
    return {"link": measure.link_rate(device, job.options["link_bytes"]),
            "idle_bytes": idle, "device_name": name,
            "torch": torch.__version__}


def warm_up(job: Job, ready: Ready, inputs: tuple[torch.Tensor, ...],
            device: torch.device) -> list[float]:
    """Passes, by their seconds, until it is as it will be. Those that learn an
    order do so in the first pass, and may use it only from the second on."""
    found = [measure.once(lambda: ready.run(*inputs), device)[1]]
    if found[0] * 4 < job.seconds:
        found.append(measure.once(lambda: ready.run(*inputs), device)[1])
    if ready.settle is not None:
        ready.settle(*inputs)
    return found


def run(job: Job) -> dict[str, Any]:
    device = torch.device(job.device)
    measure.warm_up(job.spec, device)
    inputs = job.spec.inputs(device)
    hoistd = Hoistd(job.hoistd, not job.in_step)
    gc.collect()
    rss = measure.rss_bytes()
    measure.forget_peaks(device)
    library_peers.import_of(job.options["kind"])
    imported = measure.rss_bytes() - rss
    begin = time.perf_counter()
    ready = KINDS[job.options["kind"]](job, device)
    measure.synchronize(device)
    set_up = time.perf_counter() - begin
    in_step(job, {"set_up_seconds": set_up})
    output, first = measure.once(lambda: ready.run(*inputs), device)
    check_finite(output)
    compared = Compared(job, ready, inputs)
    if ready.check is None:
        compared.add(output)
    warm = warm_up(job, ready, inputs, device)
    if ready.check is not None:
        compared.add(output)
    count = how_many(job, warm[-1])
    counted = ready.counts()
    before = hoistd.look()["moved"]
    run_once = lambda: ready.run(*inputs)
    cold = bool(job.options.get("cold"))
    pids = ["self", *filter(None, [job.hoistd.get("pid")])]
    read = measure.disk_read_bytes(*pids) if cold else 0
    output, seconds = (
        measure.cold_passes(run_once, device, count, files_of(job)) if cold
        else measure.passes(run_once, device, count))
    result = {
        "import_rss_bytes": imported,
        "rss_bytes": measure.rss_bytes() - rss,
        "peak_rss_bytes": measure.peak_rss_bytes() - rss,
        "pinned_bytes": measure.pinned_bytes(device),
        "device_used_bytes": measure.device_used_bytes(device),
    }
    if cold:
        result["disk_read_bytes"] = (
            measure.disk_read_bytes(*pids) - read) // count
    look = hoistd.look()
    counted = {name: (value - counted[name]) / (count * ready.units)
               for name, value in ready.counts().items()}
    compared.add(output)
    result["torch_peak_bytes"] = (torch.cuda.max_memory_allocated(device)
                                  if device.type == "cuda" else 0)
    streamed = ready.streamed_bytes
    if job.hoistd:  # Counted by hoistd, not by construction.
        streamed = (look["moved"] - before) // (count * ready.units)
    result |= {
        "set_up_seconds": set_up, "load_seconds": ready.load_seconds,
        "first_seconds": first,
        "pass_seconds": statistics.median(seconds) / ready.units,
        "all_pass_seconds": seconds, "warm_up_seconds": warm,
        "units": ready.units, "streamed_bytes": streamed,
        "hoistd_device_bytes": look["device"],
        "hoistd_pinned_bytes": look["pinned"], "says": ready.facts(),
        **counted, **compared.result(),
    }
    result["pinned_bytes"] += result["says"].get("registered_bytes", 0)
    if "stagings" in job.options:
        result |= stage_many(job, ready, inputs, device)
    in_step(job, {"pass_seconds": result["pass_seconds"]})
    return result


def main() -> int:
    job = Job.from_json(pathlib.Path(sys.argv[1]).read_text())
    if job.device == "cpu":  # Small models, and others want the cores as well.
        torch.set_num_threads(1)
    try:
        with torch.no_grad():
            prepares = job.options["kind"] == "prepare"
            result = prepare(job) if prepares else run(job)
    except LeftOut as why:
        result = {"left_out": str(why)}
    pathlib.Path(sys.argv[2]).write_text(json.dumps(result))
    # Nothing to tidy up: exiting would unpin and unmap what the kernel drops.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
