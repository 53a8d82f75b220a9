#!/usr/bin/env python3
"""What an inference engine's process pays for its weights.

bench_serving.py --bin DIR [--layers N] [--width W] [--runs R] [--folder DIR]
                 [--device cuda|emulated]

The engine itself is not here; its shapes are: decoder layers with fused
parameters, filled by loaders of their own out of a checkpoint that has the parts
apart; buffers of no dimension that are written after loading; a step captured in
a CUDA graph. N layers of width W lie in a safetensors file in the folder (34 of
4096 are 15 GB).

A first process has hoistd read the file; R later ones find all on the device.
Prints for each: what a context and a module on meta take, and what is added by
recipes and by binding; whether the outputs of eager steps and of graph replays
are those of the file's own weights, bit for bit; bytes that hoistd read and
copied for it; and medians of suspending, and of resuming with the graph replayed
after. Ends with 1 if a bit differs, or a later process made hoistd read or copy.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Iterator

import hoist
import torch
from hoist.checkpoint import FileTensor, read_headers
from hoist.serving._binding import bind, settle_the_rest
from hoist.serving._files import register_files
from hoist.serving._meta import build_on_meta
from hoist.serving._recipes import write_recipes
from hoist.serving._trace import Trace
from hoist.serving._weights import Weights, device_of
from torch import nn

from common import MIB, hoistd, table

TOML = """
[device]
backend = "{device}"
pool = {pool}
[host]
pool = {pool}
"""


def parts_of(layer: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What the checkpoint has of a layer: Llama's names and proportions."""
    inner = width * 7 // 2
    for name, shape in (("q_proj", (width, width)),
                        ("k_proj", (width // 4, width)),
                        ("v_proj", (width // 4, width)),
                        ("o_proj", (width, width)),
                        ("gate_proj", (inner, width)),
                        ("up_proj", (inner, width)),
                        ("down_proj", (width, inner)),
                        ("norm", (width,))):
        yield f"layers.{layer}.{name}.weight", shape


class Fused(nn.Module):
    """A linear layer whose parameter is several of the checkpoint's, by rows."""

    def __init__(self, rows: list[int], columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(sum(rows), columns, dtype=torch.bfloat16),
            requires_grad=False)
        self.weight.weight_loader = self.load
        self.rows = rows
        self.register_buffer("_scale", torch.tensor(1.0))

    def load(self, parameter: nn.Parameter, loaded: torch.Tensor,
             part: int) -> None:
        begin = sum(self.rows[:part])
        parameter.data.narrow(0, begin, self.rows[part]).copy_(loaded)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        shapes = {name.split(".")[2]: shape for name, shape in
                  parts_of(0, width)}
        rows = {name: shape[0] for name, shape in shapes.items()}
        self.norm = nn.Parameter(torch.empty(width, dtype=torch.bfloat16),
                                 requires_grad=False)
        self.qkv = Fused([rows["q_proj"], rows["k_proj"], rows["v_proj"]],
                         width)
        self.o = Fused([rows["o_proj"]], width)
        self.gate_up = Fused([rows["gate_proj"], rows["up_proj"]], width)
        self.down = Fused([rows["down_proj"]], shapes["down_proj"][1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = x.shape[-1]
        normed = nn.functional.rms_norm(x, (width,), self.norm)
        x = x + self.o(self.qkv(normed)[..., :width])
        gate, up = self.gate_up(x).chunk(2, -1)
        return x + 0.01 * self.down(nn.functional.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        fused = {"q_proj": ("qkv", 0), "k_proj": ("qkv", 1),
                 "v_proj": ("qkv", 2), "o_proj": ("o", 0),
                 "gate_proj": ("gate_up", 0), "up_proj": ("gate_up", 1),
                 "down_proj": ("down", 0)}
        for name, loaded in weights:
            _, number, part, _ = name.split(".")
            layer = self.layers[int(number)]
            if part == "norm":
                layer.norm.data.copy_(loaded)
                continue
            where, at = fused[part]
            weight = getattr(layer, where).weight
            weight.weight_loader(weight, loaded, at)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def write_checkpoint(path: pathlib.Path, layers: int, width: int) -> int:
    """Random bf16, of a fixed seed; returns its bytes."""
    header: dict[str, Any] = {}
    end = 0
    shapes = [one for layer in range(layers) for one in parts_of(layer, width)]
    for name, shape in shapes:
        nbytes = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape),
                        "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    torch.manual_seed(0)
    block = torch.randn(64 << 20, dtype=torch.bfloat16) / width ** 0.5
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for at, (_, shape) in enumerate(shapes):
            left = torch.Size(shape).numel()
            while left:  # Each tensor begins elsewhere in the block.
                some = torch.roll(block[:min(left, block.numel())], 977 * at)
                file.write(some.view(torch.uint8).numpy().data)
                left -= some.numel()
    return end


def file_values(path: pathlib.Path) -> Iterator[tuple[str, torch.Tensor]]:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            file.seek(8 + length + begin)
            data = bytearray(file.read(end - begin))
            yield name, torch.frombuffer(data, dtype=torch.bfloat16).reshape(
                entry["shape"])


class Clock:
    """Seconds of each part of a process's start."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}

    def time(self, name: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        made = work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.parts[name] = time.perf_counter() - begin
        return made


def traced(model: Model, headers: dict[str, FileTensor]) -> Any:
    trace = Trace()
    with trace:
        model.load_weights(iter(
            (name, trace.file_tensor(name, one))
            for name, one in headers.items()))
    recipes = write_recipes(model, trace, headers)
    if recipes.refused:
        sys.exit(f"no recipe: {recipes.refused}")
    return recipes


def captured(model: Model, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A step, replayed; on a CPU, run."""
    if x.device.type != "cuda":
        return lambda: model(x)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(x)

    def replay() -> torch.Tensor:
        graph.replay()
        torch.cuda.synchronize()
        return out

    return replay


def engine(arguments: argparse.Namespace) -> dict[str, Any]:
    """One process: over hoistd's weights, or, without a socket, its own."""
    device = torch.device("cuda" if arguments.device == "cuda" else "cpu")
    path = pathlib.Path(arguments.file)
    clock = Clock()
    clock.time("context", lambda: torch.zeros(1, device=device))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, arguments.width, generator=generator).to(
        device, torch.bfloat16)
    if arguments.socket is None:
        with device:
            model = Model(arguments.layers, arguments.width)
        model.load_weights(file_values(path))
        return {"eager": digest(model(x)), "graph": digest(
            captured(model, x)())}
    with device:
        model, lost = clock.time("module", lambda: build_on_meta(
            lambda: Model(arguments.layers, arguments.width)))
    recipes = clock.time("recipes", lambda: traced(
        model, read_headers([path])))

    def connect() -> hoist.Session:
        return hoist.connect(arguments.socket, connect_deadline=60)

    def find(session: hoist.Session) -> hoist.Model:
        return register_files(session, "bench", [path], recipes)

    def bound() -> Weights:
        session = connect()
        weights = Weights(session, connect, find, recipes.stored,
                          device_of(session, device), 600)
        bind(model, weights.tensors)
        settle_the_rest(model, device, lost)
        return weights

    weights = clock.time("binding", bound)
    for layer in model.layers:
        layer.qkv._scale.fill_(0.5)  # As engines do, after loading.
    found: dict[str, Any] = {"eager": digest(model(x))}
    step = captured(model, x)
    found["graph"] = digest(step())
    sleeps = []
    for _ in range(arguments.sleeps):
        sleep = Clock()
        sleep.time("suspend", weights.suspend)
        sleep.time("resume", weights.resume)
        sleeps.append(sleep.parts)
        found["graph"] = found["graph"] if digest(step()) == found[
            "graph"] else "another after a sleep"
    found["ms"] = {name: 1e3 * took for name, took in clock.parts.items()}
    for name in ("suspend", "resume"):
        found["ms"][name] = 1e3 * statistics.median(
            one[name] for one in sleeps)
    return found


def digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().view(torch.uint8)
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()


def start(arguments: argparse.Namespace, path: pathlib.Path,
          socket: str | None) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--engine", "--file", str(path),
         "--layers", str(arguments.layers), "--width", str(arguments.width),
         "--device", arguments.device, "--bin", arguments.bin,
         *([] if socket is None else ["--socket", socket])],
        capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--layers", type=int, default=34)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sleeps", type=int, default=5)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--device", default="cuda",
                        choices=("cuda", "emulated"))
    parser.add_argument("--engine", action="store_true",
                        help="be one of the processes")
    parser.add_argument("--file")
    parser.add_argument("--socket")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    if arguments.engine:
        print(json.dumps(engine(arguments)))
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = pathlib.Path(folder, "model.safetensors")
        nbytes = write_checkpoint(path, arguments.layers, arguments.width)
        return measure(arguments, path, nbytes)


def measure(arguments: argparse.Namespace, path: pathlib.Path,
            nbytes: int) -> int:
    want = start(arguments, path, None)
    pool = nbytes + nbytes // 8 + (256 * MIB)
    rows = [("process", "context", "module", "recipes", "binding", "suspend",
             "resume", "read MB", "copied MB", "bits")]
    wrong = False
    with hoistd(arguments.bin,
                TOML.format(device=arguments.device, pool=pool)) as node:
        for run in range(1 + arguments.runs):
            before = node.counters()
            # Its own sleeping and waking copy nothing: hoistd keeps the bytes.
            found = start(arguments, path, node.socket)
            after = node.counters()
            moved = [(after[name] - before[name]) / 1e6 for name in
                     ("file_read_bytes", "host_to_device_bytes")]
            same = all(found[one] == want[one] for one in ("eager", "graph"))
            wrong = wrong or not same or (run > 0 and any(moved))
            rows.append((
                "first" if run == 0 else f"later {run}",
                *(f"{found['ms'][one]:.1f} ms" for one in rows[0][1:7]),
                *(f"{one:.1f}" for one in moved),
                "equal" if same else "OTHERS"))
    print(f"{arguments.layers} layers of {arguments.width}: {nbytes / 1e9:.2f} "
          f"GB, on {arguments.device}")
    table(rows)
    return int(wrong)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
