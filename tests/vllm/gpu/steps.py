"""The steps of run.py."""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import os
import pathlib
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any

from engines import GIB, Engine, Failed, gpu_mib, hoistd, why_not
from served import Served

if TYPE_CHECKING:
    from run import Run

TOKENS = 32


def replicas(run: Run) -> None:
    """Four plain engines, then four of hoist's."""
    plain = run.begin("plain, first").ready()  # Compiles.
    want = run.plain_tokens = plain.ask("generate", tokens=TOKENS)
    _replicas(run, plain, want)
    with hoistd(run.place) as daemon:
        options = {"socket": daemon.socket, "load_format": "hoist"}
        _replicas(run, run.begin("hoist, first", **options).ready(), want,
                  **options)


def _replicas(run: Run, first: Engine, want: list[list[int]],
              **options: Any) -> None:
    """The first is measured alone. Three more start at once, and end one by
    one, so that the memory in all is that of four, three, and two."""
    _replica(run, first, want, rates=True)
    more = [run.begin(first.name.replace("first", which), **options)
            for which in ("second", "third", "fourth")]
    for engine, why in reversed(list(zip(more, why_not(more)))):
        if run.check(f"{engine.name} starts: {why}", why is None) == "yes":
            _replica(run, engine, want)
        engine.end()
    run.end_engines()


def _replica(run: Run, engine: Engine, want: list[list[int]],
             rates: bool = False) -> None:
    own, used = gpu_mib(engine.process.pid), run.used_mib()
    equal = engine.ask("generate", tokens=TOKENS) == want
    run.row("Replicas", engine=engine.name, **{
        "start, s": engine.start_s, "loading, s": engine.loading_s(),
        "own MiB": own, "MiB in all": used,
        **(rates_of(run, engine, (1, 8, 64), 128)[0] if rates else {}),
        "tokens equal": run.check(f"{engine.name}: tokens", equal)})


def rates_of(run: Run, engine: Engine, batches: tuple[int, ...], tokens: int,
             most: int = 8) -> tuple[dict[str, str], int]:
    """By batch; and how many passes that took."""
    found, passes = {}, 0
    for batch in batches:
        said = engine.ask("rate", batch=batch, most=most,
                          tokens=4 if run.place.small else tokens)
        found[f"tok/s, {batch}"] = (
            f"{said['rate']:,.1f} ({said['spread'] * 100:.1f} %)")
        passes += said["passes"]
    return found, passes


def plain_tokens(run: Run) -> list[list[int]]:
    """The tokens of an engine without hoist, compiled as by default."""
    if run.plain_tokens is None:
        engine = run.begin("plain").ready()
        run.plain_tokens = engine.ask("generate", tokens=TOKENS)
        engine.end()
    return run.plain_tokens


def budgets(run: Run) -> None:
    """Budgets over the compile cache of an engine without one. Compiled with
    hoist's operators in it, code may round otherwise than plain's. Budgets
    share that code, so they agree, also with 1.0, which streams nothing; and
    eagerly all agree."""
    with hoistd(run.place) as daemon:
        eager = (run.begin("plain, eager", enforce_eager=True),
                 run.begin("hoist, 0.5, eager", enforce_eager=True,
                           **_with(0.5, daemon)))
        want = plain_tokens(run)  # Compiles while those start.
        whole = _code(run, "vllm")
        link = _eager(run, *eager)
        said = [_budget(run, daemon, budget, want, link)
                for budget in (0.5, 0.25, 0.75, 1.0)]
        run.check("the tokens of one budget are another's",
                  all(one == said[0] for one in said))
        streamed = _code(run, "vllm") - whole
        if run.check("budgets share one piece of compiled code",
                     len(streamed) == 1) == "yes":
            _planted(run, daemon, min(whole), *streamed)


def _eager(run: Run, plain: Engine, ours: Engine) -> float:
    """Returns the link's GB/s."""
    want = plain.ready().ask("generate", tokens=TOKENS)
    equal = ours.ready().ask("generate", tokens=TOKENS) == want
    run.row("Budgets", engine=ours.name, **{
        "tokens are plain's": run.check(f"{ours.name}: tokens", equal)})
    ours.end()
    link: float = plain.ask("link")
    plain.end()
    return link


def _with(budget: float, daemon: Any) -> dict[str, Any]:
    return {"socket": daemon.socket, "load_format": "hoist",
            "model_loader_extra_config": {"budget": budget}}


