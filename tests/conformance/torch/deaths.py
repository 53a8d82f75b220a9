"""hoistd's death, and what comes after it, for several files."""

from __future__ import annotations

import subprocess
import time
from typing import Any, Callable

import hoist
from real_daemon import RealDaemon


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """What the condition gives, once it is something."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it never came to be"
    return found


def start_again(daemon: RealDaemon) -> None:
    """After a kill: the same configuration and sockets, and nothing in it."""
    daemon.process = subprocess.Popen(
        [daemon.binary, "--config", str(daemon.path / "hoistd.toml")],
        stdin=subprocess.DEVNULL, stdout=daemon.log, stderr=subprocess.STDOUT)
    hoist.connect(daemon.socket, connect_deadline=60).close()
