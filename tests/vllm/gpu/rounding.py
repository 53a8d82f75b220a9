"""The step `rounding`: why compiled code with a budget may say other tokens."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from engines import Engine, hoistd, why_not

if TYPE_CHECKING:
    from run import Run

TOKENS = 32
# Of inductor: no kernels by measurement; no float32 in place of bfloat16 between
# operators; sums of residuals stored at once. On CPUs the last makes all equal.
SWITCHES: dict[str, dict[str, Any]] = {
    "as by default": {}, "deterministic": {"deterministic": True},
    "emulate_precision_casts": {"emulate_precision_casts": True},
    "realize_reads_threshold": {"realize_reads_threshold": 1}}


def rounding(run: Run) -> None:
    """Each engine compiles anew, plain and with a budget, with each switch. All
    start at once; their logs have the generated code."""
    with hoistd(run.place) as daemon:
        budget = {"socket": daemon.socket, "load_format": "hoist",
                  "model_loader_extra_config": {"budget": 0.5}}
        found: dict[str, list[Engine]] = {}
        for switch in SWITCHES:
            found[switch] = [_begin(run, "plain", switch),
                             _begin(run, "hoist, 0.5", switch, **budget)]
        default = next(iter(SWITCHES))
        found[default].append(_begin(run, "plain, again", default))
        engines = [one for ones in found.values() for one in ones]
        said = {}
        for engine, why in zip(engines, why_not(engines)):
            if run.check(f"{engine.name} starts: {why}", why is None) == "yes":
                said[engine] = engine.ask("generate", tokens=TOKENS)
        for plain, *others in found.values():
            for engine in others:
                if plain in said and engine in said:
                    run.row("Rounding", engine=engine.name, **{
                        "prompts": len(said[plain]), "as plain":
                        sum(map(operator.eq, said[engine], said[plain]))})
        run.end_engines()


def _begin(run: Run, name: str, switch: str, **options: Any) -> Engine:
    name = f"{name}, {switch}"
    return run.begin(
        name, cache=name.replace(" ", "-"), **options,
        gpu_memory_utilization=0.1,  # Many are there when the last one looks.
        compilation_config={"inductor_compile_config": SWITCHES[switch]},
        variables={"TORCH_LOGS": "output_code",
                   "TORCHINDUCTOR_COMPILE_THREADS": "2"})
