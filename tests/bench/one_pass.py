#!/usr/bin/env python3
"""Records passes of an attached module for plot.py: the link's copies by
`hoistctl trace record`, and beside them each block's computation.

one_pass.py BIN OUT.json    BIN: a folder with hoistd and hoistctl

The budget is half of the model. On a GPU: 24 blocks of 256 MiB, whose kernels
take about as long as the copies, timed by CUDA events. Without one: 12 blocks of
8 MiB on an emulated device with a link of 2 GB/s.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "client/python")]
import hoist  # noqa: E402
from real_daemon import MIB, RealDaemon  # noqa: E402

CUDA = torch.cuda.is_available()
BLOCKS, WIDTH, ROWS = (24, 4096, 8192) if CUDA else (12, 512, 64)
LIKE: dict[str, Any] = (
    {"device": "cuda", "dtype": torch.bfloat16} if CUDA else {})
LINK = "" if CUDA else '[device.emulated]\nlink = "2GB/s"'
RECORDED = 0.3  # Seconds.


class Clock:
    """Moments on the stream of the GPU, or of the CPU, as Unix nanoseconds."""

    def __init__(self) -> None:
        self.zero = self.moment()
        if CUDA:
            self.zero.synchronize()
        self.unix = time.time_ns()

    @staticmethod
    def moment() -> Any:
        if not CUDA:
            return time.time_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ns(self, moment: Any) -> int:
        if not CUDA:
            return int(moment)
        return self.unix + round(self.zero.elapsed_time(moment) * 1e6)


def made() -> nn.Sequential:
    return nn.Sequential(nn.Sequential(*(
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH, bias=False),
                      nn.Linear(4 * WIDTH, WIDTH, bias=False))
        for _ in range(BLOCKS)))).to(**LIKE).eval()


@torch.no_grad()
def main() -> None:
    binaries, out = map(pathlib.Path, sys.argv[1:])
    model = made()
    nbytes = sum(one.nbytes for one in model.parameters())
    daemon = RealDaemon(binaries / "hoistd",
                        backend="cuda" if CUDA else "emulated", pool=nbytes,
                        slab=32 * MIB, host=2 * nbytes, extra=LINK)
    try:
        with hoist.connect(daemon.socket, connect_deadline=60) as session:
            hoist.attach(model, budget=0.5, session=session)
            begun: dict[str, Any] = {}
            computed: list[tuple[str, Any, Any]] = []
            for name, block in model[0].named_children():
                block.register_forward_pre_hook(
                    lambda *_, name=name: begun.update({name: Clock.moment()}))
                block.register_forward_hook(
                    lambda *_, name=name: computed.append(
                        (name, begun[name], Clock.moment())))
            x = torch.randn(ROWS, WIDTH, **LIKE)
            for _ in range(5):
                model(x)
            computed.clear()
            clock = Clock()
            recorder = subprocess.Popen(
                [binaries / "hoistctl", "--socket", daemon.grpc_socket, "trace",
                 "record", "--for", f"{RECORDED}s", "--out", out])
            while recorder.poll() is None:
                model(x)
                if CUDA:
                    torch.cuda.synchronize()
            hoist.detach(model)
    finally:
        daemon.stop()
    trace = json.loads(out.read_text())
    began = trace["otherData"]["began_unix_ns"]
    trace["otherData"]["device"] = (
        torch.cuda.get_device_name() if CUDA else "an emulated device")
    trace["traceEvents"] = [*copies(trace["traceEvents"]), *(
        slice_of("computes", name, (clock.ns(begin) - began) / 1e3,
                 (clock.ns(end) - clock.ns(begin)) / 1e3)
        for name, begin, end in computed if clock.ns(begin) > began)]
    out.write_text(json.dumps(trace, indent=0) + "\n")


def slice_of(row: str, name: str, at: float, took: float) -> dict[str, Any]:
    return {"ph": "X", "pid": 1, "tid": row, "name": name, "ts": round(at, 1),
            "dur": round(took, 1)}


def copies(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The plan's, the pieces of each group joined."""
    rows = {(one["pid"], one["tid"]) for one in events
            if one["name"] == "thread_name"
            and re.fullmatch(r"plan \d+ copies", one["args"]["name"])}
    found: list[dict[str, Any]] = []
    for one in sorted((one for one in events if one["ph"] == "X"
                       and (one["pid"], one["tid"]) in rows),
                      key=lambda one: one["ts"]):
        if not found or found[-1]["name"] != one["name"]:
            found.append(slice_of("copies", one["name"], one["ts"], 0))
        found[-1]["dur"] = round(one["ts"] + one["dur"] - found[-1]["ts"], 1)
    return found


if __name__ == "__main__":
    main()
