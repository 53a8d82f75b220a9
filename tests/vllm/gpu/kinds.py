"""The steps `kinds` and `in_place`: weights that vLLM quantizes, routes, adapts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engines import Engine, gpu_mib, hoistd, why_not
from steps import rates_of

if TYPE_CHECKING:
    from run import Run

TOKENS = 32
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
    run.place.make("blocks", "mixture", "adapter")
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
        plain = _begin(run, "plain", "a mixture")
        ours = [_begin(run, f"hoist, in place, {budget}", "a mixture",
                       socket=daemon.socket, load_format="hoist",
                       model_loader_extra_config={"in_place": "auto",
                                                  "budget": budget})
                for budget in (1.0, 0.7, 0.4)]
        engines = [plain, *ours]
        want = None
        for engine, why in zip(engines, why_not(engines)):
            if run.check(f"{engine.name} starts: {why}", why is None) == "NO":
                continue
            said = engine.ask("generate", tokens=TOKENS)
            want = want or said
            run.row("Experts in place", engine=engine.name, **{
                "own MiB": gpu_mib(engine.process.pid),
                **rates_of(run, engine, (1, 8), 32, most=4)[0],
                "tokens equal": run.check(f"{engine.name}: tokens",
                                          said == want)})
            engine.end()


def _begin(run: Run, whose: str, kind: str, **options: Any) -> Engine:
    model, theirs, _ = KINDS[kind]
    # Without it an adapter's kernel adds parts up in any order, and then one
    # engine's own tokens differ from run to run.
    variables = {"VLLM_BATCH_INVARIANT": "1"} if kind == "LoRA" else {}
    return run.begin(
        f"{whose}, {kind}", **options, **theirs, model=str(run.place.of(model)),
        variables=variables,
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"})


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
