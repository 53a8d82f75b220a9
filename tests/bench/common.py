"""What the benches share: synthetic models, a hoistd of one's own, tables."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Iterator

import numpy as np

if TYPE_CHECKING:
    import torch

MIB = 1 << 20
GIB = 1 << 30


def write_model(path: pathlib.Path, groups: int, group_bytes: int) -> int:
    """A safetensors file of `groups` U8 tensors, one a block; returns its
    bytes. The content differs from group to group."""
    header, end = {}, 0
    for i in range(groups):
        header[f"layers.{i}.weight"] = {
            "dtype": "U8", "shape": [group_bytes],
            "data_offsets": [end, end + group_bytes]}
        end += group_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(1)
    block = rng.integers(0, 256, group_bytes, dtype=np.uint8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for i in range(groups):
            block[:8] = np.frombuffer(i.to_bytes(8, "little"), np.uint8)
            block.tofile(file)
    return end


class Daemon:
    """A running hoistd: its folder, its process id, and hoistctl to it."""

    def __init__(self, folder: str, ctl: str, pid: int) -> None:
        self.folder = folder
        self.socket = f"{folder}/hoistd.sock"
        self.grpc_socket = f"{folder}/hoistd.grpc.sock"
        self.pid = pid
        self._ctl = ctl

    def ctl(self, *args: str) -> str:
        return subprocess.run(
            [self._ctl, "--socket", self.grpc_socket, *args], check=True,
            capture_output=True, text=True).stdout

    def status(self) -> dict:
        return json.loads(self.ctl("status", "--json"))

    def tier(self, name: str) -> dict:
        return next(t for t in self.status()["tiers"]
                    if t["tier"] == f"TIER_{name}")

    def counters(self) -> dict[str, int]:
        # Protobuf's JSON leaves zeroes out and quotes 64-bit numbers.
        names = ("file_read_bytes", "host_to_device_bytes",
                 "device_to_host_bytes", "stages", "stages_resident",
                 "pageable_read_bytes", "spill_read_bytes")
        found = self.status().get("counters", {})
        camel = lambda n: n.split("_")[0] + "".join(
            w.capitalize() for w in n.split("_")[1:])
        return {n: int(found.get(n, found.get(camel(n), 0))) for n in names}

    def wait_whole(self) -> float:
        """Seconds until the host pool is all ready."""
        begin = time.perf_counter()
        while True:
            tier = self.tier("HOST")
            get = lambda *names: int(next(
                (tier[n] for n in names if n in tier), 0))
            if get("allocated_bytes", "allocatedBytes") >= get(
                    "capacity_bytes", "capacityBytes"):
                return time.perf_counter() - begin
            time.sleep(0.02)


@contextlib.contextmanager
def hoistd(bin_dir: str, toml: str,
           keeper: bool = False) -> Iterator[Daemon]:
    """Starts hoistd with these tables and stops it at the end. With a keeper,
    what ends is started again, and `pid` is the keeper's."""
    with tempfile.TemporaryDirectory(prefix="hoist-bench-") as folder:
        config = pathlib.Path(folder, "hoistd.toml")
        config.write_text(
            f'[server]\nsocket = "{folder}/hoistd.sock"\n'
            f'grpc_socket = "{folder}/hoistd.grpc.sock"\n'
            f'group = ""\nadmin_group = ""\n{toml}')
        log = open(f"{folder}/log", "w")
        kept = [f"{bin_dir}/hoist-keeper", "--dir", folder, "--"]
        process = subprocess.Popen(
            (kept if keeper else []) +
            [f"{bin_dir}/hoistd", "--config", str(config)], stderr=log,
            stdout=log)
        try:
            while not os.path.exists(f"{folder}/hoistd.grpc.sock"):
                if process.poll() is not None:
                    raise RuntimeError(pathlib.Path(folder, "log").read_text())
                time.sleep(0.01)
            yield Daemon(folder, f"{bin_dir}/hoistctl", process.pid)
        finally:
            process.terminate()
            process.wait()
            log.close()


def compute_alike() -> None:
    """Before CUDA is used: the same bits each time. Attention and matrix products
    have kernels that do not keep to that, and which torch may choose."""
    import torch
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Else each tensor that is made is filled, too.
    torch.utils.deterministic.fill_uninitialized_memory = False


def link_rate(device: torch.device) -> float | None:
    """Bytes a millisecond, from pinned memory to the GPU."""
    import torch
    if device.type != "cuda":
        return None
    source = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(source, device=device)
    best = 0.0
    for _ in range(9):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        there.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, source.nbytes / (time.perf_counter() - begin) / 1e3)
    return best


def rss_bytes() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")


def table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width)
                        for cell, width in zip(row, widths)).rstrip())
