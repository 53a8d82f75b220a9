#!/usr/bin/env python3
"""Many models by turns on a device for some of them.

bench_turns.py --bin DIR [--models 10] [--model-mib 8192] [--layer-mib 128]
               [--pool-mib 40960] [--requests 200] [--kill-after N]
               [--device cuda|emulated] [--folder DIR]

Each worker process attaches one model with the default budget. Requests come in
bursts, to models by Zipf's law, one at a time. A wake is a request whose model
was not whole on the device. Prints the first pass of wakes and the passes of
models that are whole, the copied bytes, and refused and wrong outputs. Then comes
the peer: safetensors.torch.load_file to the device and a pass. Its file is in the
page cache. With --kill-after, hoistd is killed after that many requests; its
keeper starts the next one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pathlib
import random
import signal
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

import hoist
import torch
from torch import nn

from common import MIB, Daemon, hoistd, table

TOML = """
[device]
backend = "{device}"
pool = "{pool}MiB"
slab = "{slab}MiB"
[host]
pool = "{host}MiB"
"""
BATCH = 8
AT_ONCE = 2  # Workers that build their models: each has a copy of its own.


class Layer(nn.Module):
    """A square matrix in four, as layers have several weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows = nn.ModuleDict({name: nn.Linear(
            width, width // 4, bias=False, dtype=torch.bfloat16)
            for name in "abcd"})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows(x) for rows in self.rows.values()], dim=-1)


