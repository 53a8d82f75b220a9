"""Engines, and a hoistd for them, as processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Iterator, Sequence

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

from real_daemon import RealDaemon  # noqa: E402

GIB = 1 << 30
MIB = 1 << 20


class Failed(Exception):
    """What did not come to be; its text says why."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where engines run, and how large all is there."""

    bin: pathlib.Path  # hoistd's.
    model: pathlib.Path
    logs: pathlib.Path
    caches: pathlib.Path  # vLLM's and its compilers'.
    small: bool  # For a check on CPUs.

    @property
    def patience_s(self) -> int:
        return 900 if self.small else 240

    def of(self, kind: str) -> pathlib.Path:
        """What model.py made."""
        return (self.model if kind == "llama"
                else self.model.with_name(f"{self.model.name}-{kind}"))

    def bytes_of(self, kind: str) -> int:
        """Of its weights."""
        return sum(path.stat().st_size
                   for path in self.of(kind).glob("*.safetensors"))

    def make(self, *kinds: str, layers: int = 16) -> None:
        """Another process makes what is not there, so that none of the GPU's
        memory is this one's."""
        if all(self.of(kind).exists() for kind in kinds):
            return
        size = (str(layers), *(("512", "2048") if self.small
                               else ("4096", "32000")))
        subprocess.run([sys.executable, str(HERE / "model.py"),
                        str(self.model), *size, *kinds], check=True)

    def options(self, **given: Any) -> dict[str, Any]:
        """Of an engine; its model is the Llama, if none is given."""
        if "model" not in given:
            self.make("llama")
        return {"model": str(self.model), "load_format": "auto",
                "enforce_eager": False, "max_model_len": 2048,
                "kv_cache_memory_bytes": 64 * MIB if self.small else 2 * GIB,
                # Of the whole GPU: it is looked at even so.
                "gpu_memory_utilization": 0.3, "max_num_seqs": 64,
                "max_num_batched_tokens": 2048 if self.small else 8192,
                "seed": 0,
                "enable_prefix_caching": False, **given}

    def variables(self, cache: str, socket: str | None) -> dict[str, str]:
        return {**os.environ, "VLLM_CACHE_ROOT": str(self.caches / cache),
                # Measured choices of kernels are in there.
                "TORCHINDUCTOR_CACHE_DIR": str(
                    self.caches / cache / "inductor"),
                "HOIST_SOCKET": socket or "/nonexistent",
                "PYTHONPATH": os.pathsep.join(
                    [str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
                # An engine is one process, and a batch starts as one.
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


class Engine:
    def __init__(self, place: Place, name: str, cache: str = "vllm",
                 socket: str | None = None,
                 variables: dict[str, str] | None = None,
                 **options: Any) -> None:
        self.name, self.patience_s = name, place.patience_s
        self.log = place.logs / (re.sub(r"\W+", "-", name) + ".log")
        self.began = time.monotonic()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "measured.py"),
                 *(f"{key}={json.dumps(value)}"
                   for key, value in place.options(**options).items())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, bufsize=1, start_new_session=True,
                env={**place.variables(cache, socket), **(variables or {})})

    def answer(self) -> Any:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], self.patience_s)[0]:
            raise Failed(f"{self.name}: no answer in {self.patience_s} s")
        line = self.process.stdout.readline()
        said = json.loads(line) if line else {
            "error": "ended", "says": self.text()[-1500:]}
        if "error" in said:
            raise Failed(f"{self.name}: {said['error']}: {said['says']}")
        return said["is"]

    def ready(self) -> Engine:
        self.answer()
        self.start_s = time.monotonic() - self.began
        return self

    def ask(self, do: str, **what: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **what}) + "\n")
        return self.answer()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def loading_s(self) -> float | None:
        """As vLLM counts it."""
        found = re.search(r"Model loading took .*? ([\d.]+) s", self.text())
        return float(found[1]) if found else None

    def loaded_gib(self) -> float | None:
        """Of the device, as vLLM counts it."""
        found = re.search(r"Model loading took ([\d.]+) GiB", self.text())
        return float(found[1]) if found else None

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def why_not(starting: Sequence[Any]) -> list[str | None]:
    """Waits for all at once, so that each has its own time. None: it is up."""
    def ready(one: Any) -> str | None:
        try:
            one.ready()
        except Failed as failed:
            return " ".join(str(failed).split())[-300:]
        return None

    pool = concurrent.futures.ThreadPoolExecutor(len(starting))
    try:
        return list(pool.map(ready, starting))
    finally:
        pool.shutdown(wait=False)  # Who is told to end ends engines first.


def children(pid: int) -> list[int]:
    """None where the kernel does not tell."""
    told = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return [int(one) for one in told.read_text().split()] if (
        told.exists()) else []


def other_gpu() -> dict[str, str]:
    """The variables of an engine that is to run on the last GPU; empty, if it
    is the only one."""
    said = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True,
                          text=True) if shutil.which("nvidia-smi") else None
    count = len(said.stdout.splitlines()) if said else 0
    return {"CUDA_VISIBLE_DEVICES": str(count - 1)} if count > 1 else {}


def gpu_mib(pid: int | None = None) -> int | None:
    """Memory in use: of a process and its children, or all. None: no GPU says.
    """
    if not shutil.which("nvidia-smi"):
        return None
    query = (["--query-gpu=memory.used"] if pid is None
             else ["--query-compute-apps=pid,used_memory"])
    said = subprocess.run(["nvidia-smi", *query,
                           "--format=csv,noheader,nounits"],
                          capture_output=True, text=True, check=True).stdout
    rows = [line.split(",") for line in said.splitlines()]
    pids = None if pid is None else {pid, *children(pid)}
    found = [row[-1].strip() for row in rows
             if pids is None or int(row[0]) in pids]
    return sum(map(int, found)) if found and all(
        one.isdigit() for one in found) else None


@contextlib.contextmanager
def hoistd(place: Place, keeper: bool = False, gib: int = 14,
           host_gib: int | None = None,
           in_place_gib: int | None = None) -> Iterator[RealDaemon]:
    """gib: of the device, on a GPU. host_gib: of the host's pool; a little
    less. in_place_gib: of the host, beside it; a disk then has the copy that
    the pool has no room for."""
    small = place.small
    spilled = place.caches / "spilled"
    options: dict[str, Any] = {}
    if in_place_gib is not None and not small:
        spilled.mkdir(parents=True, exist_ok=True)
        options = {"in_place": in_place_gib * GIB, "extra": f"""[disk]
spill_dir = "{spilled}"
save = "under_pressure"
"""}
    daemon = RealDaemon(
        place.bin / "hoistd", pool=256 * MIB if small else gib * GIB,
        slab=(2 if small else 256) * MIB,
        host=256 * MIB if small else (host_gib or gib - 2) * GIB,
        backend="emulated" if small else "cuda", **options,
        keeper=str(place.bin / "hoist-keeper") if keeper else None)
    try:
        daemon.until_served()
        yield daemon
    finally:
        (place.logs / "hoistd.log").write_text(daemon.log_text())
        daemon.stop()
        shutil.rmtree(spilled, ignore_errors=True)
