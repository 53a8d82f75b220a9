#!/usr/bin/env python3
"""Whether device memory that one user's worker keeps idle goes to another's.

slabs_probe.py HOISTD [cuda|emulated]    (as root; HOIST_LIBRARY, PYTHONPATH)

Two users, each with 896 MiB of published groups, take turns in a device pool of
1 GiB: one stages all of its groups and releases them, then the other. Then one is
stopped (SIGSTOP), goes on, and is killed. Prints what each try came to.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../support"))

import hoist  # noqa: E402
import numpy as np  # noqa: E402
from as_user import start_as  # noqa: E402
from real_daemon import MIB, RealDaemon  # noqa: E402

GROUPS, EACH = 14, 64 * MIB


class Worker:
    """A user's process, which stages all of its model's groups when asked."""

    def __init__(self, daemon: RealDaemon, name: str, uid: int) -> None:
        self._daemon, self._name = daemon, name
        self._asked, self._ask = os.pipe()
        self.pid, self._said = start_as(uid, self._work)
        self._tell()

    def _tell(self) -> None:
        said = self._said.readline()
        if said.startswith("Traceback"):
            sys.exit(said + self._said.read())
        print(f"{self._name}: {said.strip()}", flush=True)

    def _work(self, tell) -> None:
        with hoist.connect(self._daemon.socket,
                           connect_deadline=60) as session:
            for at in range(GROUPS):
                session.publish(self._name, f"g{at}",
                                {"w": np.full(EACH, at, np.uint8)},
                                deadline=60)
            groups = session.model(self._name).groups
            tell(f"published {GROUPS} groups of {EACH // MIB} MiB")
            while deadline := os.read(self._asked, 64):
                leases = []
                begin = time.monotonic()
                try:
                    for group in groups:
                        leases.append(
                            session.stage(group, deadline=float(deadline)))
                    tell(f"staged all in {time.monotonic() - begin:.2f} s")
                except hoist.HoistError as error:
                    tell(f"{type(error).__name__}: {error}")
                for lease in leases:
                    lease.release()

    def stage_all(self, deadline: float = 30) -> None:
        os.write(self._ask, str(deadline).encode())
        self._tell()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def main() -> None:
    backend = sys.argv[2] if len(sys.argv) > 2 else "cuda"
    daemon = RealDaemon(sys.argv[1], pool=1024 * MIB, slab=64 * MIB,
                        host=2304 * MIB, backend=backend, mode="0666")
    pathlib.Path(daemon.folder.name).chmod(0o755)
    a, b = Worker(daemon, "a", 54321), Worker(daemon, "b", 54322)
    for one in (a, b, a, b):
        one.stage_all()
    print("b is stopped")
    os.kill(b.pid, signal.SIGSTOP)
    a.stage_all(deadline=6)
    print("b goes on")
    os.kill(b.pid, signal.SIGCONT)
    for one in (a, b):
        one.stage_all()
    print("b is killed")
    b.kill()
    a.stage_all()
    a.kill()
    daemon.stop()


if __name__ == "__main__":
    main()
