"""hoist: weights that live in hoistd, staged before they are used.

    import hoist

    with hoist.connect() as session:
        model = session.register("/models/minilm")
        with session.stage(model["encoder.layer.0"]) as lease:
            weight = lease["encoder.layer.0.output.dense.weight"].numpy()

Nothing is copied into this process: arrays and tensors are views of hoistd's
memory, valid until their lease is released.
"""

import importlib
from typing import TYPE_CHECKING

from ._errors import (Aborted, AlreadyExists, Cancelled, DataLoss,
                      DeadlineExceeded, FailedPrecondition, HoistError,
                      InternalError, InvalidArgument, MissingExtra, NotFound,
                      OutOfRange, PermissionDenied, ResourceExhausted,
                      Unauthenticated, Unavailable, Unimplemented,
                      UnknownError)
from ._fixed_mapping import FixedMapping
from ._host_image import HostImage
from ._in_place import InPlace, InPlaceStats, InPlaceTensor
from ._library import library_path, library_version
from ._registration import Joined, Runs
from ._session import Device, Lease, Session, connect, forget
from ._model import Group, Model, TensorInfo
from ._plan import Plan, PlanInfo, PlannedTensors, PlanStats
from ._surroundings import require
from ._tensor import Tensor

__all__ = [
    "Aborted", "AlreadyExists", "Cancelled", "DataLoss",
    "DeadlineExceeded", "Device", "FailedPrecondition", "FixedMapping",
    "Group", "HoistError", "HostImage",
    "InPlace", "InPlaceStats", "InPlaceTensor", "InternalError",
    "InvalidArgument", "Joined", "Lease", "MissingExtra", "Model",
    "NotFound", "OutOfRange", "PermissionDenied", "Plan", "PlanInfo",
    "PlanStats", "PlannedTensors", "ResourceExhausted", "Runs", "Session",
    "Tensor", "TensorInfo", "Unauthenticated", "Unavailable", "Unimplemented",
    "UnknownError", "connect", "forget", "library_path", "library_version",
]

# Modules that need torch are imported on first use. Type checkers read only the
# first branch, so a name in none of these is an error.
if TYPE_CHECKING:
    __version__: str
    from . import activations as activations, compat as compat, nn as nn
    from .activations import (Offload as Offload,
                              OffloadStats as OffloadStats, keep as keep,
                              mark_keep as mark_keep,
                              offload_activations as offload_activations)
    from .nn import (AttachStats as AttachStats,
                     PipelineStats as PipelineStats, advance as advance,
                     attach as attach,
                     attach_pipeline as attach_pipeline, check as check,
                     detach as detach, load as load,
                     load_pipeline as load_pipeline,
                     retry_on_oom as retry_on_oom,
                     set_budget as set_budget, sleep as sleep, stage as stage,
                     stats as stats, wake as wake)
else:
    _NN = {"AttachStats", "PipelineStats", "advance", "attach",
           "attach_pipeline", "check", "detach", "load", "load_pipeline",
           "retry_on_oom", "set_budget", "sleep", "stage", "stats", "wake"}
    _ACTIVATIONS = {"Offload", "OffloadStats", "keep", "mark_keep",
                    "offload_activations"}
    _MODULES = {"activations", "compat", "nn"}

    def __getattr__(name: str) -> object:
        if name in _NN:
            require("torch", f"{__name__}.{name}")
            return getattr(importlib.import_module(".nn", __name__), name)
        if name in _ACTIVATIONS:
            require("torch", f"{__name__}.{name}")
            return getattr(importlib.import_module(".activations", __name__),
                           name)
        if name in _MODULES:
            return importlib.import_module(f".{name}", __name__)
        if name == "__version__":  # Of one release, as the wheel has it.
            return library_version()
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_NN, *_ACTIVATIONS, *_MODULES, "__version__"})
