#!/usr/bin/env python3
"""Cold file to device against what fio reads from the same disk, in one run.

bench_disk.py --bin DIR [--folder DIR] [--gib N] [--group-mib N] [--rounds N]

Runs without a GPU, on the emulated device. In each round fio reads the file
(O_DIRECT, 1 MiB, 32 deep, io_uring), and a fresh hoistd brings it up to the
device. They are first and second in turns, with the page cache dropped before
each; the ratio is of the medians. Then a second worker attaches. At last the
groups are published, and staged from the pool, from pageable memory and from
disk.spill_dir, which is in the folder. Needs fio and numpy, and no root;
HOIST_LIBRARY names libhoist.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "../../client/python")]

import hoist  # noqa: E402
import numpy as np  # noqa: E402
from common import MIB, hoistd, rss_bytes, table, write_model  # noqa: E402


def drop_from_cache(path: pathlib.Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fio(path: pathlib.Path) -> float:
    """Bytes a second."""
    done = subprocess.run(
        ["fio", "--name=read", f"--filename={path}", "--rw=read", "--bs=1M",
         "--iodepth=32", "--ioengine=io_uring", "--direct=1", "--readonly",
         "--output-format=json"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"]


def bring_up(session: hoist.Session, path: pathlib.Path) -> tuple[float, list]:
    """Seconds from register to the last group's lease, the file being cold."""
    drop_from_cache(path)
    begin = time.perf_counter()
    model = session.register(path, "bench")
    session.prefetch(list(model))
    leases = [session.stage(group, deadline=300.0) for group in model]
    took = time.perf_counter() - begin
    for i, lease in enumerate(leases):
        have = lease[f"layers.{i}.weight"].numpy()[:8].tobytes()
        assert have == i.to_bytes(8, "little"), "wrong bytes"
    return took, leases


def cold_load(bin_dir: str, path: pathlib.Path, toml: str,
              rows: list | None) -> tuple[float, float]:
    """Seconds for a hoistd whose memory nobody has touched yet, and for the
    same one once its pools have been used."""
    with hoistd(bin_dir, toml) as daemon:
        session = hoist.connect(daemon.socket)
        fresh, leases = bring_up(session, path)
        for lease in leases:
            lease.release()
        daemon.ctl("evict", "bench", "--forget")
        running, leases = bring_up(session, path)
        if rows is None:
            return fresh, running
        before, rss = daemon.counters(), rss_bytes()
        begin = time.perf_counter()
        other = hoist.connect(daemon.socket)
        again = other.register(path, "bench")
        others = [other.stage(group, deadline=10.0) for group in again]
        attach = time.perf_counter() - begin
        assert all(lease.was_resident for lease in others)
        after = daemon.counters()
        moved = sum(after[k] - before[k] for k in
                    ("file_read_bytes", "host_to_device_bytes"))
        rows.append(("second session, all groups leased",
                     f"{attach * 1e3:.1f} ms", "",
                     f"{moved} bytes read or copied; RSS + "
                     f"{(rss_bytes() - rss) / MIB:.1f} MiB"))
        return fresh, running


