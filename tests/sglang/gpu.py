#!/usr/bin/env python3
"""SGLang over hoistd beside plain SGLang, on a GPU: prints tables, and fails if
tokens differ or an answer fails.

Folders: $HOIST_BIN has hoistd and hoist-keeper; $HOIST_ENGINE_MODEL is the model,
which tests/vllm/gpu/model.py makes; $HOIST_ENGINE_LOGS is written to.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
from typing import Any, Iterator

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

from clients import prompts  # noqa: E402
from real_daemon import RealDaemon  # noqa: E402
from served import Failed, Served  # noqa: E402

GIB = 1 << 30
TOKENS, CLIENTS = 32, 32
ASKED = prompts([5, 17, 32, 64, 100, 200, 333, 500])
# As much KV cache for each; of the GPU's memory no more than servers beside it
# leave. FlashInfer's sampler would be compiled at start.
OPTIONS = {"max_total_tokens": 65536, "mem_fraction_static": 0.3,
           "skip_tokenizer_init": True, "sampling_backend": "pytorch",
           "attention_backend": "triton", "log_level": "info"}


class Run:
    def __init__(self) -> None:
        where = {name: pathlib.Path(os.environ[name]) for name in (
            "HOIST_BIN", "HOIST_ENGINE_MODEL", "HOIST_ENGINE_LOGS")}
        self.bin, self.model, self.logs = where.values()
        self.logs.mkdir(parents=True, exist_ok=True)
        self.idle_mib = used_mib()
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.failures: list[str] = []
        self.want: list[list[int]] = []

    def begin(self, name: str, daemon: str | None = None, **options: Any
              ) -> Served:
        log = self.logs / (re.sub(r"\W+", "-", f"sglang {name}") + ".log")
        served = Served(log, self.model, daemon, on_cpu=False,
                        **{**OPTIONS, **options})
        served.name = name  # type: ignore[attr-defined]
        return served

    def check(self, what: str, holds: bool) -> str:
        if not holds:
            self.failures.append(what)
            print(f"FAILED: {what}", flush=True)
        return "yes" if holds else "NO"

    def row(self, table: str, **cells: Any) -> None:
        self.rows.setdefault(table, []).append(cells)
        print(table, cells, flush=True)

    def server(self, one: Served, rate: bool = False) -> None:
        """A row of a server that is up."""
        said = one.generate(ASKED, TOKENS)
        self.want = self.want or said
        loaded = re.search(r"Load weight end\. elapsed=([\d.]+)", one.text())
        name = one.name  # type: ignore[attr-defined]
        self.row("SGLang's servers", server=name, **{
            "start, s": round(one.start_s, 1),
            "loading, s": loaded and loaded[1],
            "own MiB": used_mib(one.process.pid),
            "MiB in all": used_mib() - self.idle_mib,
            "tok/s, 32": f"{self.fastest(one):,.0f}" if rate else "",
            "tokens equal": self.check(f"{name}: tokens", said == self.want)})

    def fastest(self, one: Served) -> float:
        one.crowd(CLIENTS, TOKENS, 1)
        said = [one.crowd(CLIENTS, TOKENS, 3) for _ in range(3)]
        self.check(f"no answer fails: {said}",
                   not any(run["failed"] for run in said))
        return max(run["rate"] for run in said)

    @contextlib.contextmanager
    def hoistd(self) -> Iterator[RealDaemon]:
        daemon = RealDaemon(
            self.bin / "hoistd", pool=10 * GIB, slab=256 << 20, host=9 * GIB,
            backend="cuda",
            keeper=str(self.bin / "hoist-keeper"))
        try:
            daemon.until_served()
            yield daemon
        finally:
            (self.logs / "sglang-hoistd.log").write_text(daemon.log_text())
            daemon.stop()


def used_mib(leader: int | None = None) -> int:
    """Of the GPU: by a server's processes, or by all."""
    query = (["--query-gpu=memory.used"] if leader is None
             else ["--query-compute-apps=pid,used_memory"])
    said = subprocess.run(
        ["nvidia-smi", *query, "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True).stdout
    rows = [line.split(",") for line in said.splitlines()]
    return sum(int(row[-1]) for row in rows
               if leader is None or os.getpgid(int(row[0])) == leader)


def servers(run: Run, daemon: RealDaemon | None = None) -> None:
    """Two servers that start at once. hoist's: hoistd ends under its keeper,
    amid the requests of a crowd."""
    what = "hoist" if daemon else "plain"
    with contextlib.ExitStack() as ended:
        pair = [ended.enter_context(run.begin(
            f"{what}, {which}", daemon and daemon.socket))
            for which in ("one", "another")]
        for one in pair:
            one.ready()
        for one in pair:
            run.server(one, rate=one is pair[0])
        if daemon:
            killed(run, daemon, pair[0])


def killed(run: Run, daemon: RealDaemon, one: Served) -> None:
    kill = threading.Timer(3, os.kill, (daemon.kept_pid(), signal.SIGKILL))
    kill.start()
    said = one.crowd(CLIENTS, TOKENS, 9)
    kill.join()
    daemon.until_served()
    run.row("hoistd killed after 3 of 9 s", **{
        "answers": said["answers"], "failed": said["failed"],
        "tok/s": round(said["rate"]), "worst, s": round(said["worst_s"], 2),
        "tokens equal": run.check(
            f"killed: {said['why']}", not said["failed"]
            and one.generate(ASKED, TOKENS) == run.want)})


def main() -> int:
    run = Run()
    subprocess.run(
        [sys.executable, str(HERE.parent / "vllm" / "gpu" / "model.py"),
         str(run.model), "16", "4096", "32000", "llama"], check=True)
    try:
        servers(run)
        with run.hoistd() as daemon:
            servers(run, daemon)
    except (Failed, OSError, ValueError) as failed:
        run.check(str(failed), False)
    for table, rows in run.rows.items():
        heads = list(dict.fromkeys(head for row in rows for head in row))
        print(f"\n{table}\n\n| " + " | ".join(heads) + " |\n|"
              + " --- |" * len(heads))
        for row in rows:
            print("| " + " | ".join(str(row.get(head, "")) for head in heads)
                  + " |")
    for failure in run.failures:
        print(f"FAILED: {failure}")
    return bool(run.failures)


if __name__ == "__main__":
    sys.exit(main())
