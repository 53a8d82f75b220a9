"""Ray's nodes on one machine, each in a network namespace of its own, with a
link of its own to a switch: what passes between nodes is counted, and no faster
than the link. Needs root, ip and tc (iproute2)."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from real_daemon import MIB, RealDaemon, until  # noqa: E402

BUILD = pathlib.Path(os.environ["HOIST_BUILD_DIR"])
PORT = 6379


def why_not() -> str | None:
    """None: this machine can have it."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"there is no {tool} (iproute2)"
    made = subprocess.run(["ip", "netns", "add", "hoist-try"],
                          capture_output=True, text=True)
    if made.returncode:
        return f"no network namespaces: {made.stderr.strip()}"
    run("ip", "netns", "del", "hoist-try")
    return None


def run(*words: str, **options: Any) -> str:
    return subprocess.run(words, check=True, text=True, capture_output=True,
                          **options).stdout


class Networks:
    """Nodes 0 to N - 1. `stop` leaves nothing."""

    def __init__(self, count: int, mbit: int | None) -> None:
        """mbit: of each link, each way; None: as fast as it gets."""
        self._names = [f"hoist-{os.getpid()}-{at}" for at in range(count)]
        self._switch = f"hoist-{os.getpid()}-switch"
        try:
            self._connect(mbit)
        except BaseException:
            self.stop()
            raise

    def _connect(self, mbit: int | None) -> None:
        run("ip", "netns", "add", self._switch)
        inside = ("ip", "-n", self._switch)
        run(*inside, "link", "add", "switch", "type", "bridge")
        run(*inside, "link", "set", "switch", "up")
        for at, name in enumerate(self._names):
            run("ip", "netns", "add", name)
            run(*inside, "link", "add", f"to{at}", "type", "veth", "peer",
                "name", "wire", "netns", name)
            run(*inside, "link", "set", f"to{at}", "master", "switch", "up")
            run("ip", "-n", name, "addr", "add", f"{self.address(at)}/24",
                "dev", "wire")
            for device in ("lo", "wire"):
                run("ip", "-n", name, "link", "set", device, "up")
            if mbit is not None:
                for space, device in ((name, "wire"),
                                      (self._switch, f"to{at}")):
                    run("tc", "-n", space, "qdisc", "add", "dev", device,
                        "root", "tbf", "rate", f"{mbit}mbit", "burst", "256kb",
                        "latency", "50ms")

    @staticmethod
    def address(at: int) -> str:
        return f"10.77.0.{at + 1}"

    def inside(self, at: int, *words: str) -> list[str]:
        """A command line that runs within a node's network."""
        return ["ip", "netns", "exec", self._names[at], *words]

    def sent_bytes(self, at: int) -> int:
        """By the node over its link, so far."""
        return int(run(*self.inside(
            at, "cat", "/sys/class/net/wire/statistics/tx_bytes")))

    def stop(self) -> None:
        for name in self._names:
            pids = subprocess.run(["ip", "netns", "pids", name], text=True,
                                  capture_output=True).stdout.split()
            subprocess.run(["kill", "-KILL", *pids], capture_output=True)
        for name in [*self._names, self._switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Apart(Networks):
    """With one of Ray's nodes in each, and a hoistd; the first is Ray's head."""

    def __init__(self, count: int, mbit: int | None, store: int,
                 **sizes: Any) -> None:
        """store: bytes of each node's object store. sizes: of each hoistd."""
        self._folder = tempfile.mkdtemp(prefix="ha")
        self.hoistds: list[RealDaemon] = []
        super().__init__(count, mbit)
        try:
            for at in range(count):
                self.hoistds.append(RealDaemon(BUILD / "daemon/hoistd",
                                               **sizes))
                until(lambda: os.path.exists(self.hoistds[-1].socket))
                self._start_ray(at, store)
        except BaseException:
            self.stop()
            raise

    def _start_ray(self, at: int, store: int) -> None:
        head = ["--head", f"--port={PORT}", "--include-dashboard=false",
                f"--temp-dir={self._folder}"]
        run(*self.inside(
            at, str(pathlib.Path(sys.executable).parent / "ray"), "start",
            f"--node-ip-address={self.address(at)}", "--num-cpus=1",
            f"--object-store-memory={store}", "--disable-usage-stats",
            *(head if at == 0 else [f"--address={self.address(0)}:{PORT}"])),
            env={**os.environ, "HOIST_SOCKET": self.hoistds[at].socket,
                 "HOIST_CTL": str(BUILD / "client/ctl/hoistctl")})

    @property
    def head(self) -> str:
        """For ray.init within node 0's network."""
        return f"{self.address(0)}:{PORT}"

    def stop(self) -> None:
        super().stop()
        for hoistd in self.hoistds:
            hoistd.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


__all__ = ["MIB", "Apart", "Networks", "run", "why_not"]
