"""PyTorch modules whose weights live in hoist.

    model = hoist.attach(model, budget="8GiB")
    model(x)                     # as before, bit for bit

See hoist.attach, and README.md for recipes.
"""

from .._surroundings import require

require("torch", __name__)

from ._api.attach import (advance, attach, check, detach, retry_on_oom,
                          set_budget, sleep, stage, stats, wake)
from ._api.load import load
from ._api.load_pipeline import load_pipeline
from ._api.pipeline import attach_pipeline
from ._plan.stats import AttachStats, PipelineStats
from ._tensors.idle import IdleTensor
from ._tree.casting import DEFAULT_SKIP

__all__ = ["AttachStats", "DEFAULT_SKIP", "IdleTensor", "PipelineStats",
           "advance", "attach", "attach_pipeline", "check", "detach", "load",
           "load_pipeline", "retry_on_oom", "set_budget", "sleep", "stage",
           "stats", "wake"]
