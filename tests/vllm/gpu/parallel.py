"""The step `parallel`: tensor parallelism of two, on two GPUs."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from engines import Engine, gpu_mib, hoistd, why_not
from steps import rates_of

if TYPE_CHECKING:
    from run import Run

TOKENS = 32
# Which of model.py's it is, and hoist's own options; None: plain.
ENGINES: dict[str, tuple[str, dict[str, Any] | None]] = {
    "plain": ("llama", None), "hoist": ("llama", {}),
    "hoist, 0.5": ("llama", {"budget": 0.5}),
    "plain, a mixture": ("mixture", None),
    "hoist, a mixture": ("mixture", {}),
    "hoist, in place, 0.4": ("mixture", {"in_place": "auto", "budget": 0.4}),
}


def parallel(run: Run) -> None:
    """Each rank has its shard of one hoistd, which is killed under its keeper
    at the end. CUDA graphs of decoding, without torch.compile."""
    run.place.make("llama", "mixture")
    with hoistd(run.place, keeper=True) as daemon:
        engines = {name: _begin(run, name, daemon) for name in ENGINES}
        want: dict[str, Any] = {}
        ours = []
        for (name, engine), why in zip(engines.items(),
                                       why_not(list(engines.values()))):
            if run.check(f"{name} of two starts: {why}", why is None) == "NO":
                continue
            model, options = ENGINES[name]
            equal = _equal(run, engine, want, model)
            run.row("Tensor parallelism of two", engine=name, **{
                "start, s": engine.start_s,
                "own MiB": gpu_mib(engine.process.pid),
                **rates_of(run, engine, (1, 8), 32, most=4)[0],
                "tokens equal": equal})
            if options is None:
                engine.end()
            else:
                ours.append((engine, model))
        os.kill(daemon.kept_pid(), signal.SIGKILL)
        for engine, model in ours:
            run.row("Tensor parallelism of two", engine=engine.name, **{
                "hoistd killed": "yes",
                "tokens equal": _equal(run, engine, want, model)})
        run.end_engines()


def _begin(run: Run, name: str, daemon: Any) -> Engine:
    model, options = ENGINES[name]
    ours = {} if options is None else {
        "socket": daemon.socket, "load_format": "hoist",
        "model_loader_extra_config": options}
    return run.begin(
        f"{name} of two", **ours, model=str(run.place.of(model)),
        tensor_parallel_size=2, gpu_memory_utilization=0.1,
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"})


def _equal(run: Run, engine: Engine, want: dict[str, Any], model: str) -> str:
    said = engine.ask("generate", tokens=TOKENS)
    return run.check(f"{engine.name}: tokens",
                     said == want.setdefault(model, said))
