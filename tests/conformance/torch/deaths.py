"""hoistd's death, and what comes after it, for several files."""

from __future__ import annotations

import subprocess

import hoist
from real_daemon import RealDaemon


def start_again(daemon: RealDaemon) -> None:
    """After a kill: the same configuration and sockets, and nothing in it."""
    daemon.process = subprocess.Popen(
        [daemon.binary, "--config", str(daemon.path / "hoistd.toml")],
        stdin=subprocess.DEVNULL, stdout=daemon.log, stderr=subprocess.STDOUT)
    hoist.connect(daemon.socket, connect_deadline=60).close()
