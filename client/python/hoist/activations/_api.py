"""hoist.offload_activations."""

from __future__ import annotations

from typing import Iterable, Union

import torch
from torch import nn

from .. import _session
from .._arena import Arena
from .._errors import InvalidArgument
from ..nn._api import unwrap
from ..nn._budget import Amount, find_device, to_bytes
from ..nn._casting import Patterns
from ..nn._grouping import is_called
from ..nn._link import default_session
from ..nn._options import Where
from . import _finding
from ._copying import copier_of
from ._engine import Engine
from ._memory import ArenaLike, HostMemory
from ._offload import Offload
from ._parking import Parking

Layers = Union[nn.Module, Iterable[nn.Module], None]

KEEP_LAST = 2  # What the others' copies run beside.
MIN_BYTES = 256 << 10


def offload_activations(
        model_or_layers: Layers = None, budget: Amount = None, *,
        keep_last: int = KEEP_LAST, min_bytes: int = MIN_BYTES,
        skip: Patterns = (), arena: Amount = None, device: Where = None,
        session: _session.Session | None = None,
        deadline: float = 60.0) -> Offload:
    """From now on what layers save for backward goes to the host, and is back
    before their backward; results are the same, bit for bit.

    A layer's saved tensors are copied out while the next layers run, and back
    while the layers after it go backward. On the device are those of the last
    layers and of two more, at most. The host memory is an arena that hoistd
    leases to this worker.

        offload = hoist.offload_activations(model, budget="8GiB")
        for batch in batches:
            model(batch).loss.backward()
            ...
        offload.close()              # or `with hoist.offload_activations(...)`

    What stays where it is: parameters and buffers, tensors of other devices,
    what hoist.keep() and hoist.mark_keep say. Within torch.utils.checkpoint its
    inputs are offloaded, and the rest is computed again, as ever.

    Threads: as Offload has it.

    model_or_layers: a model, whose blocks are the layers (those that
        hoist.attach groups weights by), or the layers in the order that they
        run, or None: layers are what `with offload.layer():` says.
    budget: device memory for saved activations: bytes, "8GiB", a fraction of
        what a pass saves, or None. As many of the last layers stay as fit; the
        first pass shows it. If several passes are under way (microbatches),
        they share it.
    keep_last: layers at the end of a pass that stay, at least.
    min_bytes: smaller tensors stay.
    skip: modules whose saved tensors stay: patterns of names, classes or
        modules; one, or several.
    arena: bytes of host memory ("64GiB"), leased at once. None: what the first
        passes turn out to need. If it is too small the last layers that would be
        offloaded stay on the device, or, beyond the budget, ResourceExhausted
        names the least that would do.
    device: torch's name or hoistd's index; None: as hoist.attach has it. Its
        tensors are the ones that move. hoistd's emulated device is the CPU.
    session: None: one for the whole process, as hoist.connect() finds it.
    deadline: seconds to wait for the host memory that `arena` asks for. What is
        leased in a step is there, or is not.

    If hoistd ends, what is leased stays, and a step goes on.

    Raises InvalidArgument (no blocks, no such module, no amount),
    ResourceExhausted (the arena does not fit the host, and what would), and
    Unavailable (no hoistd).
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
    """As offload_activations has these; stream: as CudaCopier."""
    session = session or default_session()
    found, torch_device = find_device(session, device)
    fixed = None if arena is None else _host_bytes(arena)

    def lease(nbytes: int) -> ArenaLike:
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
