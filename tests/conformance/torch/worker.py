"""A worker process: attaches a module, and does what its standard input says.

worker.py BUDGET IDLE DEVICE; a line in, a line of JSON out:
    pass N     runs N passes; the SHA-256 of all their outputs
    stats      hoist.stats
    die        runs a pass, in whose third block it kills itself
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import signal
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "client" / "python"))

import torch

import hoist
from models import Stack, numbers


def make() -> Stack:
    """The same weights in every process; 4 MiB."""
    torch.manual_seed(22)
    return Stack(8, 128).eval()


@torch.no_grad()
def digest(model: Stack, device: torch.device, passes: int) -> str:
    found = hashlib.sha256()
    for turn in range(passes):
        output = model(numbers(2, 3, 128, seed=turn).to(device))
        found.update(output.cpu().numpy().tobytes())
    return found.hexdigest()


def main(budget: str, idle: str, device_name: str) -> None:
    torch.set_num_threads(1)  # As conftest.py; sums depend on it.
    device = torch.device(device_name)
    model = hoist.attach(make(), float(budget) if budget != "None" else None,
                         idle=idle)

    def answer(value: Any) -> None:
        print(json.dumps(value), flush=True)

    answer("attached")
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "pass":
            answer(digest(model, device, int(words[0])))
            hoist.check(model)
        elif verb == "stats":
            answer(dataclasses.asdict(hoist.stats(model)))
        elif verb == "die":
            model.layers[2].up.register_forward_hook(
                lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            digest(model, device, 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
