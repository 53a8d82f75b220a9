"""hoist's part of the key of vLLM's compile cache.

vLLM reuses code that another process has compiled by a key alone, without
torch's guards. Under a budget that code stages layers, and on CPUs it calls
other kernels; so the key contains both.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
from typing import Any, Mapping

from ._options import Options


def code_factors(load_format: str, extra_config: Mapping[str, Any] | None,
                 on_cpu: bool) -> dict[str, str]:
    """hoist's factors of an engine's compiled code; empty: the code is the same
    as without hoist.

    Streamed layers are no factor: all layers have the operators, and the plan
    decides which of those have work to do.
    """
    if load_format != "hoist":
        return {}
    options = Options.of(extra_config or {})
    found = {}
    if options.in_place is not None:
        if on_cpu:  # A GPU's has one operator for the router and its experts.
            found["operators"] = _digest_of("_experts.py", "_cpu_experts.py")
    elif options.budget is not None:
        found["operators"] = _digest_of("_offload.py")
    if on_cpu and options.cpu_kernels == "shared":
        found["cpu kernels"] = "shared"
    return found


def tell_compile_cache() -> None:
    """From now on the keys of this process's engines have the factors."""
    from vllm.config.load import LoadConfig
    theirs = LoadConfig.compute_hash

    @functools.wraps(theirs)
    def compute_hash(config: LoadConfig) -> str:
        from vllm.platforms import current_platform
        said: str = theirs(config)
        factors = code_factors(str(config.load_format),
                               config.model_loader_extra_config,
                               bool(current_platform.is_cpu()))
        return _digest(said, factors) if factors else said

    LoadConfig.compute_hash = compute_hash


@functools.cache
def _digest_of(*files: str) -> str:
    """Of the code that puts operators into a model's."""
    return hashlib.sha256(b"".join(
        pathlib.Path(__file__).with_name(one).read_bytes()
        for one in files)).hexdigest()


def _digest(*what: object) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
