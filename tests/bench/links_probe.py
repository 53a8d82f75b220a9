#!/usr/bin/env python3
"""What the links of several GPUs do alone and at the same time, without hoist.

links_probe.py [--gib N] [--seconds S]

Copies from N GiB of pinned memory of torch's to each GPU, over and over, in pieces
of 32 MiB: to one GPU after the other, then to all at once. That is what plans on
several GPUs can be compared with (hoist-bench beside --devices 2).
"""

from __future__ import annotations

import argparse
import threading
import time

import torch

PIECE = 32 << 20


def copy_for(device: int, host: torch.Tensor, seconds: float,
             rates: dict[int, float], start: threading.Barrier) -> None:
    with torch.cuda.device(device):
        stream = torch.cuda.Stream(device)
        to = torch.empty(PIECE, dtype=torch.uint8, device=f"cuda:{device}")
        pieces = host.numel() // PIECE
        copied, events = 0, []
        torch.cuda.synchronize(device)
        start.wait()
        begin = time.perf_counter()
        with torch.cuda.stream(stream):
            while time.perf_counter() - begin < seconds:
                at = len(events) % pieces * PIECE
                to.copy_(host[at:at + PIECE], non_blocking=True)
                events.append(stream.record_event())
                if len(events) > 4:
                    events[len(events) - 4].synchronize()
            stream.synchronize()
        copied = len(events) * PIECE
        rates[device] = copied / (time.perf_counter() - begin) / 1e9


def run(devices: list[int], hosts: list[torch.Tensor],
        seconds: float) -> dict[int, float]:
    rates: dict[int, float] = {}
    start = threading.Barrier(len(devices))
    threads = [
        threading.Thread(target=copy_for,
                         args=(d, hosts[d], seconds, rates, start))
        for d in devices
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2)
    arguments = parser.parse_args()
    count = torch.cuda.device_count()
    hosts = [
        torch.empty(arguments.gib << 30, dtype=torch.uint8, pin_memory=True)
        for _ in range(count)
    ]
    alone = {}
    for device in range(count):
        alone |= run([device], hosts, arguments.seconds)
    together = run(list(range(count)), hosts, arguments.seconds)
    print("| GPU | alone, GB/s | all at once |\n| --- | --- | --- |")
    for device in range(count):
        print(f"| {device} | {alone[device]:.1f} | {together[device]:.1f} |")


if __name__ == "__main__":
    main()