def publish(session: hoist.Session, name: str, groups: int,
            group_bytes: int) -> hoist.Model:
    words = np.arange(group_bytes // 8, dtype=np.uint64)
    for group in range(groups):
        words[0] = group
        model = session.publish(name, f"g{group}", {"w": words},
                                deadline=300.0)
    return model


def stage_all(session: hoist.Session, model: hoist.Model) -> float:
    """Seconds to lease all groups at once."""
    begin = time.perf_counter()
    session.prefetch(list(model))
    leases = [session.stage(group, deadline=300.0) for group in model]
    took = time.perf_counter() - begin
    for group, lease in enumerate(leases):
        assert lease["w"].numpy()[0] == group, "wrong bytes"
        lease.release()
    return took


def by_tier(bin_dir: str, folder: str, groups: int, group_bytes: int,
            rounds: int) -> dict[str, list[float]]:
    """Bytes a second from each tier to the device, which is emulated."""
    total = groups * group_bytes
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=folder) as spill, hoistd(
            bin_dir, f'[device]\nbackend = "emulated"\npool = {total + 64 * MIB}\n'
            f'[host]\npool = {total}\npageable = {total}\n'
            f'[disk]\nspill_dir = "{spill}/s"\n') as daemon:
        session = hoist.connect(daemon.socket)
        model = publish(session, "bench", groups, group_bytes)
        stage_all(session, model)  # Pages that nobody has touched yet.

        def staged(tier: str) -> None:
            before = daemon.counters()
            rates.setdefault(tier, []).append(
                total / stage_all(session, model))
            after = daemon.counters()
            moved = {name: after[name] - before[name]
                     for name in ("pageable_read_bytes", "spill_read_bytes")}
            assert moved == {
                "pageable_read_bytes": total if tier == "pageable" else 0,
                "spill_read_bytes": total if tier == "disk" else 0}, moved
            daemon.ctl("evict", "bench", "--tier", "device")

        daemon.ctl("evict", "bench", "--tier", "device")
        for _ in range(rounds):
            staged("pinned")
            # Other weights take the pool, and are then forgotten.
            with hoist.connect(daemon.socket) as other:
                publish(other, "other", groups, group_bytes)
            daemon.ctl("evict", "other", "--forget")
            staged("pageable")
            daemon.ctl("evict", "bench")
            staged("disk")
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--folder", default="/var/tmp")
    parser.add_argument("--gib", type=int, default=2)
    parser.add_argument("--group-mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    path = pathlib.Path(args.folder, f"hoist-bench-{os.getpid()}.safetensors")
    groups = args.gib * 1024 // args.group_mib
    pool = args.gib * 1024 + 64
    toml = (f'[device]\nbackend = "emulated"\npool = "{pool}MiB"\n'
            f'[host]\npool = "{pool}MiB"\n')
    rows: list = [("what", "median", "rate", "")]
    try:
        total = write_model(path, groups, args.group_mib * MIB)
        disk, fresh, running = [], [], []
        for round_ in range(args.rounds):
            last = round_ == args.rounds - 1

            # Below a virtual disk may be a cache that we cannot drop: one read
            # that does not count goes before each that does.
            def read_by_fio() -> None:
                for _ in range(2):
                    drop_from_cache(path)
                    rate = fio(path)
                disk.append(rate)

            def read_by_hoist() -> None:
                drop_from_cache(path)
                fio(path)
                first, later = cold_load(args.bin, path, toml,
                                         rows if last else None)
                fresh.append(total / first)
                running.append(total / later)

            steps = [read_by_fio, read_by_hoist]
            for step in steps if round_ % 2 == 0 else reversed(steps):
                step()
        best = statistics.median(disk)
        rows[1:1] = [("fio, O_DIRECT, 1 MiB x 32", f"{total / best * 1e3:.0f} ms",
                      f"{best / 1e9:.2f} GB/s", "")]
        for at, (what, rates) in enumerate(
                (("hoist: cold file to emulated device", running),
                 ("the same, memory touched for the first time", fresh))):
            have = statistics.median(rates)
            rows.insert(2 + at, (what, f"{total / have * 1e3:.0f} ms",
                                 f"{have / 1e9:.2f} GB/s",
                                 f"{have / best:.1%} of fio"))
        for tier, rates in by_tier(args.bin, args.folder, groups,
                                   args.group_mib * MIB, args.rounds).items():
            have = statistics.median(rates)
            rows.append((f"hoist: {tier} to emulated device",
                         f"{total / have * 1e3:.0f} ms",
                         f"{have / 1e9:.2f} GB/s", ""))
    finally:
        path.unlink(missing_ok=True)
    print(f"{args.gib} GiB in {groups} groups, {args.rounds} rounds, "
          f"{os.cpu_count()} CPUs")
    table(rows)


if __name__ == "__main__":
    main()
