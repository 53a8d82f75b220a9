#!/usr/bin/env python3
"""What many tiny groups cost, those who load them and everybody else.

bench_groups.py --bin DIR [--groups N ...] [--tier device|host]

For each N: a model of N groups of 64 bytes is registered and loaded by `hoistctl
load`, while a worker of another model stages one resident group again and again.
Prints the seconds of the load, and the worker's milliseconds a stage: before,
and meanwhile.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
import threading
import time

import hoist
import numpy as np

from common import MIB, hoistd, write_model

TOML = """
[device]
backend = "emulated"
pool = "1GiB"
[host]
pool = "1GiB"
[models]
roots = ["{}"]
[log]
level = "error"
"""


def percentiles(seconds: list[float]) -> str:
    p50, p99, last = np.percentile(np.array(seconds) * 1e3, [50, 99, 100])
    return f"{p50:.3f} / {p99:.3f} / {last:.3f}"


class Stager:
    """Stages one resident group until it is told to stop."""

    def __init__(self, session: hoist.Session, group: hoist.Group) -> None:
        self._session = session
        self._group = group
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.seconds: list[float] = []

    def __enter__(self) -> "Stager":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            begin = time.perf_counter()
            with self._session.stage(self._group):
                self.seconds.append(time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, nargs="+",
                        default=[12_500, 25_000, 50_000, 100_000])
    parser.add_argument("--tier", choices=["device", "host"],
                        default="device")
    parser.add_argument("--bin", required=True,
                        help="the folder with hoistd and hoistctl")
    arguments = parser.parse_args()
    print("| groups | load, s | stage before, ms: p50 / p99 / max | meanwhile |"
          "\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        other = pathlib.Path(folder, "other.safetensors")
        write_model(other, 1, MIB)
        for count in arguments.groups:
            many = pathlib.Path(folder, f"many{count}.safetensors")
            write_model(many, count, 64)
            with hoistd(arguments.bin, TOML.format(folder)) as node, \
                    hoist.connect(node.socket) as session:
                node.wait_whole()
                group = session.register(other).groups[0]
                with Stager(session, group) as before:
                    time.sleep(1)
                with Stager(session, group) as meanwhile:
                    begin = time.perf_counter()
                    node.ctl("load", str(many), "--tier", arguments.tier,
                             "--grouping", "module")
                    seconds = time.perf_counter() - begin
            print(f"| {count:,} | {seconds:.2f} | "
                  f"{percentiles(before.seconds)} | "
                  f"{percentiles(meanwhile.seconds)} |", flush=True)


if __name__ == "__main__":
    main()
