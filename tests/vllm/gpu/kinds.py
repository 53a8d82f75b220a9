"""Weights that vLLM quantizes, routes, adapts: the steps `kinds`, `in_place`,
`quantised` and `large`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Sequence

from engines import (GIB, MIB, Engine, RealDaemon, gpu_mib, hoistd, other_gpu,
                     why_not)
from steps import rates_of

if TYPE_CHECKING:
    from run import Run

TOKENS = 32
# Without torch.compile, which would take most of the time.
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
# Which of model.py's it is, options of both engines, and hoist's own.
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fp8 in blocks": ("blocks", {}, {}),
    "fp8 online": ("llama", {"quantization": "fp8"},
                   {"unsupported": "private"}),
    "a mixture": ("mixture", {}, {}),
    "LoRA": ("llama", {"enable_lora": True, "max_lora_rank": 8}, {}),
}


def kinds(run: Run) -> None:
    """An engine of each kind, all of them plain, then all of them hoist's.
    Without torch.compile, which would take most of the time; with CUDA graphs
    of decoding."""
    run.place.make("llama", "blocks", "mixture", "adapter")
    want: dict[str, Any] = {}
    _kinds(run, {kind: _begin(run, "plain", kind) for kind in KINDS}, want)
    with hoistd(run.place, gib=20) as daemon:  # For all kinds at once.
        _kinds(run, {kind: _begin(
            run, "hoist", kind, socket=daemon.socket, load_format="hoist",
            model_loader_extra_config=KINDS[kind][2]) for kind in want}, want)


def in_place(run: Run) -> None:
    """A mixture whose cold experts are read in place, in CUDA graphs. Random
    weights route evenly: the hot set helps by its size alone."""
    run.place.make("mixture")
    with hoistd(run.place) as daemon:
        _in_place(run, daemon, "a mixture", (1.0, 0.7, 0.4),
                  model=str(run.place.of("mixture")))


def quantised(run: Run) -> None:
    """The same of quantised experts, which the first engine publishes. Marlin's
    kernels are compiled by the driver at their first use."""
    run.place.make("mixture_fp8", "mixture_int4", "gpt_oss")
    with hoistd(run.place, gib=20) as daemon:
        for kind, part in (("mixture_fp8", 0.4), ("mixture_int4", 0.8),
                           ("gpt_oss", 0.8)):
            _in_place(run, daemon, kind, (1.0, part), patience_s=480,
                      model=str(run.place.of(kind)), **(
                          {"moe_backend": "marlin"} if kind == "gpt_oss"
                          else {}))


def large(run: Run) -> None:
    """gpt-oss of $HOIST_ENGINE_LAYERS of the 120B one's 36 layers, within 24 GB
    of the device: in CUDA graphs, beside vLLM's own offloading of all else
    (where there is a second GPU), and eagerly. Its files have nine layers, which
    repeat. Each layer takes 1.8 GiB of the host: in the engine while it
    publishes, then in place. The disk has as much, but for hoistd's pool."""
    layers = int(os.environ.get("HOIST_ENGINE_LAYERS", "36"))
    run.place.make("gpt_oss_large", layers=9)
    budget = 16  # GiB of weights.
    with hoistd(run.place, gib=budget + 1, host_gib=20,
                in_place_gib=int(1.8 * layers) + 2) as daemon:
        options = {"model": str(run.place.of("gpt_oss_large")),
                   "layers": layers, "moe_backend": "marlin",
                   "most_bytes": 24 * 10**9}
        offloaded = max(0.0, round(
            run.place.bytes_of("gpt_oss_large") / 9 * layers / GIB - budget, 2))
        _in_place(run, daemon, f"{layers} layers of gpt-oss-120b",
                  (f"{budget}GiB",), patience_s=540,
                  offload_gb=offloaded, **options)
        run.end_engines()
        eager = {"mode": 0, "cudagraph_mode": "NONE"}
        _in_place(run, daemon, f"{layers} layers, eagerly",
                  (f"{budget}GiB",), patience_s=240,
                  compilation_config=eager, **options)


