"""Starts hoistd and the workers, one row after another."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Iterator

from common import Daemon, hoistd  # tests/bench/common.py

from .job import Job, LeftOut
from .models import DECODERS, Spec, encoder_of
from .sizes import (MIB, budget_bytes, host_bytes, in_place_bytes,
                    pool_bytes)

BENCH = pathlib.Path(__file__).resolve().parents[1]


class Failed(Exception):
    """Why a row has no figures."""


class Process:
    """A worker, in a process group of its own."""

    def __init__(self, job: Job, folder: pathlib.Path, name: str,
                 until: float) -> None:
        self._until = until
        self._result = folder / f"{name}.result.json"
        self._log = open(folder / f"{name}.log", "w+")
        told = folder / f"{name}.job.json"
        told.write_text(job.to_json())
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(
            [str(BENCH), *filter(None, [os.environ.get("PYTHONPATH")]),
             str(BENCH.parents[1] / "client" / "python")]))
        if job.hoistd:
            environment["HOIST_SOCKET"] = job.hoistd["socket"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "peers.worker", str(told),
             str(self._result)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, env=environment, start_new_session=True)

    def heard(self) -> dict[str, Any]:
        """What a worker in step says next; it then waits for go_on."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, self._until - time.monotonic())):
                raise Failed("took longer than its time limit")
        line = self._process.stdout.readline()
        if not line:  # It has ended, without a failure or with one.
            raise LeftOut(self.result()["left_out"])
        return json.loads(line)

    def go_on(self) -> None:
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Its figures, once it has ended."""
        self._wait()
        if self._process.returncode != 0:
            raise Failed(self._why())
        return json.loads(self._result.read_text())

    def _wait(self) -> None:
        try:
            self._process.wait(max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed("took longer than its time limit") from None

    def _why(self) -> str:
        self._log.seek(0)
        lines = self._log.read().strip().splitlines() or ["it said nothing"]
        print(*lines[-30:], sep="\n", file=sys.stderr)
        return f"exit status {self._process.returncode}: {lines[-1]}"

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


class Parent:
    """Runs rows; each has `limit` seconds."""

    def __init__(self, *, spec: Spec, device: str, folder: pathlib.Path,
                 binaries: str, passes: int, seconds: float,
                 limit: float) -> None:
        self.spec, self.device, self.folder = spec, device, folder
        self.binaries, self.passes = binaries, passes
        self.seconds, self.limit = seconds, limit
        self.weights = folder / "model.safetensors"

    def _job(self, row: str, options: dict[str, Any], scratch: pathlib.Path,
             daemon: Daemon | None, **more: Any) -> Job:
        told = {}
        if daemon is not None:
            told = {"socket": daemon.socket, "grpc_socket": daemon.grpc_socket,
                    "ctl": str(pathlib.Path(self.binaries, "hoistctl")),
                    "pid": daemon.pid}
        fp8 = options.get("storage") == "fp8"
        # Compiled code rounds as it likes.
        flavour = "-fp8" * fp8 + "".join(
            f"-{what}" for what in ("static", "prefill") if options.get(what))
        return Job(row=row, spec=self.spec, weights=str(self.weights),
                   scratch=str(scratch), device=self.device,
                   passes=self.passes, seconds=self.seconds, options=options,
                   expected=str(self.folder / f"expected{flavour}.pt"),
                   hoistd=told, **more)

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[pathlib.Path]:
        scratch = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch)

    def prepare(self) -> dict[str, Any]:
        """Writes the weights where they are not there; the link's rate."""
        size = 1 << 30 if self.device == "cuda" else 16 * MIB
        return self._alone("prepare", {"kind": "prepare", "link_bytes": size},
                           None)

    def run(self, row: str, options: dict[str, Any]) -> dict[str, Any]:
        """A row's figures, or {"failed": why} or {"left_out": why}."""
        why = self._why_not(options)
        if why:
            return {"left_out": why}
        try:
            if options["kind"] != "hoist":
                return self._alone(row, options, None)
            with self._hoistd(options) as (daemon, facts):
                workers = options.get("workers", 1)
                if workers > 1:
                    return facts | self._together(row, options, daemon,
                                                  workers)
                return facts | self._alone(row, options, daemon)
        except Failed as why:
            return {"failed": str(why)}
        except LeftOut as why:
            return {"left_out": str(why)}

    def _why_not(self, options: dict[str, Any]) -> str | None:
        mixture = self.spec.kind == "moe"
        if options.get("static") and self.spec.kind not in DECODERS:
            return ("only a decoder has a static cache: --model llama32, or "
                    "moe8")
        if not mixture and (options["kind"] in ("lru", "uva") or any(
                options.get(what) for what in ("in_place", "prefill"))):
            return "only a mixture has experts: --model moe8"
        if mixture and (options["kind"] == "two-slot" or options.get(
                "storage") or options.get("how") == "pipeline"):
            return "not of a mixture"
        return None

    def _alone(self, row: str, options: dict[str, Any],
               daemon: Daemon | None) -> dict[str, Any]:
        with self._scratch() as scratch:
            process = Process(self._job(row, options, scratch, daemon),
                              scratch, "worker",
                              time.monotonic() + self.limit)
            try:
                return process.result()
            finally:
                process.end()

    @contextlib.contextmanager
    def _hoistd(self, options: dict[str, Any]
                ) -> Iterator[tuple[Daemon, dict[str, Any]]]:
        """A hoistd for one row, its pinned memory there: nothing is left over
        from the row before. Sets the budget, in bytes."""
        cuda, fp8 = self.device == "cuda", options.get("storage") == "fp8"
        options["budget"] = budget_bytes(self.spec, options["budget"],
                                         options.get("groups", "block"), fp8)
        placed = bool(options.get("in_place"))
        host = host_bytes(self.spec, fp8, placed)
        if options["how"] == "pipeline":
            host += host_bytes(encoder_of(self.spec), fp8)
        if options.get("cold"):
            host = host // (6 * MIB) * (2 * MIB)
        slab = (64 if cuda else 2) * MIB
        pool = pool_bytes(options["budget"], slab, options.get("workers", 1))
        begin = time.monotonic()
        try:
            with hoistd(self.binaries, f"""
[device]
backend = "{'cuda' if cuda else 'emulated'}"
pool = {pool}
slab = {slab}
[host]
pool = {host}
in_place = {in_place_bytes(self.spec) if placed else 0}
""") as daemon:
                daemon.wait_whole()
                yield daemon, {"budget_bytes": options["budget"],
                               "hoistd_seconds": time.monotonic() - begin}
        except RuntimeError as error:  # hoistd's own log.
            raise Failed("hoistd: " + str(error).strip()[-200:]) from error

    def _together(self, row: str, options: dict[str, Any], daemon: Daemon,
                  workers: int) -> dict[str, Any]:
        """The first worker is set up, then the others, each to itself; then
        all make their passes at once."""
        processes: list[Process] = []
        until = time.monotonic() + self.limit
        with self._scratch() as scratch:
            try:
                set_up = []
                for i in range(workers):
                    job = self._job(row, options, scratch, daemon,
                                    in_step=True)
                    processes.append(Process(job, scratch, f"worker{i}",
                                             until))
                    set_up.append(processes[-1].heard()["set_up_seconds"])
                for process in processes:
                    process.go_on()
                for process in processes:
                    process.heard()
                for process in processes:
                    process.go_on()
                results = [process.result() for process in processes]
            finally:
                for process in processes:
                    process.end()
        equal = [result["equal"] for result in results]
        return {**max(results, key=lambda result: result["pass_seconds"]),
                "first_worker_seconds": set_up[0],
                "set_up_seconds": max(set_up[1:]),
                # They share the link; what hoistd counted is of no one worker.
                "streamed_bytes": sum(result["says"]["streamed_bytes"]
                                      for result in results),
                "rss_bytes": max(result["rss_bytes"] for result in results),
                "torch_peak_bytes": sum(result["torch_peak_bytes"]
                                        for result in results),
                "equal": None if None in equal else all(equal)}
