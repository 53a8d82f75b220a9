"""Compilers that count, and that forget."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Iterator

import torch
import torch._dynamo
from torch._dynamo.backends.registry import lookup_backend


# The first came with torch 2.6. The second, which hoist needs, is what newer
# ones than 2.4 do anyway.
_OPTIONS = ("fail_on_recompile_limit_hit", "inline_inbuilt_nn_modules")


class CountingBackend:
    """Counts how often something is compiled, by the backend of that name."""

    def __init__(self, name: str = "aot_eager") -> None:
        self.compilations = 0
        self._compile = lookup_backend(name)

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        self.compilations += 1
        return self._compile(graph, inputs, **options)


def plenty_of_code() -> Any:
    """One function may be compiled more often than is sensible."""
    return torch._dynamo.config.patch(recompile_limit=64)


@contextlib.contextmanager
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled before is used within, nor what is within after; and
    nothing runs uncompiled because it was compiled too often."""
    torch._dynamo.reset()
    # Its trace is thousands of records, which pytest would keep.
    trace = logging.getLogger("torch.__trace")
    propagated, trace.propagate = trace.propagate, False
    try:
        with torch._dynamo.config.patch({name: True for name in _OPTIONS
                                         if hasattr(torch._dynamo.config,
                                                    name)}):
            yield
    finally:
        trace.propagate = propagated
        torch._dynamo.reset()
