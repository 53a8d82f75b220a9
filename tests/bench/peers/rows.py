"""The rows there are, by name."""

from __future__ import annotations

import re
from typing import Any

_DIFFUSERS = {
    "block": {"type": "block"},
    "block-stream": {"type": "block", "stream": True},
    "block-record": {"type": "block", "stream": True, "record": True},
    "leaf": {"type": "leaf"},
    "leaf-stream": {"type": "leaf", "stream": True},
    "leaf-record": {"type": "leaf", "stream": True, "record": True},
    "pipeline-stream": {"type": "block", "stream": True, "pipeline": True},
    "pipeline-record": {"type": "block", "stream": True, "record": True,
                        "pipeline": True},
    "pipeline-leaf-stream": {"type": "leaf", "stream": True, "pipeline": True},
    "pipeline-disk-stream": {"type": "block", "stream": True, "disk": True,
                             "pipeline": True, "cold": True},
    "disk": {"type": "block", "disk": True},
    "disk-stream": {"type": "block", "stream": True, "disk": True},
}
_OTHERS: dict[str, dict[str, Any]] = {
    "resident": {"kind": "resident"},
    "resident-static": {"kind": "resident", "static": True},
    "resident-prefill": {"kind": "resident", "prefill": True},
    "uva": {"kind": "uva"},
    "uva-static": {"kind": "uva", "static": True},
    "uva-prefill": {"kind": "uva", "prefill": True},
    "two-slot": {"kind": "two-slot"},
    "accelerate": {"kind": "accelerate"},
    "accelerate-disk": {"kind": "accelerate", "disk": True},
    "resident-fp8": {"kind": "resident", "storage": "fp8"},
    "diffusers-fp8": {"kind": "diffusers", "type": "block", "stream": True,
                      "storage": "fp8"},
    "diffusers-fp8-record": {"kind": "diffusers", "type": "block",
                             "stream": True, "record": True,
                             "storage": "fp8"},
}
# hoist[.load|-in-place][-leaf][-fp8][-static|-prefill][-stagings]@BUDGET,
# hoist-pipeline[-cold][-leaf]@BUDGET and N-workers@BUDGET.
_HOIST = re.compile(r"(?:hoist(?:(?P<load>\.load)|(?P<pipeline>-pipeline)"
                    r"(?P<cold>-cold)?|(?P<in_place>-in-place))?"
                    r"(?P<leaf>-leaf)?(?P<fp8>-fp8)?(?P<static>-static)?"
                    r"(?P<prefill>-prefill)?(?P<stagings>-stagings)?"
                    r"|(?P<workers>\d+)-workers)"
                    r"@(?P<budget>min|[0-9.]+|[0-9.]+[KMG]i?B)")
_ACCELERATE = re.compile(r"accelerate(?P<static>-static)?@(?P<budget>[0-9.]+)")
_LRU = re.compile(r"lru@(?P<budget>[0-9.]+)")

SETS = {
    # What is slow comes last: it is what a short time leaves out.
    "main": ["resident", "two-slot", "hoist@min", "hoist@0.5",
             "hoist.load@min", "hoist.load@0.5", "hoist-leaf@min",
             "diffusers-block-stream", "diffusers-block-record",
             "diffusers-leaf-stream", "diffusers-leaf-record",
             "diffusers-block", "accelerate", "diffusers-leaf",
             "diffusers-disk-stream", "diffusers-disk", "accelerate-disk"],
    "fp8": ["resident-fp8", "hoist-fp8@min", "diffusers-fp8",
            "diffusers-fp8-record", "hoist@min"],
    "workers": ["2-workers@min", "4-workers@min"],
    "stagings": ["hoist-stagings@min"],
    # Of a decoder, --model llama32: all of it, half of it.
    "decode": ["resident", "hoist@1.1", "hoist-leaf@1.1", "hoist@0.5",
               "hoist-leaf@0.5", "accelerate@0.5"],
    "static": ["resident-static", "hoist-static@1.1", "hoist-leaf-static@1.1",
               "hoist-static@0.5", "hoist-leaf-static@0.5",
               "accelerate-static@0.5"],
    # Of a mixture, --model moe8; the part of its experts in GPU memory.
    "moe": ["resident", "hoist-in-place@0", "hoist-in-place@0.2",
            "hoist-in-place@0.4", "hoist-in-place@0.6", "lru@0.2", "lru@0.4",
            "lru@0.6", "uva", "hoist.load@0.4", "accelerate@0.4"],
    "moe-static": ["resident-static", "hoist-in-place-static@0.4",
                   "hoist-in-place-static@0.2", "hoist-in-place-static@0.6",
                   "hoist-in-place-static@0", "uva-static",
                   "hoist.load-static@0.4"],
    "moe-prefill": ["resident-prefill", "hoist-in-place-prefill@0.4",
                    "hoist.load-prefill@0.4", "uva-prefill"],
    # Of all layers, --model moe48.
    "moe-full": ["resident", "hoist-in-place@0.4", "lru@0.4", "uva",
                 "hoist.load@0.4", "hoist-in-place@0.2"],
    # An encoder of 10 blocks for 24 before it, in one budget.
    "pipeline": ["resident", "hoist-pipeline@min", "hoist-pipeline@0.5",
                 "diffusers-pipeline-stream", "diffusers-pipeline-record",
                 "diffusers-pipeline-leaf-stream"],
    # The same with RAM for a third of the weights; --folder is on a disk.
    "cold": ["resident", "hoist-pipeline-cold@0.5", "hoist-pipeline-cold@min",
             "diffusers-pipeline-disk-stream"],
}


def options_of(row: str, stagings: int) -> dict[str, Any]:
    """A row's options; ValueError says what rows there are."""
    if row in _OTHERS:
        return dict(_OTHERS[row])
    how = row.removeprefix("diffusers-")
    if how != row and how in _DIFFUSERS:
        return {"kind": "diffusers", **_DIFFUSERS[how]}
    found = _ACCELERATE.fullmatch(row)
    if found:
        return {"kind": "accelerate", "budget": found["budget"],
                "static": bool(found["static"])}
    found = _LRU.fullmatch(row)
    if found:
        return {"kind": "lru", "budget": found["budget"]}
    found = _HOIST.fullmatch(row)
    if not found:
        known = [*_OTHERS, *(f"diffusers-{how}" for how in _DIFFUSERS),
                 "hoist[.load|-in-place][-leaf][-fp8][-static|-prefill]"
                 "[-stagings]@BUDGET",
                 "hoist-pipeline[-cold][-leaf]@BUDGET",
                 "N-workers@BUDGET", "accelerate[-static]@FRACTION",
                 "lru@FRACTION"]
        raise ValueError(f"no row {row!r}; there are: {', '.join(known)}; "
                         "a BUDGET is min, a fraction, or as 4GiB")
    options: dict[str, Any] = {"kind": "hoist", "budget": found["budget"],
                               "how": "attach"}
    if found["load"] or found["workers"] or found["in_place"]:
        options["how"] = "load"
    if found["pipeline"]:
        options["how"] = "pipeline"
    if found["cold"]:
        options["cold"] = True
    if found["leaf"]:
        options["groups"] = "leaf"
    if found["fp8"]:
        options["storage"] = "fp8"
    for what in ("static", "prefill", "in_place"):
        if found[what]:
            options[what] = True
    if found["stagings"]:
        options["stagings"] = stagings
    if found["workers"]:
        options["workers"] = int(found["workers"])
    return options
