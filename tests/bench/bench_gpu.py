#!/usr/bin/env python3
"""Files to GPU, pinned pool to GPU, and a second worker, on a CUDA device.

bench_gpu.py --bin DIR [--folder DIR] [--gib N] [--group-mib N[,N...]]

Needs torch with CUDA. DIR holds hoistd and hoistctl; HOIST_LIBRARY names
libhoist. For each group size a model of N GiB is written to the folder
(default: /dev/shm, so that no disk is measured), and one run measures, beside
each other: the link's own rate (pinned, 1 GiB copies), hoist from the file and
from the pinned pool, safetensors' own loader, and a second worker's attach.
Prints a table; every row's bytes are checked by sample.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "../../client/python")]

import hoist  # noqa: E402
from common import GIB, MIB, hoistd, rss_bytes, table, write_model  # noqa: E402


def link_rate() -> float:
    """Bytes a second of pinned host-to-device copies of 1 GiB."""
    host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    rates = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        device.copy_(host, non_blocking=True)
        end.record()
        end.synchronize()
        rates.append(GIB / (begin.elapsed_time(end) / 1e3))
    return statistics.median(rates[1:])


def stage_all(session: hoist.Session, model: hoist.Model) -> tuple[float, list]:
    begin = time.perf_counter()
    session.prefetch(list(model))
    leases = [session.stage(group, deadline=120.0) for group in model]
    return time.perf_counter() - begin, leases


def check(leases: list, group_bytes: int) -> None:
    """The first, middle and last group begin as write_model made them."""
    for i in {0, len(leases) // 2, len(leases) - 1}:
        weight = leases[i][f"layers.{i}.weight"].torch()
        assert weight.is_cuda and weight.numel() == group_bytes
        assert bytes(weight[:8].cpu().tolist()) == i.to_bytes(8, "little")


def attach(socket: str, path: str) -> None:
    """The second worker: prints its figures as JSON."""
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    before = rss_bytes()
    begin = time.perf_counter()
    session = hoist.connect(socket)
    model = session.register(path, "bench")
    first = session.stage(model["layers.0"], deadline=10.0)
    to_first = time.perf_counter() - begin
    leases = [first] + [session.stage(group, deadline=10.0)
                        for group in list(model)[1:]]
    to_all = time.perf_counter() - begin
    resident = all(lease.was_resident for lease in leases)
    check(leases, leases[0]["layers.0.weight"].nbytes)
    print(json.dumps({"first": to_first, "all": to_all, "resident": resident,
                      "rss": rss_bytes() - before}))


def second_worker(socket: str, path: str) -> dict:
    done = subprocess.run(
        [sys.executable, __file__, "--attach", socket, path], check=True,
        capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def safetensors_load(path: str) -> float:
    from safetensors.torch import load_file
    begin = time.perf_counter()
    tensors = load_file(path, device="cuda")
    torch.cuda.synchronize()
    took = time.perf_counter() - begin
    del tensors
    torch.cuda.empty_cache()
    return took


def run(bin_dir: str, folder: pathlib.Path, gib: int, group_mib: int,
        rows: list) -> None:
    path = folder / "model.safetensors"
    groups = gib * 1024 // group_mib
    total = write_model(path, groups, group_mib * MIB)
    link = link_rate()
    name = f"{groups} x {group_mib} MiB"

    def row(what: str, seconds: float, note: str = "") -> None:
        rate = total / seconds
        rows.append((name, what, f"{seconds * 1e3:.0f} ms",
                     f"{rate / 1e9:.1f} GB/s", f"{rate / link:.1%}", note))

    rows.append((name, "link (torch, pinned, 1 GiB copies)", "",
                 f"{link / 1e9:.1f} GB/s", "100.0%", ""))
    started = time.perf_counter()
    toml = (f'[device]\nbackend = "cuda"\npool = "{gib + 1}GiB"\n'
            f'[host]\npool = "{gib + 1}GiB"\n')
    with hoistd(bin_dir, toml) as daemon:
        up = time.perf_counter() - started
        daemon.wait_whole()
        whole = time.perf_counter() - started
        rows.append((name, "hoistd serves / host pool whole",
                     f"{up * 1e3:.0f} / {whole * 1e3:.0f} ms", "", "",
                     f"{gib + 1} GiB pinned"))
        session = hoist.connect(daemon.socket)
        begin = time.perf_counter()
        model = session.register(path, "bench")
        register = time.perf_counter() - begin
        seconds, leases = stage_all(session, model)
        check(leases, group_mib * MIB)
        row("hoist: file (page cache) to GPU", seconds,
            f"register {register * 1e3:.1f} ms")
        pool = []
        for _ in range(5):
            for lease in leases:
                lease.release()
            daemon.ctl("evict", "bench", "--tier", "device")
            seconds, leases = stage_all(session, model)
            pool.append(seconds)
        check(leases, group_mib * MIB)
        row("hoist: pinned pool to GPU", statistics.median(pool), "median of 5")
        before = daemon.counters()
        second = second_worker(daemon.socket, str(path))
        after = daemon.counters()
        moved = sum(after[k] - before[k] for k in
                    ("file_read_bytes", "host_to_device_bytes"))
        assert second["resident"]
        rows.append((name, "second worker: first group / all groups",
                     f"{second['first'] * 1e3:.1f} / "
                     f"{second['all'] * 1e3:.1f} ms", "", "",
                     f"{moved} bytes moved; RSS + "
                     f"{second['rss'] / MIB:.1f} MiB"))
        for lease in leases:
            lease.release()
        session.close()
    row("safetensors load_file to GPU", safetensors_load(str(path)))
    path.unlink()


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[1] == "--attach":
        attach(sys.argv[2], sys.argv[3])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--group-mib", default="64")
    args = parser.parse_args()
    folder = pathlib.Path(args.folder, f"hoist-bench-{os.getpid()}")
    folder.mkdir()
    rows: list = [("model", "what", "time", "rate", "of link", "")]
    try:
        for size in args.group_mib.split(","):
            run(args.bin, folder, args.gib, int(size), rows)
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, "
          f"{os.cpu_count()} CPUs")
    table(rows)


if __name__ == "__main__":
    main()
