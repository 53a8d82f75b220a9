"""Tensors that autograd saves for backward: one rule for all interested parts.

torch calls the innermost pair of saved-tensor hooks, and no other. So each part
of this package pushes its pair here, and each saved tensor is offered in this
order:

    claimers     for weights whose memory will hold others by backward
                 (hoist.nn): they return a function that brings the bytes back;
    a checkpoint around the pair: it drops the tensor and computes it again, so
                 no other place is needed;
    the pair     that was pushed, unless it passes;
    its outer    the pair that was innermost when it was pushed: torch's
                 save_on_cpu, a third party's, or one of these;
    nobody       the tensor is kept as it is.

So pairs nest in any order, and each behaves as it does alone. Under hooks torch
does not check whether a saved tensor was modified; this module checks tensors
that it keeps, or that a pair of this package took. A checkpoint compares the
tensors that its region saves with those of the recomputation, so it gets a
stand-in for a claimed weight.

Threads: any; a thread's pairs are its own, claimers are global.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from typing import Any, Callable, Iterator, Optional, Protocol

import torch
from torch.utils._pytree import tree_map_only

# Returns the tensor's bytes again, on the current stream; None: not claimed.
Claim = Callable[[torch.Tensor], Optional[Callable[[], torch.Tensor]]]

# Returned by a Packer that leaves a tensor to the pair around it.
PASS = object()


class Packer(Protocol):
    """Decides where saved tensors are kept.

    Threads: autograd's threads call `unpack`, several at once.
    """

    def pack(self, tensor: torch.Tensor) -> Any:
        """The replacement to keep, which must not refer to the tensor; PASS
        leaves it to the pair around this one. Gradients are off."""

    def unpack(self, packed: Any) -> torch.Tensor:
        """The same bytes, shape, type and strides, for later work on the
        current stream; more than once if a graph is retained."""


class Pair:
    """A pair of hooks on this thread's stack of hooks, made by `push`."""

    __slots__ = ("_packer", "_outer", "_checkpoint")

    def __init__(self, packer: Packer | None, outer: Any) -> None:
        self._packer = packer
        self._outer = outer
        # The innermost one around it, with only Pairs in between.
        self._checkpoint: Any = None
        if outer is not None:
            if isinstance(outer[0], Pair):
                self._checkpoint = outer[0]._checkpoint
            elif outer[0].__module__ == "torch.utils.checkpoint":
                self._checkpoint = outer

    def __call__(self, tensor: torch.Tensor) -> Any:
        """torch's pack hook."""
        with torch.no_grad():
            for claim in _claimers:
                bring = claim(tensor)
                if bring is not None:
                    if self._checkpoint is not None:
                        self._checkpoint[0](_StandIn(tensor, bring))
                    return _Claimed(bring)
        if self._checkpoint is not None:
            pack, unpack = self._checkpoint
            return _Delegated(unpack, pack(tensor))
        return self._offer(tensor)

    def remove(self) -> None:
        """Removes the pair from any depth of the stack: later pairs may still
        be on it. Idempotent; no effect from another thread."""
        later = []
        while (top := _top()) is not None:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            if top[0] is self:
                break
            later.append(top)
        for pack, unpack in reversed(later):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)

    def _offer(self, tensor: torch.Tensor) -> Any:
        if self._packer is not None:
            with torch.no_grad():
                version = _Version(tensor)
                packed = self._packer.pack(tensor)
            if packed is not PASS:
                return _Packed(self._packer, packed, version)
        if self._outer is None:
            return _Kept(tensor)
        pack, unpack = self._outer
        if isinstance(pack, Pair):
            return pack._offer(tensor)
        return _Delegated(unpack, pack(tensor))


def push(packer: Packer | None = None) -> Pair | None:
    """Routes this thread's saved tensors through here, until `remove`.

    packer: None: for claimers only. Returns None, and pushes nothing, if the
    caller or a functorch transform has disabled hooks.
    """
    autograd: Any = torch._C._autograd
    if not autograd._saved_tensors_hooks_is_enabled():
        return None
    pair = Pair(packer, _top())
    autograd._push_saved_tensors_default_hooks(pair, _unpack)
    return pair


@contextlib.contextmanager
def pushed(packer: Packer | None = None) -> Iterator[None]:
    """`push` for a block."""
    pair = push(packer)
    try:
        yield
    finally:
        if pair is not None:
            pair.remove()


_claimers: tuple[Claim, ...] = ()


def add_claimer(claim: Claim) -> None:
    """From now on each pushed pair asks it first, for each tensor, with
    gradients off. It is kept until `remove_claimer`."""
    global _claimers
    _claimers = (*_claimers, claim)


