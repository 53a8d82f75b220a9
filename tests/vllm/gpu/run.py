#!/usr/bin/env python3
"""vLLM over hoistd beside plain vLLM, on a GPU: run.py [--small] STEP...

Steps: replicas, loaders, kinds, in_place, quantised, large, budgets, rivals, sleep,
serve, rounding; parallel, on two GPUs. Prints tables in Markdown, and fails if
tokens differ that must not. --small: on CPUs, to check the steps.

Folders: $HOIST_BIN has hoistd; $HOIST_ENGINE_MODEL is the model, which model.py
makes; $HOIST_ENGINE_LOGS and $HOIST_ENGINE_CACHES are written to.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import sys
import time
import traceback
from typing import Any, Callable

import steps
from engines import Engine, Place, gpu_mib
from kinds import in_place, kinds, large, quantised
from loaders import loaders
from parallel import parallel
from rounding import rounding

STEPS = {one.__name__: one for one in (
    steps.replicas, loaders, kinds, in_place, quantised, large, steps.budgets,
    steps.rivals, steps.sleep, steps.serve, rounding, parallel)}


class Run:
    """What steps have to work with; what they found out."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.failures: list[str] = []
        self.idle_mib = gpu_mib() or 0
        self.plain_tokens: list[list[int]] | None = None
        self._engines = contextlib.ExitStack()

    def begin(self, name: str, **options: Any) -> Engine:
        engine = Engine(self.place, name, **options)
        self._engines.callback(engine.end)
        return engine

    def keep(self, ended: Callable[[], None]) -> None:
        """Called with the step's end."""
        self._engines.callback(ended)

    def end_engines(self) -> None:
        self._engines.close()

    def row(self, table: str, **cells: Any) -> None:
        self.tables.setdefault(table, []).append(cells)
        said = json.dumps({"table": table, **cells})
        print(said, flush=True)
        with open(self.place.logs / "results.jsonl", "a") as results:
            results.write(said + "\n")

    def check(self, what: str, holds: bool) -> str:
        """The table's word for it."""
        if not holds:
            self.failures.append(what)
            print(f"FAILED: {what}", flush=True)
        return "yes" if holds else "NO"

    def used_mib(self) -> int | None:
        """Of the GPU, by all that was started here."""
        used = gpu_mib()
        return None if used is None else used - self.idle_mib

    def step(self, name: str) -> None:
        begin = time.monotonic()
        try:
            STEPS[name](self)
        except Exception as error:
            traceback.print_exc()
            self.failures.append(f"{name}: {error}")
        finally:
            self.end_engines()
        print(f"== {name}: {time.monotonic() - begin:.0f} s", flush=True)


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"
    return "" if value is None else f"{value:,}" if isinstance(
        value, int) else str(value)


def table_of(rows: list[dict[str, Any]]) -> str:
    heads = list(dict.fromkeys(head for row in rows for head in row))
    lines = [heads, ["---"] * len(heads),
             *([shown(row.get(head)) for head in heads] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(given: list[str]) -> int:
    small = "--small" in given
    wanted = [one for one in given if one != "--small"]
    where = {name: pathlib.Path(os.environ[name]) for name in (
        "HOIST_BIN", "HOIST_ENGINE_MODEL", "HOIST_ENGINE_LOGS",
        "HOIST_ENGINE_CACHES")}
    place = Place(*where.values(), small=small)
    place.logs.mkdir(parents=True, exist_ok=True)
    run = Run(place)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    try:
        for name in wanted:
            run.step(name)
    finally:
        report(run)
    return bool(run.failures)


def report(run: Run) -> None:
    for title, rows in run.tables.items():
        print(f"\n{title}\n\n{table_of(rows)}")
    for failure in run.failures:
        print(f"FAILED: {failure}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
