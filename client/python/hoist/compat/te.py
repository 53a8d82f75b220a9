"""TransformerEngine's offloading of activations, over hoist.activations.

    from hoist.compat.te import get_cpu_offload_context
    # was: from transformer_engine.pytorch import get_cpu_offload_context

As transformer_engine/pytorch/cpu_offload.py of 2.20, with these differences:

    `enabled=False` disables: within its context nothing moves, whatever
        context is around it;
    host memory is an arena that hoistd leases; arguments about pinned buffers
        have no effect;
    a tensor that is not contiguous keeps its layout;
    a tensor that is saved twice is moved once, with its views;
    a tensor that is needed and was not reloaded is reloaded then.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from typing import Any, Callable, Protocol

import torch

from .. import _session
from .._errors import FailedPrecondition, InvalidArgument
from ..activations import keep, mark_keep
from ..activations._api import MIN_BYTES, make_engine
from ..activations._engine import Engine, Saving
from ..activations._keep import is_keeping
from ..activations._runs import LayerRun, Pass
from ..nn._api.options import Where
from ..nn._plan.budget import Amount

__all__ = ["ManualController", "get_cpu_offload_context",
           "is_cpu_offload_enabled", "mark_activation_offload",
           "mark_not_offload", "start_offload"]

Synchronize = Callable[[torch.Tensor], torch.Tensor]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.entered = 0  # Contexts that offload.


_thread = _Thread()


def get_cpu_offload_context(
        enabled: bool = False, num_layers: int | None = 1,
        model_layers: int = 1, offload_activations: bool = True,
        offload_weights: bool = False, double_buffering: bool = False,
        manual_synchronization: bool = False,
        retain_pinned_cpu_buffers: bool = False,
        offload_stream: torch.cuda.Stream | None = None, *,
        min_bytes: int = MIN_BYTES, arena: Amount = None, device: Where = None,
        session: _session.Session | None = None,
        deadline: float = 60.0) -> tuple[Any, ...]:
    """As TransformerEngine's: (context, sync_function), and with
    manual_synchronization a ManualController (None if not enabled) as third.

        context, sync = get_cpu_offload_context(True, 10, 12)
        for layer in layers:
            with context:
                x = layer(x)
            x = sync(x)

    The first num_layers of model_layers are offloaded; the others' tensors, and
    at least two layers', are on the device at once. offload_weights,
    double_buffering and retain_pinned_cpu_buffers are accepted without effect;
    weights are for hoist.attach. min_bytes, arena, device, session and deadline
    are as hoist.offload_activations has them.

    Raises InvalidArgument, a ValueError, where TransformerEngine raises.
    """
    if not enabled or not offload_activations:
        if enabled and not offload_weights:
            raise InvalidArgument("enabled=True, but neither activations nor "
                                  "weights are to be offloaded")
        off: tuple[Any, ...] = (keep(), lambda tensor: tensor)
        return (*off, None) if manual_synchronization else off
    if offload_weights:
        warnings.warn("offload_weights=True has no effect, as in "
                      "TransformerEngine; hoist.attach(model) streams weights",
                      DeprecationWarning, stacklevel=2)
    count = _check(num_layers, model_layers, manual_synchronization,
                   offload_stream)
    engine = make_engine(device, session, arena, min_bytes, deadline,
                         offload_stream)
    if manual_synchronization:
        manual = _Manual(engine, model_layers)
        context = _Context(engine, manual)
        return context, context.synchronize, ManualController(manual)
    context = _Context(engine, _Automatic(engine, model_layers, count))
    return context, context.synchronize


def _check(num_layers: int | None, model_layers: int, manual: bool,
           stream: torch.cuda.Stream | None) -> int:
    """The number of offloaded layers."""
    if manual:
        return 0
    if stream is not None:
        raise InvalidArgument("offload_stream= is for "
                              "manual_synchronization=True alone")
    if num_layers is None or not 0 <= num_layers < model_layers:
        raise InvalidArgument(
            f"num_layers={num_layers}, model_layers={model_layers}: without "
            "manual_synchronization the last layer is not offloaded, so at "
            f"most {model_layers - 1} are")
    return num_layers


def mark_not_offload(*tensors: Any) -> None:
    """hoist.mark_keep, also for TransformerEngine's storages of quantised
    tensors, which are not tensors."""
    for tensor in tensors:
        if tensor is None or isinstance(tensor, torch.Tensor):
            mark_keep(tensor)
        else:
            mark_keep(*tensor.get_data_tensors())


def mark_activation_offload(*tensors: Any) -> None:
    """No effect, as in TransformerEngine: saved tensors are offloaded."""


def start_offload(*tensors: Any, offload_base_tensor: bool = False) -> None:
    """No effect: a layer's copies begin when it ends, all at once, and views of
    one tensor always move as that tensor."""


def is_cpu_offload_enabled() -> bool:
    """Whether this is in a context that offloads, and not in keep()."""
    return _thread.entered > 0 and not is_keeping()


class _Synchronizer(Protocol):
    """Decides which layers move, and when."""

    def begin(self) -> LayerRun: ...

    def end(self, run: LayerRun) -> None: ...


class _Automatic:
    """Offloads the first layers of each pass."""

    def __init__(self, engine: Engine, layers: int, offloaded: int) -> None:
        self._engine = engine
        self._layers = layers
        self._kept = layers - offloaded
        self._pass: Pass | None = None

    def begin(self) -> LayerRun:
        if self._pass is None or self._pass.count == self._layers:
            if self._pass is not None:
                self._pass.finish()
            self._engine.memory.ask_again()
            self._pass = Pass(self._engine, self._layers, self._kept)
        return self._pass.begin()

    def end(self, run: LayerRun) -> None:
        assert self._pass is not None
        self._pass.end(run)


class _Manual:
    """Moves layers when the caller requests it."""

    def __init__(self, engine: Engine, layers: int) -> None:
        self._engine = engine
        self._layers = layers
        self._next = 0
        self._runs: dict[int, LayerRun] = {}
        self._states: dict[int, str] = {}

    def begin(self) -> LayerRun:
        layer, self._next = self._next, (self._next + 1) % self._layers
        run = LayerRun(self, layer)
        self._runs[layer], self._states[layer] = run, "not_offloaded"
        return run

    def end(self, run: LayerRun) -> None:
        pass

    def reached(self, run: LayerRun) -> None:
        pass

    def start(self, layer: int) -> None:
        self._engine.send(self._step(layer, "not_offloaded",
                                     "offload_started"), 1)

    def release(self, layer: int) -> None:
        self._engine.release(self._step(layer, "offload_started",
                                       "offload_finished"))

    def reload(self, layer: int) -> None:
        self._engine.fetch(self._step(layer, "offload_finished",
                                      "reload_started"))

    def _step(self, layer: int, before: str, after: str) -> LayerRun:
        state = self._states.get(layer)
        if state != before:
            raise FailedPrecondition(
                f"layer {layer} is {state or 'not run yet'}, and has to be "
                f"{before} to be {after}")
        self._states[layer] = after
        return self._runs[layer]


class ManualController:
    """Moves layers at the caller's request, each as of its last run. Layers
    without a request stay.

    Each call puts copies, or waits for them, on streams; no call waits itself.
    FailedPrecondition, a RuntimeError: calls out of order, or no such layer.
    """

    def __init__(self, manual: _Manual) -> None:
        self._manual = manual

    def start_offload_layer(self, layer_id: int) -> None:
        """Begins the copy of the layer's saved tensors to the host."""
        self._manual.start(layer_id)

    def release_activation_forward_gpu_memory(self, layer_id: int) -> None:
        """Frees its device memory for work after that copy."""
        self._manual.release(layer_id)

    def start_reload_layer(self, layer_id: int) -> None:
        """Begins the copy back."""
        self._manual.reload(layer_id)


