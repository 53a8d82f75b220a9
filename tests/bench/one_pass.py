#!/usr/bin/env python3
"""Records passes of a plan for plot.py, by `hoistctl trace record`.

one_pass.py BUILD OUT.json    BUILD: a build folder, such as build/dev

The device is emulated, its link has 2 GB/s, and the budget is half of the model.
The worker multiplies by each group, so that copies overlap with computation.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "client/python")]
from real_daemon import MIB, RealDaemon  # noqa: E402

GROUPS, WIDTH = 12, 2048


def main() -> None:
    build, out = sys.argv[1:]
    os.environ.update(HOIST_BUILD_DIR=build, OPENBLAS_NUM_THREADS="1")
    import hoist
    import numpy as np
    daemon = RealDaemon(
        pathlib.Path(build) / "daemon/hoistd", pool=256 * MIB, slab=8 * MIB,
        host=512 * MIB, extra='[device.emulated]\nlink = "2GB/s"')
    try:
        with hoist.connect(daemon.socket, connect_deadline=30) as session:
            for i in range(GROUPS):
                weight = np.random.rand(WIDTH, WIDTH).astype("f4")
                model = session.publish("model", f"layers.{i:02}",
                                        {"weight": weight})
            plan = session.set_plan(model, budget=model.image_bytes // 2,
                                    order=model.groups)
            x = np.ones(WIDTH, "f4")

            def run() -> None:
                for group in model:
                    with plan.use(group) as tensors:
                        np.dot(x, tensors["weight"].numpy())
                plan.end_pass()
            for _ in range(5):
                run()
            recorder = subprocess.Popen(
                [build + "/client/ctl/hoistctl", "--socket", daemon.grpc_socket,
                 "trace", "record", "--for", "300ms", "--out", out])
            while recorder.poll() is None:
                run()
            plan.close()
    finally:
        daemon.stop()


if __name__ == "__main__":
    main()