def _in_place(run: Run, daemon: RealDaemon, what: str,
              budgets: Sequence[float | str], patience_s: int = 0,
              offload_gb: float = 0, most_bytes: int = 0,
              **options: Any) -> None:
    """A plain engine, and beside it one for each budget, and one that offloads
    itself, if told how much. most_bytes: of the GPU, for an engine over hoistd
    and hoistd. Of long prompts plain's own tokens differ with some kernels, and
    then say nothing."""
    options = {"compilation_config": GRAPHS, **options}
    engines = [run.begin(f"plain, {what}", **options)]
    if offload_gb and other_gpu():  # 36 layers do not fit beside plain's.
        engines.append(run.begin(f"--cpu-offload-gb {offload_gb}, {what}",
                                 cpu_offload_gb=offload_gb,
                                 variables=other_gpu(), **options))
    engines += [
        run.begin(f"hoist, in place, {budget}, {what}", socket=daemon.socket,
                  **options, load_format="hoist", model_loader_extra_config={
                      "in_place": "auto", "budget": budget, "deadline": 500})
        for budget in budgets]
    for engine in engines:
        engine.patience_s = max(engine.patience_s, patience_s)
    want: Any = None
    for engine, why in zip(engines, why_not(engines)):
        if why is not None and run.place.small and want is None:
            run.row("Experts in place", engine=engine.name, **{
                "tokens equal": "not on CPUs"})
            break
        if run.check(f"{engine.name} starts: {why}", why is None) == "NO":
            continue
        short = engine.ask("generate_short", tokens=TOKENS)
        long = engine.ask("generate", tokens=TOKENS)
        if want is None:
            want = short, long
            repeats = engine.ask("generate", tokens=TOKENS) == long
        own, hoistds = gpu_mib(engine.process.pid), gpu_mib(daemon.process.pid)
        if most_bytes and own and hoistds and "hoist" in engine.name:
            run.check(f"{engine.name}: within {most_bytes} bytes",
                      (own + hoistds) * MIB <= most_bytes)
        run.row("Experts in place", engine=engine.name, **{
            "start, s": engine.start_s, "own MiB": own,
            "hoistd's MiB": hoistds,
            **rates_of(run, engine, (1, 8), 32, most=4)[0],
            "tokens equal": run.check(f"{engine.name}: tokens", (
                short == want[0] and (long == want[1] or not repeats))),
            "of long prompts": ("yes" if long == want[1] else "no") if (
                repeats) else "plain's differ"})
        engine.end()
    run.end_engines()


def _begin(run: Run, whose: str, kind: str, **options: Any) -> Engine:
    model, theirs, _ = KINDS[kind]
    # Without it an adapter's kernel adds parts up in any order, and then one
    # engine's own tokens differ from run to run.
    variables = {"VLLM_BATCH_INVARIANT": "1"} if kind == "LoRA" else {}
    return run.begin(
        f"{whose}, {kind}", **options, **theirs, model=str(run.place.of(model)),
        variables=variables, compilation_config=GRAPHS)


def _kinds(run: Run, engines: dict[str, Engine], want: dict[str, Any]) -> None:
    """want: of each kind the tokens; plain's, which starts first."""
    for (kind, engine), why in zip(engines.items(),
                                   why_not(list(engines.values()))):
        if why is None:
            own = gpu_mib(engine.process.pid)
            said = _said(run, kind, engine)
            equal = run.check(f"{engine.name}: tokens",
                              said == want.setdefault(kind, said))
            run.row("Kinds", engine=engine.name, **{
                "start, s": engine.start_s, "loading, s": engine.loading_s(),
                "own MiB": own, "tokens equal": equal})
        elif run.place.small and kind not in want:
            run.row("Kinds", engine=engine.name, **{
                "tokens equal": "not on CPUs"})
        else:
            run.check(f"{engine.name} starts: {why}", False)
    run.end_engines()


def _said(run: Run, kind: str, engine: Engine) -> list[list[list[int]]]:
    said = [engine.ask("generate", tokens=TOKENS)]
    if kind == "LoRA":
        said.append(engine.ask("adapted", tokens=TOKENS,
                               adapter=str(run.place.of("adapter"))))
        run.check(f"{engine.name}: the adapter changes tokens",
                  said[0] != said[1])
    return said
