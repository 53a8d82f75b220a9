"""The step `loaders`: how fast others' loaders start an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engines import Engine, gpu_mib, hoistd, why_not
from served import Preload
from steps import TOKENS, plain_tokens

if TYPE_CHECKING:
    from run import Run


def loaders(run: Run) -> None:
    """Over one compile cache. All that read the files start at once, vLLM's
    cache of weights too; then those whose weights it, or hoistd, has."""
    want = plain_tokens(run)
    with hoistd(run.place) as daemon:
        ours = {"socket": daemon.socket, "load_format": "hoist"}
        cache = Preload(run.place, "vllm preload")
        run.keep(cache.end)
        reading = [run.begin("plain"), run.begin("hoist, first", **ours), *(
            run.begin(rival, load_format=rival)
            for rival in ("runai_streamer", "fastsafetensors"))]
        _rows(run, [*reading, cache], want)
        for engine in reading:
            engine.end()
        _rows(run, [run.begin("hoist, second", **ours), run.begin(
            "ipc_cache", load_format="ipc_cache", model_loader_extra_config={
                "fallback": False, "state_timeout_s": 5})], want)
        run.end_engines()


def _rows(run: Run, started: list[Engine | Preload], want: list[list[int]]
          ) -> None:
    for engine, why in zip(started, why_not(started)):
        cells: dict[str, Any] = {"why not": why}
        if why is None:
            cells = {"start, s": engine.start_s,
                     "own MiB": gpu_mib(engine.process.pid)}
            if isinstance(engine, Engine):
                cells.update(_loaded(engine, want))
        run.row("Loaders", engine=engine.name, **cells)
        # Of others it is noted.
        if engine.name.startswith(("plain", "hoist")):
            run.check(f"{engine.name}: {cells}",
                      cells.get("tokens equal") == "yes")


def _loaded(engine: Engine, want: list[list[int]]) -> dict[str, Any]:
    equal = engine.ask("generate", tokens=TOKENS) == want
    return {"loading, s": engine.loading_s(),
            "tokens equal": "yes" if equal else "no"}
