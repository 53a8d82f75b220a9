#!/usr/bin/env python3
"""Where a compiled decoder's time between two tokens goes.

bench_gaps.py --bin DIR [--layers N] [--width W] [--tokens T] [--groups block,leaf]

bench_decode.py's Llama generates T tokens with a static cache, which transformers
compiles, with half of it in GPU memory, by block and by leaf, beside plain; then once
more while `hoistctl trace record` runs. Prints medians of a token: milliseconds, the same
while it is recorded; how long the link copies, and the longest time in which it does not;
and of the host's time: the call of compiled code (the look whether it is still right
for the module, and the launch), and hoist's begin and end of a pass. Needs a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import pathlib
import statistics
import tempfile
import threading
import time
from typing import Any, Iterator

import hoist
import torch
from hoist.nn._run import passes

from bench_decode import (TOML, Call, Decoder, around_compiled, bytes_of,
                          make)
from common import MIB, Daemon, hoistd, table

RECORDED = "400ms"


def timing(call: Call, found: list[float]) -> Call:
    """The same, and milliseconds of each call."""
    def run(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            found.append((time.perf_counter() - begin) * 1e3)

    return run


@contextlib.contextmanager
def timed(kind: Any, name: str, found: list[float]) -> Iterator[None]:
    """The same of each call of that method, in the block."""
    call: Call = getattr(kind, name)
    setattr(kind, name, timing(call, found))
    try:
        yield
    finally:
        setattr(kind, name, call)


def host_times(one: Decoder, tokens: int) -> dict[str, float]:
    """Of the host's part of a token: call, begin, end."""
    found: dict[str, list[float]] = {"call": [], "begin": [], "end": []}

    def wrap(call: Call) -> Call:
        return timing(call, found["call"])

    with timed(passes.Passes, "begin", found["begin"]), \
            timed(passes.Passes, "end", found["end"]), \
            around_compiled(one.model, wrap):
        one.generated(tokens)
    times = {name: statistics.median(values) if values else 0.0
             for name, values in found.items()}
    times["call"] -= times["begin"] + times["end"]  # Which are within it.
    return times


def record(one: Decoder, tokens: int, node: Daemon,
           out: pathlib.Path) -> list[tuple[float, float]]:
    """The link's copies meanwhile, each from when to when, in milliseconds."""
    recording = threading.Thread(target=node.ctl, args=(
        "trace", "record", "--for", RECORDED, "--out", str(out)))
    recording.start()
    while recording.is_alive():
        one.run(one.generate, tokens)
    recording.join()
    events = json.loads(out.read_text())["traceEvents"]
    rows = {(event["pid"], event["tid"]): event["args"]["name"]
            for event in events if event["name"] == "thread_name"}
    return sorted((event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3)
                  for event in events if event["ph"] == "X"
                  and rows[event["pid"], event["tid"]] == "copies")


def of_a_token(copies: list[tuple[float, float]],
               token_ms: float) -> tuple[float, float]:
    """How long the link copies, and the longest time that it does not."""
    begin, end = copies[0][0], copies[-1][1]
    tokens = max(1.0, (end - begin) / token_ms)
    gaps = sorted((after[0] - before[1] for before, after in
                   zip(copies, copies[1:])), reverse=True)
    return (sum(to - at for at, to in copies) / tokens,
            statistics.median(gaps[:max(1, round(tokens) - 1)]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--groups", default="block,leaf")
    arguments = parser.parse_args()
    device, tokens = torch.device("cuda", 0), arguments.tokens
    rows: list[tuple[str, ...]] = [
        ("decoder", "ms/token", "recorded", "link copies", "longest gap",
         "call", "begin", "end")]
    plain = make(arguments, device)
    pool = 5 * bytes_of(plain) // 2 + 256 * MIB
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder, hoistd(
            arguments.bin, TOML.format(device="cuda", pool=pool,
                                       in_place=0)) as node:
        os.environ["HOIST_SOCKET"] = node.socket
        # What is compiled keeps its module, which a later copy would share.
        models = {groups: copy.deepcopy(plain)
                  for groups in arguments.groups.split(",")}
        for groups, model in [("", plain), *models.items()]:
            if groups:
                hoist.attach(model, bytes_of(model) // 2, groups=groups)
            one = Decoder(f"hoist, half, by {groups}" if groups else "plain",
                          model, device)
            for at in range(9):
                one.run(one.generate, tokens)
                if at < 4:  # Orders are learned, code is compiled.
                    one.token_ms.clear()
            took = statistics.median(one.token_ms)
            times = host_times(one, tokens)
            found = ["-", "-", "-"]
            if groups:
                one.token_ms.clear()
                copies = record(one, tokens, node,
                                pathlib.Path(folder, "trace.json"))
                recorded = statistics.median(one.token_ms)
                found = [f"{ms:.2f}" for ms in (
                    recorded, *of_a_token(copies, recorded))]
                hoist.detach(model)
            rows.append((one.name, f"{took:.2f}", *found, *(
                f"{times.get(name, 0.0):.2f}"
                for name in ("call", "begin", "end"))))
    table(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
