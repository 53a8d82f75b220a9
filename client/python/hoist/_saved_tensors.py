"""What autograd keeps for a backward: one rule for all that have a say in it.

torch calls the innermost pair of saved-tensor hooks, and no other. So whatever
of this package has a say pushes its pair here, and a tensor that is saved is
offered in this order:

    claimers     of weights whose memory holds others by then (hoist.nn): they
                 name what brings the bytes again;
    a checkpoint that is around the pair: what is dropped, and computed again,
                 needs no other place;
    the pair     that was pushed, unless it passes;
    its outer    the pair that was innermost when it was pushed: torch's
                 save_on_cpu, anybody's, or one of these;
    nobody       the tensor is kept as it is.

So pairs nest in any order, and each does what it does alone. Where hooks stand
torch does not look whether a tensor was changed after it was saved; here it is
looked at of what is kept and of what a pair of this package has taken. A
checkpoint compares what its region saves with what it saves when it is run
again, so it has a stand-in for what is claimed.

Threads: any; a thread's pairs are its own, claimers are everybody's.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from typing import Any, Callable, Iterator, Optional, Protocol

import torch
from torch.utils._pytree import tree_map_only

# What gives the tensor's bytes again, on the current stream; None: not claimed.
Claim = Callable[[torch.Tensor], Optional[Callable[[], torch.Tensor]]]

# Given back by a Packer that leaves a tensor to the pair around it.
PASS = object()


class Packer(Protocol):
    """One who has a say in what becomes of tensors that are saved.

    Threads: `unpack` is called by the engine's, several at once.
    """

    def pack(self, tensor: torch.Tensor) -> Any:
        """What is kept in the tensor's stead, which must not refer to it; PASS:
        it is left to the pair around this one. Gradients are off."""

    def unpack(self, packed: Any) -> torch.Tensor:
        """Its bytes, shape, type and strides again, for what is put on the
        current stream; more than once, where a graph is retained."""


class Pair:
    """A pair of hooks on this thread's stack of them, which `push` made."""

    __slots__ = ("_packer", "_outer", "_checkpoint")

    def __init__(self, packer: Packer | None, outer: Any) -> None:
        self._packer = packer
        self._outer = outer
        # The innermost around it, with nobody's in between.
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
        """Wherever on the stack it is by now: what was pushed after it may not
        have been taken off. Again, or from another thread: nothing happens."""
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
    """From here on this thread's saved tensors come here, until `remove`.

    packer: None: for claimers alone. None is returned where the caller, or a
    transform of functorch's, has forbidden hooks: nothing is pushed.
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
    """From now on whatever pair is pushed asks it first, of each tensor, with
    gradients off. It is kept until `remove_claimer`."""
    global _claimers
    _claimers = (*_claimers, claim)


def remove_claimer(claim: Claim) -> None:
    global _claimers
    _claimers = tuple(one for one in _claimers if one != claim)


def _top() -> Any:
    """The innermost pair of this thread's."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _unpack(packed: Any) -> torch.Tensor:
    found: torch.Tensor = packed.unpack()
    return found


class _StandIn(torch.Tensor):
    """What a checkpoint has of a weight that is claimed: nothing but what it
    compares. A checkpoint hands it out where the weight was not claimed in its
    first run, as it stayed where it was; so whatever uses it brings the bytes.
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
    """Its bytes and strides are all that it is."""
    return (type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.layout is torch.strided and not tensor.is_quantized)


# What a graph has in the place of a tensor.


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
        # Of a graph, or the tensor and its graph would keep each other.
        self._tensor = tensor.detach() if tensor.requires_grad else tensor
        self._version.of = self._tensor

    def unpack(self) -> torch.Tensor:
        self._version.check()
        return self._tensor


class _Version:
    """Which version of a tensor was saved.

    What shares a tensor's version counter need not share its memory: `of` is an
    alias without any, so that nothing is kept for the check alone. And what a
    backward is given shares it, too, as without hooks: a function that writes
    to it there is found by whoever saved the tensor beside it.
    """

    __slots__ = ("of", "_saved", "_what")

    def __init__(self, tensor: torch.Tensor, alias: bool = True) -> None:
        """alias: else the caller says of what."""
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
        else:  # A wrapper, or sparse: there is no alias without its memory.
            self.of = weakref.ref(tensor)

    def shared_by(self, back: torch.Tensor) -> torch.Tensor:
        """The same bytes; who writes to them makes a new version."""
        if not isinstance(self.of, torch.Tensor) or not is_plain(back):
            return back
        made: torch.Tensor = self.of.detach()
        made.data = back
        return made

    def check(self) -> None:
        """RuntimeError, as torch raises it: it was changed since."""
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