def remove_claimer(claim: Claim) -> None:
    global _claimers
    _claimers = tuple(one for one in _claimers if one != claim)


def _top() -> Any:
    """This thread's innermost pair."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _unpack(packed: Any) -> torch.Tensor:
    found: torch.Tensor = packed.unpack()
    return found


class _StandIn(torch.Tensor):
    """A checkpoint's replacement for a claimed weight: only the facts that the
    checkpoint compares. The checkpoint may return it for a weight that was not
    claimed in its first run, being resident; each use then brings the bytes.
    """

    _bring: Callable[[], torch.Tensor]

    @staticmethod
    def __new__(cls, tensor: torch.Tensor,
                bring: Callable[[], torch.Tensor]) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls, tensor.shape, tensor.stride(), dtype=tensor.dtype,
            device=tensor.device)
        made._bring = bring
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({list(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (),
            kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(cls, lambda one: one._bring(),
                                     (args, kwargs or {}))
        return func(*args, **kwargs)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether bytes and strides are all of the tensor's state."""
    return (type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.layout is torch.strided and not tensor.is_quantized)


# A graph's replacements for a tensor.


class _Claimed:
    __slots__ = ("_bring",)

    def __init__(self, bring: Callable[[], torch.Tensor]) -> None:
        self._bring = bring

    def unpack(self) -> torch.Tensor:
        return self._bring()


class _Packed:
    __slots__ = ("_packer", "_packed", "_version")

    def __init__(self, packer: Packer, packed: Any, version: _Version) -> None:
        self._packer = packer
        self._packed = packed
        self._version = version

    def unpack(self) -> torch.Tensor:
        self._version.check()
        return self._version.shared_by(self._packer.unpack(self._packed))


class _Delegated:
    __slots__ = ("_unpack", "_packed")

    def __init__(self, unpack: Callable[[Any], torch.Tensor],
                 packed: Any) -> None:
        self._unpack = unpack
        self._packed = packed

    def unpack(self) -> torch.Tensor:
        return self._unpack(self._packed)


class _Kept:
    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._version = _Version(tensor, alias=False)
        # Detached from the graph, which would otherwise form a cycle with it.
        self._tensor = tensor.detach() if tensor.requires_grad else tensor
        self._version.of = self._tensor

    def unpack(self) -> torch.Tensor:
        self._version.check()
        return self._tensor


class _Version:
    """The version of a tensor when it was saved.

    Tensors can share a version counter without sharing memory: `of` is an alias
    without memory, so the check alone keeps no bytes. A tensor returned to
    backward shares the counter too, as it does without hooks: if a function
    writes to it, others that saved the tensor detect that.
    """

    __slots__ = ("of", "_saved", "_what")

    def __init__(self, tensor: torch.Tensor, alias: bool = True) -> None:
        """alias: False: the caller sets `of`."""
        self._saved = tensor._version
        node = tensor.grad_fn
        plain = is_plain(tensor)
        self._what = (tensor.type() if plain and type(tensor) is torch.Tensor
                      else type(tensor).__name__, list(tensor.shape),
                      None if node is None else node.name(), tensor.output_nr)
        self.of: Any = None
        if not alias:
            return
        if plain:
            self.of = tensor.detach()
            self.of.data = torch.empty(0, dtype=tensor.dtype,
                                       device=tensor.device)
        else:  # A wrapper, or sparse: no alias without memory is possible.
            self.of = weakref.ref(tensor)

    def shared_by(self, back: torch.Tensor) -> torch.Tensor:
        """The same bytes; a write to them advances the version."""
        if not isinstance(self.of, torch.Tensor) or not is_plain(back):
            return back
        made: torch.Tensor = self.of.detach()
        made.data = back
        return made

    def check(self) -> None:
        """RuntimeError, as torch's: the tensor was modified since."""
        of = self.of() if isinstance(self.of, weakref.ref) else self.of
        if of is None or of._version == self._saved:
            return
        kind, shape, node, output = self._what
        of_node = "" if node is None else (
            f", which is output {output} of "
            f"{re.sub(r'Backward[0-9]*$', '', node)},")
        raise RuntimeError(
            "one of the variables needed for gradient computation has been "
            f"modified by an inplace operation: [{kind} {shape}]{of_node} is "
            f"at version {of._version}; expected version {self._saved} "
            "instead. Hint: enable anomaly detection to find the operation "
            "that failed to compute its gradient, with "
            "torch.autograd.set_detect_anomaly(True, check_nan=False).")
