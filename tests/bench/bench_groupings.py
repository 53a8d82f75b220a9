#!/usr/bin/env python3
"""What one model costs that is staged in several groupings.

bench_groupings.py --bin DIR [--folder DIR] [--blocks N] [--width N]
                   [--device cuda|emulated] [--pool SIZE] [--host SIZE]

Needs torch; DIR holds hoistd and hoistctl, HOIST_LIBRARY names libhoist. A model
of N blocks of eight width x width matrices in bf16 is written to the folder.
Then, with a fresh hoistd each:

  hoistctl first   `hoistctl load`, then a worker by block, then one by leaf
  leaves first     a worker by leaf, then one by block

Each worker is a process of its own with a budget of three blocks, and stays
until the last has ended. A row a worker: the bytes that hoistd read for it; the
model's bytes on the host; the bytes that lie on the device twice; and the
median pass beside the copy of as many bytes in one piece.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "../../client/python")]

import hoist  # noqa: E402
from common import GIB, hoistd, table  # noqa: E402

MATRICES = 8
PASSES = 7


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        for i in range(MATRICES):
            setattr(self, f"m{i}", nn.Linear(width, width, bias=False,
                                             dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(MATRICES):
            x = getattr(self, f"m{i}")(x)
        return x


def build(blocks: int, width: int) -> nn.Module:
    return nn.Sequential(*[Block(width) for _ in range(blocks)])


def write(path: pathlib.Path, blocks: int, width: int) -> int:
    """As safetensors, a block at a time; returns the weights' bytes."""
    each = width * width * 2
    header, at = {}, 0
    for name in build_names(blocks):
        header[name] = {"dtype": "BF16", "shape": [width, width],
                        "data_offsets": [at, at + each]}
        at += each
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = torch.Generator().manual_seed(1)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(blocks):
            made = torch.randn(width, width, generator=generator) / width ** 0.5
            for _ in range(MATRICES):
                file.write(made.bfloat16().view(torch.uint8).numpy().tobytes())
    return at


def build_names(blocks: int) -> list[str]:
    return [f"{b}.m{i}.weight" for b in range(blocks) for i in range(MATRICES)]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def link_seconds(of_bytes: int, device: torch.device) -> float:
    """To copy as many bytes from pinned memory in pieces of 1 GiB."""
    if device.type != "cuda":
        return float("nan")
    piece = min(of_bytes, GIB)
    host = torch.empty(piece, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(piece, dtype=torch.uint8, device=device)
    seconds = []
    for _ in range(6):
        begin = time.perf_counter()
        there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:]) * of_bytes / piece


def work(arguments: argparse.Namespace) -> None:
    """One worker; says what it saw, and stays until it is told to go."""
    device = torch.device("cuda" if arguments.device == "cuda" else "cpu")
    each = MATRICES * arguments.width ** 2 * 2
    with hoist.connect(arguments.work, connect_deadline=60) as session:
        model = hoist.load(lambda: build(arguments.blocks, arguments.width),
                           arguments.file, budget=3 * each, session=session,
                           groups=arguments.groups, rename={})
        x = torch.ones(1, arguments.width, dtype=torch.bfloat16, device=device)
        seconds = []
        with torch.inference_mode():
            for _ in range(PASSES):
                begin = time.perf_counter()
                y = model(x)
                wait(device)
                seconds.append(time.perf_counter() - begin)
        hoist.check(model)
        streamed = hoist.stats(model).streamed_bytes
        floor = link_seconds(streamed, device)
        print(json.dumps({"pass": statistics.median(seconds[2:]),
                          "floor": floor, "streamed": streamed,
                          "sum": float(y.float().sum())}), flush=True)
        sys.stdin.readline()


def scenario(name: str, arguments: argparse.Namespace, file: pathlib.Path,
             weights: int, order: list[str]) -> list[tuple[str, ...]]:
    toml = (f'[device]\nbackend = "{arguments.device}"\n'
            f'pool = "{arguments.pool}"\n[host]\npool = "{arguments.host}"\n'
            f'[models]\nroots = ["{file.parent}"]\n[log]\nlevel = "error"\n')
    rows = []
    sums = set()
    with hoistd(arguments.bin, toml) as node:
        node.wait_whole()
        workers = []
        for groups in order:
            before = int(node.status()["counters"]["file_read_bytes"])
            if groups == "hoistctl":
                node.ctl("load", str(file))
                seen = None
            else:
                worker = subprocess.Popen(
                    [sys.executable, __file__, "--work", node.socket,
                     "--groups", groups, "--file", str(file), "--device",
                     arguments.device, "--blocks", str(arguments.blocks),
                     "--width", str(arguments.width)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                workers.append(worker)
                seen = json.loads(worker.stdout.readline())
                sums.add(seen["sum"])
            read = int(node.status()["counters"]["file_read_bytes"]) - before
            host, device = node.tier("HOST"), node.tier("DEVICE")
            rows.append((
                name, "hoistctl load" if seen is None else f"by {groups}",
                f"{read / 1e9:.2f}",
                f"{int(host['used_bytes']) / weights:.3f}",
                f"{int(device.get('doubled_bytes', 0)) / 1e9:.2f}",
                "" if seen is None else f"{seen['pass'] * 1e3:.1f}",
                "" if seen is None else f"{seen['floor'] * 1e3:.1f}",
                "" if seen is None else
                f"{100 * seen['floor'] / seen['pass']:.1f} %"))
        for worker in workers:
            worker.communicate("\n")
    if len(sums) != 1:
        raise SystemExit(f"workers computed different results: {sums}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", help="the folder with hoistd and hoistctl")
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--device", default="cuda",
                        choices=["cuda", "emulated"])
    parser.add_argument("--pool", default="16GiB")
    parser.add_argument("--host", default="12GiB")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--groups", help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        return work(arguments)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        file = pathlib.Path(folder, "model.safetensors")
        weights = write(file, arguments.blocks, arguments.width)
        print(f"{weights / 1e9:.2f} GB of weights")
        rows = [("first", "who", "read, GB", "host / model",
                 "doubled on the device, GB", "pass, ms", "link, ms",
                 "of the link")]
        rows += scenario("hoistctl", arguments, file, weights,
                         ["hoistctl", "block", "leaf"])
        rows += scenario("leaves", arguments, file, weights,
                         ["leaf", "block"])
        table(rows)


if __name__ == "__main__":
    main()
