#!/usr/bin/env python3
"""Records passes of a plan for plot.py, by `hoistctl trace record`.

one_pass.py BIN OUT.json    BIN: a folder with hoistd and hoistctl

The budget is half of the model. On a GPU: 24 blocks of 256 MiB, whose kernels
take about as long as the copies of the streamed half. Without one: 12 blocks of
8 MiB on an emulated device with a link of 2 GB/s.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "client/python")]
import hoist  # noqa: E402
from real_daemon import MIB, RealDaemon  # noqa: E402

CUDA = torch.cuda.is_available()
BLOCKS, WIDTH, ROWS = (24, 4096, 4096) if CUDA else (12, 512, 16)
OF_DEVICE: dict[str, Any] = (
    {"device": "cuda", "dtype": torch.bfloat16} if CUDA else {})
LINK = "" if CUDA else '[device.emulated]\nlink = "2GB/s"'


def made() -> nn.Module:
    return nn.Sequential(*(
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH, bias=False),
                      nn.Linear(4 * WIDTH, WIDTH, bias=False))
        for _ in range(BLOCKS))).to(**OF_DEVICE).eval()


@torch.no_grad()
def main() -> None:
    binaries, out = map(pathlib.Path, sys.argv[1:])
    model = made()
    nbytes = sum(one.nbytes for one in model.parameters())
    daemon = RealDaemon(binaries / "hoistd", backend="cuda" if CUDA else "emulated",
                        pool=nbytes, slab=32 * MIB, host=2 * nbytes, extra=LINK)
    try:
        with hoist.connect(daemon.socket, connect_deadline=60) as session:
            hoist.attach(model, budget=0.5, session=session)
            x = torch.randn(ROWS, WIDTH, **OF_DEVICE)
            for _ in range(5):
                model(x)
            recorder = subprocess.Popen(
                [binaries / "hoistctl", "--socket", daemon.grpc_socket,
                 "trace", "record", "--for", "600ms", "--out", out])
            before = None
            while recorder.poll() is None:
                model(x)
                if CUDA:  # At most two passes are launched and not over.
                    if before is not None:
                        before.synchronize()
                    before = torch.cuda.Event()
                    before.record()
            hoist.detach(model)
    finally:
        daemon.stop()


if __name__ == "__main__":
    main()
