#!/usr/bin/env python3
"""How fast published weights come into the host pool, hashed as they come.

bench_publish.py HOISTD [HOISTD...] [--gib N] [--group-mib M] [--threads T]

Each HOISTD gets the same groups of random bytes, by T threads of one session, in
turn and twice over. Prints GB/s of each. The client's own copy into the memfd
that it hands over is part of it, as in `hoist.attach`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import subprocess
import tempfile
import time

import hoist
import numpy as np

MIB = 1 << 20


def publish(hoistd: str, groups: list[np.ndarray], threads: int) -> float:
    """GB/s of one publication of all groups, by a hoistd of its own."""
    total = sum(group.nbytes for group in groups)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/hoistd.toml"
        with open(path, "w") as config:
            config.write(
                f'[server]\nsocket = "{folder}/hoistd.sock"\ngroup = ""\n'
                f'grpc_socket = "{folder}/hoistd.grpc.sock"\n'
                'admin_group = ""\n[device]\nbackend = "emulated"\n'
                f'[host]\npool = {total + 64 * MIB}\n[log]\nlevel = "error"\n')
        daemon = subprocess.Popen([hoistd, "--config", path])
        try:
            with hoist.connect(f"{folder}/hoistd.sock",
                               connect_deadline=60) as session:
                def one(model: str, at: int) -> None:
                    session.publish(model, f"g{at}", {"w": groups[at]},
                                    deadline=300)

                with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                    begin = time.perf_counter()
                    list(pool.map(lambda at: one("model", at),
                                  range(len(groups))))
                    return total / (time.perf_counter() - begin) / 1e9
        finally:
            daemon.terminate()
            daemon.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hoistd", nargs="+")
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--group-mib", type=int, default=512)
    parser.add_argument("--threads", type=int, default=4)
    arguments = parser.parse_args()
    count = max(1, int(arguments.gib * 1024 / arguments.group_mib))
    random = np.random.default_rng(1)
    groups = [random.integers(0, 256, arguments.group_mib * MIB, np.uint8)
              for _ in range(count)]
    for run in (1, 2):
        for hoistd in arguments.hoistd:
            rate = publish(hoistd, groups, arguments.threads)
            print(f"run {run}: {hoistd}: {count} groups of "
                  f"{arguments.group_mib} MiB: {rate:.2f} GB/s", flush=True)


if __name__ == "__main__":
    main()
