"""hoist.ray: a model on many nodes, each byte of it read once.

    import hoist.ray

    hoist.ray.load("/models/llama", "llama")     # on all nodes of the cluster
    best = hoist.ray.strategies("llama")[0]
    Worker.options(scheduling_strategy=best).remote()

README.md says how it works. `import hoist` does not import Ray; this does.
"""

from .._surroundings import require

require("ray", "hoist.ray")
require("numpy", "hoist.ray")

from ._api import (actor_options, end_agents, evict, forget, load, models, pin,
                   replicate, start_load, status, strategies, where)
from ._load import Load, NodesFailed, Report

__all__ = ["Load", "NodesFailed", "Report", "actor_options", "end_agents",
           "evict", "forget", "load", "models", "pin", "replicate",
           "start_load", "status", "strategies", "where"]
