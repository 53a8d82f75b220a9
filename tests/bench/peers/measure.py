"""What a row measures of its own process and of its device."""

from __future__ import annotations

import dataclasses
import gc
import os
import pathlib
import statistics
import time
from typing import Any, Callable, Iterable

import torch

from .models import Spec

MIB = 1 << 20
GIB = 1 << 30


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def warm_up(spec: Spec, device: torch.device) -> None:
    """Runs one block of this size, and forgets it: what torch loads for that
    (context, kernels, workspaces) is torch's own."""
    with torch.no_grad():
        module = dataclasses.replace(spec, blocks=1).build().to_empty(
            device=device)
        for weight in module.parameters():
            weight.zero_()
        for _ in range(2):
            module(*spec.inputs(device))
    synchronize(device)
    del module
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def rss_bytes() -> int:
    """Resident bytes of this process, all of its mappings."""
    try:
        with open("/proc/self/smaps_rollup") as rollup:
            return 1024 * int(next(line.split()[1] for line in rollup
                                   if line.startswith("Rss:")))
    except (OSError, StopIteration):  # Not every sandbox's kernel has it.
        return _status("VmRSS:")


def _status(field: str) -> int:
    with open("/proc/self/status") as status:
        return 1024 * int(next(line.split()[1] for line in status
                               if line.startswith(field)))


def peak_rss_bytes() -> int:
    """The most that was resident since forget_peaks."""
    return _status("VmHWM:")


def forget_peaks(device: torch.device) -> None:
    try:
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")
    except OSError:
        pass  # Then the peak is the process's.
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def pinned_bytes(device: torch.device) -> int:
    """What torch's own allocator has pinned, its cache included."""
    if device.type != "cuda" or not hasattr(torch.cuda, "host_memory_stats"):
        return 0
    # Releases of torch differ in which of these counts what is cached, too.
    stats = torch.cuda.host_memory_stats()
    return max(stats.get(f"{kind}_bytes.current", 0)
               for kind in ("allocated", "reserved"))


def device_used_bytes(device: torch.device) -> int:
    """In use on the whole device, by all processes, contexts included."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def once(run: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    """One call's result and seconds, the device's work included."""
    synchronize(device)
    begin = time.perf_counter()
    result = run()
    synchronize(device)
    return result, time.perf_counter() - begin


def passes(run: Callable[[], Any], device: torch.device, count: int,
           ) -> tuple[Any, list[float]]:
    """`count` calls one right after the other, as a denoising loop makes them:
    the last one's result, and each one's seconds."""
    if device.type != "cuda":
        timed = [once(run, device) for _ in range(count)]
        return timed[-1][0], [seconds for _, seconds in timed]
    torch.cuda.synchronize(device)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    result = None
    for mark in marks[1:]:
        result = run()
        mark.record()
    torch.cuda.synchronize(device)
    return result, [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:])]


def cold_passes(run: Callable[[], Any], device: torch.device, count: int,
                files: Iterable[pathlib.Path]) -> tuple[Any, list[float]]:
    """As `passes`, each with none of the files in the page cache."""
    files = list(files)
    timed = []
    for _ in range(count):
        for file in files:
            _drop_cached(file)
        timed.append(once(run, device))
    return timed[-1][0], [seconds for _, seconds in timed]


def _drop_cached(file: pathlib.Path) -> None:
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())  # What is dirty stays.
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_read_bytes(*pids: int | str) -> int:
    """What processes have had read from disks, by now."""
    found = 0
    for pid in pids:
        with open(f"/proc/{pid}/io") as io:
            found += next(int(line.split()[1]) for line in io
                          if line.startswith("read_bytes:"))
    return found


def link_rate(device: torch.device, size: int = GIB) -> float:
    """Bytes a second from pinned host memory; on the CPU, of a plain copy."""
    cuda = device.type == "cuda"
    host = torch.ones(size, dtype=torch.uint8, pin_memory=cuda)
    there = torch.ones(size, dtype=torch.uint8, device=device)
    _, seconds = passes(lambda: there.copy_(host, non_blocking=True), device, 6)
    return size / statistics.median(seconds[1:])
