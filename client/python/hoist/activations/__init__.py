"""Activations that are offloaded by the layer.

    offload = hoist.offload_activations(model, budget="8GiB")
    with hoist.keep():
        ...                          # what is saved here stays

See hoist.offload_activations, and README.md.
"""

from .._surroundings import require

require("torch", __name__)

from ._api import offload_activations
from ._counts import OffloadStats
from ._keep import keep, mark_keep
from ._offload import Offload

__all__ = ["Offload", "OffloadStats", "keep", "mark_keep",
           "offload_activations"]
