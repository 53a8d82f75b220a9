"""A real hoistd in a folder of its own; its device is emulated by default."""

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import tempfile
import time

MIB = 1 << 20


def until(condition, seconds=120):
    """What `condition` returns, once it is something."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > end:
            raise AssertionError("it never came to be")
        # Leaves the CPU, and Python's lock, to those that bring it about.
        select.select([], [], [], 0.002)
    return result


def halt(pid):
    """SIGSTOP; returns when all its threads stand still.

    Until one of them has taken the signal, the others serve on.
    ProcessLookupError: it has ended.
    """
    os.kill(pid, signal.SIGSTOP)
    tasks = pathlib.Path(f"/proc/{pid}/task")

    def still():
        try:
            states = {(task / "stat").read_text().rpartition(") ")[2][0]
                      for task in tasks.iterdir()}
        except (FileNotFoundError, ProcessLookupError):
            states = {"Z"} if not tasks.exists() else set()
        if states == {"Z"}:
            raise ProcessLookupError(f"process {pid} has ended")
        return states == {"T"}  # Without one that has just ended.
    until(still)


def beside(hoistd, name):
    """Another program: beside hoistd where that is installed, else as built."""
    installed = pathlib.Path(hoistd).with_name(name)
    if installed.exists():
        return installed
    build = installed.parents[1]
    return build / {"hoistctl": "client/ctl/hoistctl",
                    "hoist-keeper": "daemon/keeper/hoist-keeper"}[name]


class Refused(subprocess.CalledProcessError):
    """Says what was said."""

    def __str__(self):
        return f"{super().__str__()}\n{self.stderr}"


class RealDaemon:
    def __init__(self, binary, pool=8 * MIB, slab=2 * MIB, host=64 * MIB,
                 extra="", backend="emulated", mode="0660", limits=None,
                 keeper=None, in_place="auto", keeper_options=(), owner=None,
                 pageable=None):
        self.folder = tempfile.TemporaryDirectory(prefix="hoist-")
        self.path = pathlib.Path(self.folder.name)
        if owner is not None:  # The user that `limits` makes it.
            os.chown(self.path, owner, owner)
        self.socket = str(self.path / "hoistd.sock")
        self.grpc_socket = str(self.path / "hoistd.grpc.sock")
        self.binary = pathlib.Path(binary)
        self.keeper_options = list(keeper_options)
        self._counted = {}
        self._read = 0
        if isinstance(in_place, str):
            in_place = f'"{in_place}"'
        # A hoistd of before does not know the key.
        pageable = f"pageable = {pageable}" if pageable else ""
        config = self.path / "hoistd.toml"
        config.write_text(f"""
[server]
socket = "{self.socket}"
grpc_socket = "{self.grpc_socket}"
socket_mode = "{mode}"
group = ""
admin_group = ""
[device]
backend = "{backend}"
pool = {pool}
slab = {slab}
[host]
pool = {host}
in_place = {in_place}
{pageable}
[log]
sink = "stderr"
{extra}
""")
        self.log = open(self.path / "log", "wb+")
        self.start(keeper, limits)

    def start(self, keeper=None, limits=None):
        """At first, and again once it has ended."""
        self.process = subprocess.Popen(
            self.kept(keeper) +
            [str(self.binary), "--config", str(self.path / "hoistd.toml")],
            stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=subprocess.STDOUT, preexec_fn=limits)

    def kept(self, keeper):
        """Under this hoist-keeper, if it is given: it is `process` then."""
        return [keeper, "--dir", str(self.path), *self.keeper_options,
                "--"] if keeper else []

    def log_text(self):
        """Since it started, or since `count_anew`."""
        self.log.flush()
        return (self.path / "log").read_bytes()[self._read:].decode(
            errors="replace")

    def ctl(self, *arguments, socket=None):
        """What hoistctl prints; Refused if it refuses."""
        done = subprocess.run(
            [beside(self.binary, "hoistctl"), "--socket",
             socket or self.grpc_socket, *arguments],
            capture_output=True, text=True)
        if done.returncode != 0:
            raise Refused(done.returncode, done.args, done.stdout, done.stderr)
        return done.stdout

    def status(self):
        return json.loads(self.ctl("status", "--json"))

    def pid(self):
        """Of a hoistd that serves; None where none does."""
        with contextlib.suppress(subprocess.CalledProcessError):
            return int(self.status()["pid"])
        return None

    def kill_served(self, with_signal=signal.SIGKILL):
        """Once it serves; its pid."""
        pid = until(self.pid)
        os.kill(pid, with_signal)
        return pid

    def until_another(self, pid):
        """Serves, which hoist-keeper has started after that one; its pid."""
        def another():
            new = self.pid()
            return new if new != pid else None
        return until(another)

    def kill_kept(self, with_signal=signal.SIGKILL):
        """Returns the pid of the next one, which serves."""
        return self.until_another(self.kill_served(with_signal))

    def until_served(self):
        """Its status, once it has one: its sockets are there before that."""
        def served():
            with contextlib.suppress(subprocess.CalledProcessError):
                return self.status()
            return None
        return until(served)

    def counters(self):
        """What hoistd moved since it started, or since `count_anew`:
        {"host_to_device_bytes": ...}"""
        return {name: int(value) - self._counted.get(name, 0)
                for name, value in self.status()["counters"].items()}

    def count_anew(self, status=None):
        """For a test that is not the first of this hoistd; from its status on,
        if that is known."""
        self._counted = {name: int(value) for name, value in
                         (status or self.status())["counters"].items()}
        self._read = (self.path / "log").stat().st_size

    def tier(self, name, device=0):
        """{"used_bytes": ...} of DEVICE, HOST or DISK."""
        found = next(tier for tier in self.status()["tiers"]
                     if tier["tier"] == "TIER_" + name and
                     (name != "DEVICE" or tier["device"] == device))
        return {key: int(value) for key, value in found.items()
                if key.endswith("_bytes")}

    def forget_models(self):
        """Drops all models; CalledProcessError if one is in use."""
        for model in json.loads(self.ctl("models", "--json"))["models"]:
            self.ctl("evict", model["name"], "--forget")

    def kept_pid(self):
        """hoistd's pid under its keeper."""
        keeper = self.process.pid
        told = pathlib.Path(f"/proc/{keeper}/task/{keeper}/children")
        return int(told.read_text().split()[0])

    def kill(self):
        """As a crash: nothing is given back by hoistd itself."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.log.close()
        self.folder.cleanup()
        return code


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}."""
    header, at, body = {}, 0, []
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [at, at + len(data)]}
        at += len(data)
        body.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(
        len(text).to_bytes(8, "little") + text + b"".join(body))


def block_model(blocks=6, block_bytes=MIB):
    """{name: (dtype, shape, bytes)} of random weights in numbered blocks."""
    tensors = {}
    for block in range(blocks):
        tensors[f"layers.{block}.w"] = (
            "BF16", [block_bytes // 4, 2], os.urandom(block_bytes))
        tensors[f"layers.{block}.b"] = ("F32", [3], os.urandom(12))
    tensors["norm.scale"] = ("U8", [7], os.urandom(7))
    tensors["norm.none"] = ("F32", [0, 4], b"")
    return tensors