def _budget(run: Run, daemon: Any, budget: float, want: list[list[int]],
            link: float) -> list[list[int]]:
    engine = run.begin(f"hoist, {budget}", **_with(budget, daemon)).ready()
    run.check(f"{engine.name}: the first compiles, and no other", (
        engine.ask("compiled_code_read") > 0) == (budget != 0.5))
    tokens: list[list[int]] = engine.ask("generate", tokens=TOKENS)
    rates, moved = _streamed(run, engine, daemon)
    run.row("Budgets", engine=engine.name, **rates, **{
        "start, s": engine.start_s, "loading, s": engine.loading_s(),
        "own MiB": gpu_mib(engine.process.pid),
        "a pass, GiB": moved / GIB,
        "link alone, tok/s, 8": 8 * link * 1e9 / moved if moved else None,
        "tokens are plain's": "yes" if tokens == want else "no"})
    engine.end()
    return tokens


def _streamed(run: Run, engine: Engine, daemon: Any
              ) -> tuple[dict[str, str], float]:
    """Rates; and the bytes that hoistd moves to the device a pass."""
    daemon.count_anew()
    rates, passes = rates_of(run, engine, (8, 64), 8, most=4)
    return rates, daemon.counters()["host_to_device_bytes"] / passes


def rivals(run: Run) -> None:
    """vLLM's own offloading, over a compile cache of its own, beside a budget
    of 0.5: with its bytes on the device, and with its bytes a pass."""
    with hoistd(run.place) as daemon:
        ours = run.begin("hoist, 0.5", **_with(0.5, daemon))
        weights = run.place.bytes_of("llama")
        theirs = _rivals(run, weights)
        # All have compiled before one is measured.
        engines = (ours, *theirs)
        absent = dict(zip(engines, why_not(engines)))
        if absent[ours] is None:
            rates, moved = _streamed(run, ours, daemon)
            run.row("Rivals", engine=ours.name, **rates, **{
                "own MiB": gpu_mib(ours.process.pid),
                "weights on the device, GiB": 0.5 * weights / GIB,
                "a pass, GiB": moved / GIB})
        ours.end()
        for engine, streamed in theirs.items():
            if absent[engine] is None:
                _rival(run, engine, streamed)
            engine.end()
    for engine, why in absent.items():
        run.check(f"{engine.name} starts: {why}", why is None)


def _rivals(run: Run, weights: int) -> dict[Engine, float]:
    """With the bytes that each streams a pass. Of 16 layers a budget of 0.5
    streams 11: two more have their memory as slots."""
    layer = max(path.stat().st_size
                for path in run.place.model.glob("*-00002-of-*"))
    found = {}
    for streamed in (0.5 * weights, 11 * layer):
        gib = round(streamed / GIB, 3)
        found[run.begin(f"--cpu-offload-gb {gib}", cache="rivals",
                        cpu_offload_gb=gib)] = streamed
    for each, of in ((1, 2), (11, 16)):
        found[run.begin(
            f"its prefetch, {each} of {of} layers", cache="rivals",
            offload_group_size=of, offload_num_in_group=each,
            offload_prefetch_step=1)] = 16 * each / of * layer
    return found


def _rival(run: Run, engine: Engine, streamed: float) -> None:
    rates, _ = rates_of(run, engine, (8, 64), 8, most=4)
    run.row("Rivals", engine=engine.name, **rates, **{
        "own MiB": gpu_mib(engine.process.pid),
        "weights on the device, GiB": engine.loaded_gib(),
        "a pass, GiB": streamed / GIB})


def _code(run: Run, cache: str) -> set[pathlib.Path]:
    """What vLLM's compile cache has, by key."""
    return set((run.place.caches / cache / "torch_compile_cache"
                / "torch_aot_compile").iterdir())


def _planted(run: Run, daemon: Any, whole: pathlib.Path,
             streamed: pathlib.Path) -> None:
    """Code compiled without a budget, where a budget's is looked for."""
    right = streamed.rename(run.place.caches / "right")
    shutil.copytree(whole, streamed)
    engine = run.begin("hoist, 0.5, planted", **_with(0.5, daemon))
    try:
        said = f"none: {engine.ready().name} starts"
    except Failed as failed:
        said = str(failed)
    refused = "FailedPrecondition" in said and "staged 0 of its" in said
    run.row("A planted stale cache", **{
        "is refused": run.check(f"planted code is refused: {said}", refused),
        "error": said.split(": ", 1)[1][:160]})
    engine.end()
    shutil.rmtree(streamed)
    right.rename(streamed)


