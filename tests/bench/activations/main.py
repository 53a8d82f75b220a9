"""The command line, the measuring, and the table."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import pathlib
import statistics
import tempfile
import time
from typing import Any

import torch

from common import compute_alike, hoistd, table  # tests/bench/common.py
from peers.main import binaries, cuda_here, default_bin
from peers.measure import link_rate, once, pinned_bytes, synchronize

from .model import SIZES, Blocks, Size, input_of, parameters_of
from .rows import Row, rows_of

MIB = 1 << 20
ABOUT = """\
A training step of transformer blocks whose activations stay on the GPU, are
offloaded by hoist, or by its peers: in one process, the rows' steps in turn.

columns:
  step     median of the steps but the first
  x        step by the resident row's
  first    the first step, with what is set up for it
  peak     device memory of a step, beside weights and their gradients
  pinned   host memory that the row holds: of torch's allocator, or the arena
  out, in  bytes copied to the host and back in a step, as hoist counts them
  equal    loss and gradients = the resident row's, bit for bit

The last lines say whether a layer's bytes fit its time on the link, which is
what a step that costs nothing needs.
"""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench_activations.py", description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = cuda_here()
    parser.add_argument("--size", choices=SIZES,
                        default="h200" if cuda else "tiny",
                        help="h200: 24 blocks of width 20480, 1024 tokens; "
                        "small: of width 4096; tiny: to try this program "
                        "(default: h200; without a GPU, tiny)")
    parser.add_argument("--blocks", type=int, help="instead of the size's")
    parser.add_argument("--hidden", type=int, help="instead of the size's")
    parser.add_argument("--tokens", type=int, help="instead of the size's")
    parser.add_argument("--rows", help="these alone, comma-separated beginnings "
                        "of names")
    parser.add_argument("--steps", type=int, default=5,
                        help="of each row, the first included (default: 5)")
    parser.add_argument("--limit", type=float, default=90.0, metavar="S",
                        help="seconds after which no step is begun "
                        "(default: 90)")
    parser.add_argument("--bin", default=default_bin(),
                        help="folder of hoistd and hoistctl, or of a build")
    parser.add_argument("--device", choices=("cuda", "cpu"),
                        default="cuda" if cuda else "cpu",
                        help="cpu: hoist's emulated device")
    parser.add_argument("--json", metavar="FILE", help="- is stdout, in the "
                        "table's place")
    return parser.parse_args(arguments)


def size_of(options: argparse.Namespace) -> Size:
    given = {name: getattr(options, name) for name in ("blocks", "hidden",
                                                       "tokens")
             if getattr(options, name)}
    return dataclasses.replace(SIZES[options.size], **given)


def digest(loss: torch.Tensor, parameters: list[Any]) -> list[int]:
    """Of the bits of the loss and the gradients: other bits have another one,
    but for chance."""
    found = []
    for one in (loss, *(one.grad for one in parameters)):
        bits = one.reshape(-1).view(torch.int32)
        found += [int(part.sum(dtype=torch.int64))
                  for part in (bits, bits[::3], bits[1::7])]
    return found


class Measured:
    """One row's steps so far."""

    def __init__(self, name: str, make: Any, size: Size, parameters: list[Any],
                 device: torch.device) -> None:
        self.name = name
        self.seconds: list[float] = []
        self.peaks: list[int] = []
        self.digests: list[list[int]] = []
        self.pinned = 0  # Of torch's allocator, since the first step.
        self._make = make
        self._size, self._parameters = size, parameters
        self._device = device
        self.row: Row | None = None

    def step(self, x: torch.Tensor) -> None:
        """Forward and backward; of the first its set-up is a part."""
        for one in self._parameters:
            one.grad = torch.zeros_like(one)
        pinned = pinned_bytes(self._device)
        before = self._device_bytes(torch.cuda.reset_peak_memory_stats)
        loss, seconds = once(lambda: self._step(x), self._device)
        self.seconds.append(seconds)
        self.peaks.append(self._device_bytes() - before)
        self.digests.append(digest(loss, self._parameters))
        for one in self._parameters:
            one.grad = None
        if len(self.seconds) == 1:
            self.pinned = pinned_bytes(self._device) - pinned

    def _step(self, x: torch.Tensor) -> torch.Tensor:
        if self.row is None:
            self.row = self._make(Blocks(self._size, self._parameters),
                                  self._device)
        return self.row.step(x)

    def _device_bytes(self, forget: Any = None) -> int:
        if self._device.type != "cuda":
            return 0
        if forget is not None:
            forget(self._device)
            return torch.cuda.memory_allocated(self._device)
        return torch.cuda.max_memory_allocated(self._device)

    def report(self, resident: Measured) -> dict[str, Any]:
        assert self.row is not None
        steady = self.seconds[1:] or self.seconds
        base = resident.seconds[1:] or resident.seconds
        return {**self.row.stats(), "step_seconds": statistics.median(steady),
                "of_resident": (statistics.median(steady) /
                                statistics.median(base)),
                "first_seconds": self.seconds[0], "all_seconds": self.seconds,
                "peak_bytes": max(self.peaks),
                "pinned_bytes": self.pinned + self.row.pinned(),
                "equal": all(one == resident.digests[0]
                             for one in self.digests)}