class _Context(contextlib.ContextDecorator):
    """Assigns the tensors that are saved in it to the next layer."""

    def __init__(self, engine: Engine, synchronizer: _Synchronizer) -> None:
        self._engine = engine
        self._synchronizer = synchronizer
        self._saving: Saving | None = None
        self._run: LayerRun | None = None
        self._was_run = False
        self._theirs: Any = None

    def __enter__(self) -> _Context:
        if self._saving is not None:
            raise FailedPrecondition("the offloading context is entered "
                                     "already, by a layer around this one")
        run = self._synchronizer.begin()
        # Within keep() it counts as a layer, but nothing of it moves.
        saving = Saving(self._engine, lambda: None if is_keeping() else run)
        saving.enter()
        self._saving, self._run, self._was_run = saving, run, True
        self._theirs = _tell_te(self)
        _thread.entered += 1
        return self

    def __exit__(self, *error: object) -> None:
        saving, self._saving = self._saving, None
        run, self._run = self._run, None
        assert saving is not None and run is not None
        _thread.entered -= 1
        _tell_te(self._theirs)
        saving.leave()
        self._synchronizer.end(run)

    def synchronize(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor: backward follows the saved tensors, not a hook in
        this one. Refuses where TransformerEngine refuses."""
        if not tensor.requires_grad:
            raise InvalidArgument(
                f"sync_function was given a tensor {list(tensor.shape)} that "
                "requires no gradient; it is for a layer's output")
        if self._saving is not None or not self._was_run:
            raise FailedPrecondition("sync_function is called after the "
                                     "offloading context, not "
                                     + ("within it" if self._was_run else
                                        "before it was entered"))
        return tensor


def _tell_te(synchronizer: Any) -> Any:
    """TransformerEngine's modules mark tensors that are not worth moving (their
    quantised weights) if they find a synchronizer; sets it, and returns the one
    before."""
    theirs: Any = sys.modules.get("transformer_engine.pytorch.cpu_offload")
    if theirs is None:
        return None
    before = theirs.OFFLOAD_SYNCHRONIZER
    theirs.OFFLOAD_SYNCHRONIZER = synchronizer
    return before
