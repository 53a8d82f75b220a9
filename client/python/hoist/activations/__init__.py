"""Activations that are offloaded by layers.

    offload = hoist.offload_activations(model, budget="8GiB")
    with hoist.keep():
        ...                          # tensors saved here stay

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
