"""hoist.offload_activations."""

from __future__ import annotations

from typing import Iterable, Union

import torch
from torch import nn

from .. import _session
from .._arena import Arena
from .._errors import InvalidArgument
from ..nn._api.attach import unwrap
from ..nn._api.options import Where
from ..nn._plan.budget import Amount, find_device, to_bytes
from ..nn._store.link import default_session
from ..nn._tree.casting import Patterns
from ..nn._tree.grouping import is_called
from . import _finding
from ._copying import copier_of
from ._engine import Engine
from ._memory import HostMemory
from ._offload import Offload
from ._parking import Parking

Layers = Union[nn.Module, Iterable[nn.Module], None]

KEEP_LAST = 2  # Layers that run during the others' copies.
MIN_BYTES = 256 << 10


def offload_activations(
        model_or_layers: Layers = None, budget: Amount = None, *,
        keep_last: int = KEEP_LAST, min_bytes: int = MIN_BYTES,
        skip: Patterns = (), arena: Amount = None, device: Where = None,
        session: _session.Session | None = None,
        deadline: float = 60.0) -> Offload:
    """Moves tensors that layers save for backward to the host, and back before
    their backward; results are the same, bit for bit.

    A layer's saved tensors are copied out while the next layers run, and back
    while the layers after it go backward. On the device are those of the last
    layers and of two more, at most. The host memory is an arena that hoistd
    leases to this worker.

        offload = hoist.offload_activations(model, budget="8GiB")
        for batch in batches:
            model(batch).loss.backward()
            ...
        offload.close()              # or `with hoist.offload_activations(...)`

    These stay: parameters and buffers, tensors of other devices, those under
    hoist.keep() and hoist.mark_keep. torch.utils.checkpoint has its inputs
    offloaded, and computes the rest again.

    Threads: as Offload has it.

    model_or_layers: a model, whose blocks (hoist.attach's groups) are the
        layers; or the layers in execution order; or None, with layers marked by
        `with offload.layer():`.
    budget: device memory for saved activations: bytes, "8GiB", a fraction of
        a pass's saved bytes, or None. As many of the last layers stay as fit;
        the first pass shows it. If several passes are under way (microbatches),
        they share it.
    keep_last: layers at the end of a pass that stay, at least.
    min_bytes: smaller tensors stay.
    skip: modules whose saved tensors stay: patterns of names, classes or
        modules; one, or several.
    arena: bytes of host memory ("64GiB"), leased at once. None: as much as the
        first passes need. If it is too small, the last layers that would be
        offloaded stay on the device, or, beyond the budget,
        ResourceExhausted names the least that would be enough.
    device: torch's name or hoistd's index; None: as hoist.attach has it. Its
        tensors are the ones that move. hoistd's emulated device is the CPU.
    session: None: one for the whole process, as hoist.connect() finds it.
    deadline: seconds to wait for the host memory of `arena`. Leases within a
        step do not wait.

    If hoistd ends, leased memory stays, and a step goes on.

    Raises InvalidArgument (no blocks, no such module, no amount),
    ResourceExhausted (the arena does not fit the host; names one that would),
    and Unavailable (no hoistd).
    """
    _check(budget, keep_last, min_bytes)
    root, layers = _layers_of(model_or_layers)
    roots = [root] if root is not None else layers
    skipped = _finding.skipped(roots, skip)
    engine = make_engine(device, session, arena, min_bytes, deadline)
    return Offload(engine, root, layers, skipped, budget, keep_last)


def _check(budget: Amount, keep_last: int, min_bytes: int) -> None:
    if budget is not None:
        to_bytes(budget, 1)
    for name, given in (("keep_last", keep_last), ("min_bytes", min_bytes)):
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise InvalidArgument(f"{name}={given!r}: an int, 0 or more")


def _layers_of(given: Layers) -> tuple[nn.Module | None, list[nn.Module]]:
    """The root, if there is one, and the layers."""
    if given is None:
        return None, []
    if isinstance(given, nn.Module) and is_called(given):
        root = unwrap(given)
        return root, _finding.layers_of(root)
    layers = list(given.children() if isinstance(given, nn.Module) else given)
    for layer in layers:
        if not isinstance(layer, nn.Module):
            raise InvalidArgument(f"layers hold {layer!r}, which is no module")
    if len(set(layers)) < max(1, len(layers)):
        raise InvalidArgument("no layers are given, or one twice; a layer that "
                              "runs twice is given once")
    return None, [unwrap(layer) for layer in layers]


def make_engine(device: Where, session: _session.Session | None, arena: Amount,
                min_bytes: int, deadline: float,
                stream: torch.cuda.Stream | None = None) -> Engine:
    """Arguments as of offload_activations; stream: as CudaCopier's."""
    session = session or default_session()
    found, torch_device = find_device(session, device)
    fixed = None if arena is None else _host_bytes(arena)

    def lease(nbytes: int) -> Arena:
        return Arena(session, nbytes, device=found.index,
                     deadline=0.0 if fixed is None else deadline)

    copier = copier_of(session, found.index, torch_device, stream)
    return Engine(copier, HostMemory(lease, copier, fixed), Parking(session),
                  min_bytes)


def _host_bytes(arena: Amount) -> int:
    if isinstance(arena, float):
        raise InvalidArgument(f"arena={arena} is a fraction, of nothing; write "
                              "bytes as an int")
    return to_bytes(arena, 1, "arena")
