#!/usr/bin/env python3
"""How fast published weights come into the host pool, hashed as they come.

bench_publish.py HOISTD [HOISTD...] [--gib N] [--group-mib M] [--threads T]
                 [--pool-gib P [--folder DIR]]

Each HOISTD gets the same groups of random bytes, by T threads of one session, in
turn and twice over. Prints GB/s of each. The client's own copy into the memfd
that it hands over is part of it, as in `hoist.attach`.
With --pool-gib the pool is that small, and the disk of DIR has the rest, written when it
must leave the pool. Then all groups are brought to zero-copy memory, as a mixture's
experts are: `in place` is the GB/s of that.
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


TOML = """
[server]
socket = "{folder}/hoistd.sock"
group = ""
grpc_socket = "{folder}/hoistd.grpc.sock"
admin_group = ""
[device]
backend = "emulated"
[host]
pool = {pool}
in_place = {in_place}
[disk]
spill_dir = "{spill_dir}"
save = "under_pressure"
[log]
level = "error"
"""


def publish(hoistd: str, groups: list[np.ndarray], threads: int,
            pool_bytes: int | None, parent: str | None) -> list[float]:
    """GB/s of one publication of all groups, by a hoistd of its own; with
    pool_bytes, also of their way to zero-copy memory."""
    total = sum(group.nbytes for group in groups)
    small = pool_bytes is not None
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        path = f"{folder}/hoistd.toml"
        with open(path, "w") as config:
            config.write(TOML.format(
                folder=folder, pool=pool_bytes or total + 64 * MIB,
                in_place=total + 64 * MIB if small else 0,
                spill_dir=f"{folder}/spilled" if small else ""))
        daemon = subprocess.Popen([hoistd, "--config", path])
        try:
            with hoist.connect(f"{folder}/hoistd.sock",
                               connect_deadline=60) as session:
                def one(at: int) -> None:
                    session.publish("model", f"g{at}", {f"w{at}": groups[at]},
                                    deadline=300)

                with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                    begin = time.perf_counter()
                    list(pool.map(one, range(len(groups))))
                    took = [time.perf_counter() - begin]
                if small:
                    took.append(read_in_place(session, groups))
                return [total / seconds / 1e9 for seconds in took]
        finally:
            daemon.terminate()
            daemon.wait()


def read_in_place(session: hoist.Session, groups: list[np.ndarray]) -> float:
    """Seconds until all are there."""
    one = hoist.InPlaceTensor(
        "U8", (len(groups), groups[0].nbytes),
        [f"g{at}" for at in range(len(groups))], units=len(groups))
    begin = time.perf_counter()
    made = session.in_place(session.model("model"), {"w": one}, deadline=600)
    took = time.perf_counter() - begin
    made.close()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hoistd", nargs="+")
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--group-mib", type=int, default=512)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--pool-gib", type=float)
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    count = max(1, int(arguments.gib * 1024 / arguments.group_mib))
    random = np.random.default_rng(1)
    groups = [random.integers(0, 256, arguments.group_mib * MIB, np.uint8)
              for _ in range(count)]
    for run in (1, 2):
        for hoistd in arguments.hoistd:
            rates = publish(hoistd, groups, arguments.threads,
                            arguments.pool_gib
                            and int(arguments.pool_gib * 1024) * MIB,
                            arguments.folder)
            print(f"run {run}: {hoistd}: {count} groups of "
                  f"{arguments.group_mib} MiB: "
                  f"{', in place '.join(f'{one:.2f}' for one in rates)} GB/s",
                  flush=True)


if __name__ == "__main__":
    main()
