#!/usr/bin/env python3
"""What moves bytes from one node to another: Ray's objects, TCP, UCX.

    export HOIST_BUILD_DIR=build/dev    # after scripts/test_ray.sh
    build/ray-venv/bin/python tests/bench/bench_transports.py [--mib 16]
        [--pieces 32] [--rounds 3] [--link MBIT]

Two network namespaces of this machine with a link of their own
(tests/ray/apart.py; needs root), as fast as it gets, or of that rate. Pieces of that
size go from one to the other, one after another: by one TCP stream, into memory that
is there; by UCX over TCP (ucx_perftest of Debian's ucx-utils, tag_bw); and as
Ray's objects, until the other node has each mapped. Medians in MB/s, and seconds
of CPU a GB of both ends, where it is theirs alone.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "ray"))

from apart import MIB, Apart, Networks  # noqa: E402

TCP = """
import socket, sys, time
where, pieces, nbytes, sends = sys.argv[1], *map(int, sys.argv[2:])
if sends:
    with socket.create_server((where, 7777)) as server:
        print("ready", flush=True)
        data = bytes(nbytes)
        with server.accept()[0] as to:
            for _ in range(pieces):
                to.sendall(data)
            to.recv(1)
else:
    with socket.create_connection((where, 7777)) as source:
        into = memoryview(bytearray(nbytes))
        begun = time.perf_counter()
        for _ in range(pieces):
            at = 0
            while at < nbytes:
                at += source.recv_into(into[at:])
        print(time.perf_counter() - begun)
        source.send(b"x")
"""

RAY = """
import sys, time
import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
pieces, nbytes = map(int, sys.argv[2:])
ray.init(address=sys.argv[1], log_to_driver=False)
here = ray.get_runtime_context().get_node_id()
other = next(node["NodeID"] for node in ray.nodes() if node["NodeID"] != here)

class Sink:
    def take(self, image):
        return int(image[-1])

sink = ray.remote(Sink).options(
    num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(
        other, soft=False)).remote()
ray.get(sink.take.remote(ray.put(np.ones(1 << 20, np.uint8))))
data = np.ones(nbytes, np.uint8)
under_way = []
begun = time.perf_counter()
for _ in range(pieces):
    if len(under_way) == 4:
        ray.get(under_way.pop(0))
    under_way.append(sink.take.remote(ray.put(data)))
ray.get(under_way)
print(time.perf_counter() - begun)
"""


def over_tcp(nets: Networks, options: argparse.Namespace) -> float:
    words = (sys.executable, "-c", TCP, nets.address(0), str(options.pieces),
             str(options.mib * MIB))
    with subprocess.Popen(nets.inside(0, *words, "1"), text=True,
                          stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None and sender.stdout.readline()
        return float(subprocess.run(nets.inside(1, *words, "0"), text=True,
                                    check=True, capture_output=True).stdout)


def over_ucx(nets: Networks, options: argparse.Namespace) -> float:
    env = {**os.environ, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "wire"}
    test = ["ucx_perftest", "-t", "tag_bw", "-s", str(options.mib * MIB), "-n",
            str(options.pieces), "-w", "1", "-f"]
    with subprocess.Popen(nets.inside(0, "ucx_perftest"), env=env,
                          stdout=subprocess.DEVNULL) as server:
        while "13337" not in subprocess.run(
                nets.inside(0, "ss", "-Hltn"), text=True,
                capture_output=True).stdout:
            time.sleep(0.01)
        said = subprocess.run(
            nets.inside(1, *test, nets.address(0)), env=env, text=True,
            check=True, capture_output=True).stdout
        server.wait()
    # The last line: count, latencies, bandwidths in MB (2^20) a second.
    rate = float(said.strip().splitlines()[-1].split()[-3])
    return options.pieces * options.mib / rate


def over_ray(cluster: Apart, options: argparse.Namespace) -> float:
    return float(subprocess.run(
        cluster.inside(0, sys.executable, "-c", RAY, cluster.head,
                       str(options.pieces), str(options.mib * MIB)),
        check=True, text=True, stdout=subprocess.PIPE).stdout)


def measured(what: Any, where: Any, options: argparse.Namespace
             ) -> tuple[float, float]:
    """MB/s; seconds of CPU a GB of what was started for it."""
    nbytes = options.pieces * options.mib * MIB
    rates, costs = [], []
    for _ in range(options.rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        rates.append(nbytes / what(where, options) / 1e6)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append((after.ru_utime - before.ru_utime + after.ru_stime
                      - before.ru_stime) / (nbytes / 1e9))
    return statistics.median(rates), statistics.median(costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--pieces", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--link", type=int, metavar="MBIT")
    options = parser.parse_args()
    rate = f"{options.link} Mbit/s" if options.link else "as fast as it gets"
    print(f"{options.pieces} pieces of {options.mib} MiB, link: {rate}")
    nets = Networks(2, options.link)
    try:
        print("TCP, one stream: {:,.0f} MB/s, {:.2f} s of CPU a GB".format(
            *measured(over_tcp, nets, options)))
        if shutil.which("ucx_perftest"):
            print("UCX over TCP: {:,.0f} MB/s, {:.2f} s of CPU a GB".format(
                *measured(over_ucx, nets, options)))
        else:
            print("UCX: there is no ucx_perftest")
    finally:
        nets.stop()
    cluster = Apart(2, options.link, 80 * MIB + 12 * options.mib * MIB,
                    pool=16 * MIB, host=32 * MIB)
    try:
        print("Ray's objects: {:,.0f} MB/s".format(
            measured(over_ray, cluster, options)[0]))
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
