#!/usr/bin/env python3
"""What hoistd's death costs a node.

bench_restart.py --bin DIR [--gib N] [--group-mib M] [--folder DIR]
                 [--device cuda|emulated] [--kills K]

A model of N GiB of files and one of an eighth of that, published, are staged to
the device, group by group. Then hoistd, which runs under hoist-keeper, is killed
with SIGKILL, K times, and told to end once; each time the same is staged again,
by a worker that connects anew. Before each, the files leave the page cache.
Prints seconds since the signal (at first: since the start) until `hoistctl
status` answers, until the first group is staged, and until all are; and the
bytes that were read from files and from the spill store.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import hoist
import numpy as np

from common import GIB, MIB, Daemon, hoistd, table, write_model

TOML = """
[device]
backend = "{device}"
pool = {pool}
[host]
pool = {pool}
[log]
level = "warning"
"""


def leave_cache(path: pathlib.Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def stage_all(session: hoist.Session, model: hoist.Model,
              seconds: list[float], begin: float) -> None:
    """Each group once; `seconds` gets when it was there."""
    for group in model:
        with session.stage(group, deadline=600):
            seconds.append(time.perf_counter() - begin)


def served(node: Daemon, but: int) -> int:
    """The pid of a hoistd that answers and is not this one."""
    while True:
        try:
            pid = int(node.status()["pid"])
            if pid != but:
                return pid
        except subprocess.CalledProcessError:
            pass
        time.sleep(0.005)


def row(name: str, node: Daemon, path: pathlib.Path, begin: float,
        but: int) -> tuple[str, ...]:
    served(node, but)
    answers = time.perf_counter() - begin
    seconds: list[float] = []
    with hoist.connect(node.socket, connect_deadline=60) as session:
        stage_all(session, session.register(path, "files"), seconds, begin)
        try:
            published = session.model("published")
        except hoist.NotFound:
            published = None
        if published is not None:
            stage_all(session, published, seconds, begin)
    counters = node.status()["counters"]
    read = int(counters["file_read_bytes"]) + int(counters["spill_read_bytes"])
    return (name, f"{answers:.2f}", f"{seconds[0]:.2f}", f"{seconds[-1]:.2f}",
            f"{read / GIB:.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True,
                        help="the folder with hoistd, hoistctl, hoist-keeper")
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--group-mib", type=int, default=64)
    parser.add_argument("--folder", default="/tmp")
    parser.add_argument("--device", default="emulated")
    parser.add_argument("--kills", type=int, default=2)
    arguments = parser.parse_args()
    group_bytes = arguments.group_mib * MIB
    groups = max(1, int(arguments.gib * GIB) // group_bytes)
    few = max(1, groups // 8)
    pool = (groups + few + 4) * group_bytes // (2 * MIB) * (2 * MIB)
    toml = TOML.format(device=arguments.device, pool=pool)
    rows = [("", "answers, s", "first group, s", "all groups, s", "read")]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = pathlib.Path(folder, "model.safetensors")
        write_model(path, groups, group_bytes)
        leave_cache(path)
        begin = time.perf_counter()
        with hoistd(arguments.bin, toml, keeper=True) as node:
            rows.append(row("started", node, path, begin, 0))
            with hoist.connect(node.socket) as session:
                rng = np.random.default_rng(2)
                for g in range(few):
                    session.publish("published", f"g{g}", {
                        "w": rng.integers(0, 256, group_bytes, np.uint8)})
            for signal_number, times in ((signal.SIGKILL, arguments.kills),
                                         (signal.SIGTERM, 1)):
                for _ in range(times):
                    leave_cache(path)
                    pid = int(node.status()["pid"])
                    begin = time.perf_counter()
                    os.kill(pid, signal_number)
                    rows.append(row(signal.Signals(signal_number).name, node,
                                    path, begin, pid))
    table(rows)


if __name__ == "__main__":
    main()
