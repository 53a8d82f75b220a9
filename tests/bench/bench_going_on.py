#!/usr/bin/env python3
"""What hoistd's death costs a worker that streams.

bench_going_on.py --bin DIR [--gib N] [--group-mib M] [--budget-gib B]
                  [--resident] [--folder DIR] [--device cuda|emulated]
                  [--kills K] [--upgrade-to HOISTD] [--log LEVEL]

A worker passes over a model of N GiB again and again, in B GiB of the device,
and sums up each group's bytes where they lie. With --resident each pass is also
over a second model of the same bytes, which is all resident. hoistd, which runs
under hoist-keeper, is killed with SIGKILL in the middle of K passes, and told to
end in one more; with --upgrade-to it is another build that comes next, and after
one more the first again. Prints the usual pass; by how much the pass that was hit was
longer; when the dead process was gone and when the next one answered; the bytes that
were read of files since; and how many sums were not those of the first pass.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import statistics
import tempfile
import threading
import time

import hoist
import numpy as np

from bench_restart import served
from common import GIB, MIB, Daemon, hoistd, table, write_model

TOML = """
[device]
backend = "{device}"
pool = {device_pool}
[host]
pool = {host_pool}
[log]
level = "{log}"
"""

MOST_PASSES = 40


class Worker:
    """Streams; `sums` of a pass are exact."""

    def __init__(self, node: Daemon, path: pathlib.Path,
                 budgets: dict[str, int], cuda: bool) -> None:
        """Of each model's name, what it may take of the device."""
        self._cuda = cuda
        self._session = hoist.connect(node.socket, connect_deadline=60)
        self._plans = []
        for name, budget in budgets.items():
            model = self._session.register(path, name)
            self._plans.append((model, self._session.set_plan(
                model, budget=budget, order=list(model), deadline=120)))
        if cuda:
            import torch
            self._torch = torch

    def _sum(self, tensor: hoist.Tensor) -> object:
        if not self._cuda:
            return int(tensor.numpy().view(np.uint32).sum(dtype=np.uint64))
        words = tensor.torch().view(self._torch.int32)
        return words.sum(dtype=self._torch.int64)

    def run_pass(self) -> list[int]:
        stream = self._torch.cuda.current_stream() if self._cuda else None
        sums = []
        for model, plan in self._plans:
            for group in model:
                with plan.use(group, stream=stream) as tensors:
                    sums.extend(self._sum(tensors[name]) for name in tensors)
        if self._cuda:
            self._torch.cuda.synchronize()
        for _, plan in self._plans:
            plan.check()
        return [int(value) for value in sums]


class Programs:
    """A folder with links to programs, of which hoistd's is one of two."""

    def __init__(self, programs: str, folder: str) -> None:
        self.folder = f"{folder}/bin"
        os.mkdir(self.folder)
        for name in ("hoistd", "hoistctl", "hoist-keeper"):
            os.symlink(f"{os.path.abspath(programs)}/{name}",
                       f"{self.folder}/{name}")
        self._first = os.path.abspath(f"{programs}/hoistd")

    def swap(self, other: str) -> str:
        """Which build is there from now on."""
        link = f"{self.folder}/hoistd"
        next_one = self._first if os.readlink(link) != self._first else other
        os.unlink(link)
        os.symlink(os.path.abspath(next_one), link)
        return "the first" if next_one == self._first else "the other build"


def read_of_files(node: Daemon) -> int:
    """Bytes, since this hoistd began."""
    return int(node.status()["counters"]["file_read_bytes"])


def read_by(node: Daemon, worker: Worker) -> int:
    """What a pass read of files."""
    before = read_of_files(node)
    worker.run_pass()
    return read_of_files(node) - before


def gone(pid: int) -> None:
    while pathlib.Path(f"/proc/{pid}").exists():
        time.sleep(0.001)


def kill_later(node: Daemon, pid: int, number: int, delay: float,
               times: dict[str, float]) -> threading.Thread:
    def kill() -> None:
        time.sleep(delay)
        begin = time.perf_counter()
        os.kill(pid, number)
        gone(pid)
        times["gone"] = time.perf_counter() - begin
        served(node, pid)
        times["answers"] = time.perf_counter() - begin

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True,
                        help="the folder with hoistd, hoistctl, hoist-keeper")
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--group-mib", type=int, default=64)
    parser.add_argument("--budget-gib", type=float, default=0.5)
    parser.add_argument("--resident", action="store_true")
    parser.add_argument("--folder", default="/tmp")
    parser.add_argument("--log", default="warning",
                        help="hoistd's log level; debug: print its log")
    parser.add_argument("--device", default="emulated")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--upgrade-to", metavar="HOISTD",
                        help="another build, to which SIGTERM leads")
    arguments = parser.parse_args()
    group_bytes = arguments.group_mib * MIB
    groups = max(1, int(arguments.gib * GIB) // group_bytes)
    pool = (groups + 4) * group_bytes // (2 * MIB) * (2 * MIB)
    budget = int(arguments.budget_gib * GIB)
    budgets = {"streams": budget}
    if arguments.resident:
        budgets["resident"] = pool
    # Slabs are whole, and rings and residents lie in their own.
    device_pool = sum(budgets.values()) + GIB
    toml = TOML.format(device=arguments.device, host_pool=pool,
                       log=arguments.log,
                       device_pool=device_pool // (2 * MIB) * (2 * MIB))
    rows = [("", "pass, s", "longer by, s", "gone after, s",
             "answers after, s", "read", "wrong sums")]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = pathlib.Path(folder, "model.safetensors")
        write_model(path, groups, group_bytes)
        programs = Programs(arguments.bin, folder)
        with hoistd(programs.folder, toml, keeper=True) as node:
            worker = Worker(node, path, budgets, arguments.device == "cuda")
            right = worker.run_pass()
            # Until the host pool has come up, and all lies in it.
            passes = 1
            while read_by(node, worker) > 0 and passes < MOST_PASSES:
                passes += 1
            usual = []
            before = read_of_files(node)
            for _ in range(5):
                begin = time.perf_counter()
                worker.run_pass()
                usual.append(time.perf_counter() - begin)
            median = statistics.median(usual)
            read = read_of_files(node) - before
            rows.append(("usual", f"{median:.3f}", "", "", "",
                         f"{read / len(usual) / GIB:.2f} GiB", "0"))
            signals = [signal.SIGKILL] * arguments.kills + [signal.SIGTERM]
            if arguments.upgrade_to:
                signals.append(signal.SIGTERM)
            for number in signals:
                pid = int(node.status()["pid"])
                what = signal.Signals(number).name
                if arguments.upgrade_to and number == signal.SIGTERM:
                    what += f", to {programs.swap(arguments.upgrade_to)}"
                times: dict[str, float] = {}
                thread = kill_later(node, pid, number, median / 2, times)
                begin = time.perf_counter()
                sums = worker.run_pass()
                took = time.perf_counter() - begin
                thread.join()
                after = worker.run_pass()
                wrong = sum(a != b for got in (sums, after)
                            for a, b in zip(got, right, strict=True))
                read = read_of_files(node)
                rows.append((what, f"{took:.3f}", f"{took - median:.3f}",
                             f"{times['gone']:.3f}",
                             f"{times['answers']:.3f}",
                             f"{read / GIB:.2f} GiB", str(wrong)))
            for note in node.status()["notes"]:
                print("note:", note)
            if arguments.log == "debug":
                print(pathlib.Path(node.folder, "log").read_text())
    table(rows)


if __name__ == "__main__":
    main()
