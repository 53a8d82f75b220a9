"""Other libraries' functions: a script changes one import.

    from diffusers.hooks import apply_group_offloading      # before
    from hoist.compat import apply_group_offloading         # after

They take the same arguments. Arguments about streams, pinning and disks have no
effect, since hoistd decides. Each function also takes hoist.attach's `budget=`:
more device memory makes passes faster.
"""

from .._surroundings import require

require("torch", __name__)

from ._accelerate import (cpu_offload, disk_offload,
                          load_checkpoint_and_dispatch,
                          remove_hook_from_submodules)
from ._diffusers import apply_group_offloading, apply_layerwise_casting
from ._pipelines import (InDiffusers, enable_group_offload,
                         enable_model_cpu_offload, use_in_diffusers)

__all__ = ["InDiffusers", "apply_group_offloading", "apply_layerwise_casting",
           "cpu_offload", "disk_offload", "enable_group_offload",
           "enable_model_cpu_offload", "load_checkpoint_and_dispatch",
           "remove_hook_from_submodules", "use_in_diffusers"]