def layer_bytes(size: Size, parameters: list[Any], x: torch.Tensor) -> int:
    """What a block saves for backward, each storage once, weights apart."""
    weights = {one.untyped_storage().data_ptr() for one in parameters}
    found: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    model = Blocks(dataclasses.replace(size, blocks=1), parameters)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        model(x.detach().requires_grad_())
    return sum(found.values())


def measure(options: argparse.Namespace, size: Size, names: list[str],
            folder: pathlib.Path) -> dict[str, Any]:
    device = torch.device(options.device)
    if device.type == "cpu":  # Small blocks, and others want the cores.
        torch.set_num_threads(1)
    parameters = parameters_of(size, device)
    x = input_of(size, device)
    each = layer_bytes(size, parameters, x)
    link = link_rate(device, 256 * MIB if device.type == "cuda" else 8 * MIB)
    # Of all hoist rows at once, and what rounding takes.
    arenas = int(each * size.blocks * 2 * 1.02) + 64 * MIB
    begin = time.monotonic()
    toml = f"""
[device]
backend = "{'cuda' if device.type == 'cuda' else 'emulated'}"
slab = "2MiB"
pool = "64MiB"
[host]
pool = "64MiB"
in_place = {arenas}
"""
    with hoistd(binaries(options.bin, folder), toml) as daemon:
        os.environ["HOIST_SOCKET"] = daemon.socket
        makers = rows_of(size.blocks)
        rows = [Measured(name, makers[name], size, parameters, device)
                for name in names]
        for turn in range(options.steps):
            for row in rows:
                if turn and time.monotonic() - begin > options.limit:
                    break
                row.step(x)
                gc.collect()
        found = {row.name: row.report(rows[0]) for row in rows}
        for row in rows:
            assert row.row is not None
            row.row.close()
        synchronize(device)
    name = (torch.cuda.get_device_name(device) if device.type == "cuda"
            else "emulated")
    forward = found["resident"]["step_seconds"] / size.blocks / 3
    return {"device_name": name, "torch": torch.__version__, "link": link,
            **{field: getattr(size, field) for field in
               ("blocks", "hidden", "tokens")},
            "layer_bytes": each, "layer_link_seconds": each / link,
            "layer_forward_seconds": forward,
            "seconds": time.monotonic() - begin, "rows": found}


def show(report: dict[str, Any]) -> None:
    print(f"{report['device_name']}, torch {report['torch']}: "
          f"{report['blocks']} blocks of width {report['hidden']}, "
          f"{report['tokens']} tokens; link {report['link'] / 1e9:.1f} GB/s")
    lines = [("row", "step ms", "x", "first ms", "peak MB", "pinned MB",
              "out MB", "in MB", "equal")]
    for name, row in report["rows"].items():
        steps = len(row["all_seconds"])
        moved = [f"{row[field] / steps / 1e6:.0f}" if field in row else "-"
                 for field in ("moved_out_bytes", "moved_in_bytes")]
        lines.append((name, f"{row['step_seconds'] * 1e3:.1f}",
                      f"{row['of_resident']:.3f}",
                      f"{row['first_seconds'] * 1e3:.0f}",
                      f"{row['peak_bytes'] / 1e6:.0f}",
                      f"{row['pinned_bytes'] / 1e6:.0f}", *moved,
                      "yes" if row["equal"] else "NO"))
    table(lines)
    print(f"a layer saves {report['layer_bytes'] / 1e6:.0f} MB: "
          f"{report['layer_link_seconds'] * 1e3:.1f} ms of the link; its "
          f"forward takes {report['layer_forward_seconds'] * 1e3:.1f} ms (a "
          "third of its part of the resident step)")


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    compute_alike()
    size = size_of(options)
    names = list(rows_of(size.blocks))
    if options.rows:
        asked = [one.strip() for one in options.rows.split(",")]
        names = [name for name in names if name == "resident" or any(
            name.startswith(one) for one in asked)]

    with tempfile.TemporaryDirectory(prefix="hoist-bench-") as folder:
        report = measure(options, size, names, pathlib.Path(folder))
    if options.json == "-":
        print(json.dumps(report, indent=1))
    else:
        show(report)
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(report, indent=1))
    return 0 if all(row["equal"] for row in report["rows"].values()) else 1