def sleep(run: Run) -> None:
    """Both levels, twice: vLLM's own way, and with hoistd's weights."""
    with hoistd(run.place) as daemon:
        ours = {"socket": daemon.socket, "load_format": "hoist",
                "enable_sleep_mode": True}
        slept = [run.begin("plain, cumem", enable_sleep_mode=True),
                 run.begin("hoist", **ours)]
        if has_sleep_backends():
            slept.append(run.begin("hoist, --sleep-mode-backend hoist",
                                   sleep_mode_backend="hoist", **ours))
        for engine in slept:
            engine.ready()
        for engine in slept:
            want = engine.ask("generate", tokens=TOKENS)
            awake = gpu_mib(engine.process.pid)
            for level in (1, 1, 2, 2):
                _sleep(run, engine, level, want, awake)
        run.end_engines()


def has_sleep_backends() -> bool:
    """vLLM takes --sleep-mode-backend."""
    found = importlib.metadata.version("vllm").split(".")
    return [int(part) for part in found[:2]] >= [0, 33]


def _sleep(run: Run, engine: Engine, level: int, want: list[list[int]],
           awake: int | None) -> None:
    how = {"level": level, "ours": engine.name == "hoist"}
    to_sleep = engine.ask("sleep", **how)
    asleep = gpu_mib(engine.process.pid)
    to_wake = engine.ask("wake", **how, reload="cumem" in engine.name)
    run.row("Sleep", engine=engine.name, level=level, **{
        "to sleep, ms": to_sleep * 1e3, "to wake, ms": to_wake * 1e3,
        "own MiB awake": awake, "asleep": asleep,
        "tokens equal": run.check(
            f"{engine.name}, level {level}: tokens",
            engine.ask("generate", tokens=TOKENS) == want)})


def serve(run: Run) -> None:
    """vllm serve under clients; hoistd killed under its keeper meanwhile."""
    with hoistd(run.place, keeper=True) as daemon:
        plain = Served(run.place, "plain")
        ours = [Served(run.place, "hoist", daemon.socket),
                Served(run.place, "hoist, 0.5", daemon.socket,
                       model_loader_extra_config={"budget": 0.5})]
        for one in (plain, *ours):
            run.keep(one.end)
        for one in (plain, *ours):
            one.ready()
        want = {one.name: one.alone(TOKENS, 0)[0] for one in (plain, *ours)}
        run.check("serve: whole weights say what plain says",
                  want["plain"] == want["hoist"])
        for one in (plain, *ours):
            _crowd(run, one, one.crowd(TOKENS, 4), want[one.name], "no")
        for what in ("crowd", "alone"):
            _killed(run, daemon, ours, want, what)
        run.end_engines()


def _crowd(run: Run, one: Served, said: dict[str, Any], want: list[int],
           killed: str) -> None:
    run.row("vllm serve", engine=one.name, **{
        "hoistd killed": killed, "answers": said["answers"],
        "failed": said["failed"], "tok/s": said["rate"],
        "worst, s": said["worst_s"],
        "tokens equal": run.check(
            f"serve, {one.name}: tokens, none failed {said['why']}",
            not said["failed"] and one.alone(TOKENS, 0)[0] == want)})


def _killed(run: Run, daemon: Any, ours: list[Served],
            want: dict[str, list[int]], what: str) -> None:
    """hoistd ends after a third of 9 s of requests to all servers at once."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = [pool.submit(getattr(one, what), TOKENS, 9) for one in ours]
        time.sleep(3)
        os.kill(daemon.kept_pid(), signal.SIGKILL)
        begin = time.monotonic()
        daemon.until_served()
        gap = time.monotonic() - begin
        for one, said in zip(ours, asked):
            if what == "crowd":
                _crowd(run, one, said.result(), want[one.name], "yes")
                continue
            answers = said.result()
            run.row("vllm serve", engine=one.name, **{
                "hoistd killed": f"yes, {gap:.2f} s", "answers": len(answers),
                "failed": 0, "tokens equal": run.check(
                    f"serve, {one.name}: tokens, hoistd killed",
                    all(answer == want[one.name]
                        for answer in answers))})