class Stack(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            y = layer(x)
            x = x + y / y.norm(dim=-1, keepdim=True)
        return x


def shape_of(arguments: argparse.Namespace) -> tuple[int, int]:
    """(layers, width)"""
    width = int((arguments.layer_mib * MIB // 2) ** 0.5) // 4 * 4
    return arguments.model_mib // arguments.layer_mib, width


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def build(arguments: argparse.Namespace, number: int) -> Stack:
    """The content of each layer differs from model to model."""
    layers, width = shape_of(arguments)
    with torch.device("meta"):
        model = Stack(layers, width)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    row = torch.randn(width // 4, width, dtype=torch.bfloat16)
    with torch.no_grad():
        for index, layer in enumerate(model.layers):
            for at, rows in enumerate(layer.rows.values()):
                rows.weight.copy_(row)
                rows.weight[0, :3] = torch.tensor([number + 1, index + 1, at])
    return model.eval()


def worker(arguments: argparse.Namespace, socket: str, number: int,
           talk: Connection, may_build: Any) -> None:
    """Answers each request with (seconds, was whole, error, is right)."""
    os.environ["HOIST_SOCKET"] = socket
    torch.set_num_threads(1)
    device = arguments.device if arguments.device == "cuda" else "cpu"
    _, width = shape_of(arguments)
    torch.manual_seed(1)
    x = torch.randn(BATCH, width, dtype=torch.bfloat16).to(device)
    with may_build:
        model = build(arguments, number)
        hoist.attach(model, deadline=120)
    first = None
    with torch.inference_mode():
        # The first request compares with this.
        while True:
            talk.send(None)
            if talk.recv() is None:
                break
            stats = hoist.stats(model)
            whole = stats.bound_groups == stats.groups
            begin = time.perf_counter()
            error, right = "", True
            try:
                output = model(x)
                synchronize(arguments.device)
                took = time.perf_counter() - begin
                output = output.cpu()
                first = output if first is None else first
                right = torch.equal(output, first)
            except hoist.HoistError as refused:
                took, error = time.perf_counter() - begin, str(refused)
            talk.send((took, whole, error, right))
    hoist.detach(model)


def arrivals(models: int, requests: int) -> list[int]:
    """Bursts of four requests in the mean, to models by Zipf's law."""
    numbers = random.Random(1)
    weights = [1 / (rank + 1) for rank in range(models)]
    found: list[int] = []
    while len(found) < requests:
        model, = numbers.choices(range(models), weights)
        found += [model] * (1 + int(numbers.expovariate(1 / 3)))
    return found[:requests]


def quantiles(seconds: list[float]) -> tuple[str, str]:
    """p50 and p99 in milliseconds."""
    if not seconds:
        return "-", "-"
    ordered = sorted(seconds)
    return (f"{statistics.median(ordered) * 1e3:.1f}",
            f"{ordered[(len(ordered) * 99 - 1) // 100] * 1e3:.1f}")


def peer(arguments: argparse.Namespace) -> list[float]:
    """Loads of one such model by safetensors, each with a pass."""
    from safetensors.torch import load_file, save_file
    layers, width = shape_of(arguments)
    x = torch.randn(BATCH, width, dtype=torch.bfloat16).to(arguments.device)
    found = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = pathlib.Path(folder, "model.safetensors")
        save_file(build(arguments, 0).state_dict(), path)
        for _ in range(10):
            with torch.device("meta"):
                model = Stack(layers, width)
            begin = time.perf_counter()
            model.load_state_dict(load_file(path, device=arguments.device),
                                  assign=True)
            with torch.inference_mode():
                model(x)
            torch.cuda.synchronize()
            found.append(time.perf_counter() - begin)
            del model
            torch.cuda.empty_cache()
    return found[1:]


def serve(arguments: argparse.Namespace, node: Daemon) -> None:
    begin = time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    may_build = spawn.Semaphore(AT_ONCE)
    talks, processes = [], []
    for number in range(arguments.models):
        here, there = spawn.Pipe()
        processes.append(spawn.Process(target=worker, args=(
            arguments, node.socket, number, there, may_build)))
        processes[-1].start()
        there.close()
        talks.append(here)
    for talk in talks:
        talk.recv()
    for talk in talks:  # Each has its first output.
        talk.send(True)
        talk.recv()
        talk.recv()
    print(f"{arguments.models} models attached after "
          f"{time.perf_counter() - begin:.0f} s", flush=True)
    before = node.counters()["host_to_device_bytes"]
    wakes, whole, refused, wrong = [], [], [], 0
    for at, model in enumerate(arrivals(arguments.models, arguments.requests)):
        if at == arguments.kill_after:
            os.kill(int(node.status()["pid"]), signal.SIGKILL)
        talks[model].send(True)
        took, was_whole, error, right = talks[model].recv()
        talks[model].recv()
        wrong += not right
        if error:
            refused.append(error)
        else:
            (whole if was_whole else wakes).append(took)
    copied = node.counters()["host_to_device_bytes"] - before
    for talk, process in zip(talks, processes):
        talk.send(None)
        process.join()
    for error in {*refused}:
        print(f"refused: {error}")
    print(f"{len(refused)} refused, {wrong} wrong, "
          f"{copied / MIB:,.0f} MiB copied to the device\n")
    head = ("requests", "count", "p50 ms", "p99 ms")
    table([head, ("wakes", str(len(wakes)), *quantiles(wakes)),
           ("whole", str(len(whole)), *quantiles(whole))])
    if arguments.device == "cuda":
        loads = peer(arguments)
        table([head, ("safetensors", str(len(loads)), *quantiles(loads))])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--model-mib", type=int, default=8192)
    parser.add_argument("--layer-mib", type=int, default=128)
    parser.add_argument("--pool-mib", type=int, default=40960)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--kill-after", type=int, default=-1)
    parser.add_argument("--device", default="cuda",
                        choices=["cuda", "emulated"])
    parser.add_argument("--folder", default="/dev/shm")
    arguments = parser.parse_args()
    host = arguments.models * arguments.model_mib * 9 // 8
    toml = TOML.format(device=arguments.device, pool=arguments.pool_mib,
                       slab=256 if arguments.pool_mib >= 4096 else 2,
                       host=host)
    with hoistd(arguments.bin, toml, keeper=True) as node:
        node.wait_whole()
        serve(arguments, node)


if __name__ == "__main__":
    main()
