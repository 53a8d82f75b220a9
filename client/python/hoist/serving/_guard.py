"""Engines' writes to weights that they were given processed."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch.overrides import TorchFunctionMode

from .._errors import FailedPrecondition


class Guard(TorchFunctionMode):
    """For a `with` block in which an engine finishes a module over hoistd's
    memory, which is read-only. A copy of recomputed values onto equal bytes is
    dropped; if the bytes differ, the tensor gets memory of its own.
    FailedPrecondition: a write of another kind.
    """

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        """spans: hoistd's memory, [begin, end)."""
        super().__init__()
        self._spans = spans

    def __torch_function__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        writes = name == "__setitem__" or (
            name.endswith("_") and not name.endswith("__")
            and name not in ("requires_grad_", "detach_"))
        to = kwargs.get("out", args[0] if writes and args else None)
        if not self._is_shared(to):
            return func(*args, **kwargs)
        if name != "copy_":
            raise FailedPrecondition(
                f"the engine writes to hoistd's weights once they are loaded "
                f"({name}), which are read-only")
        source = args[1].to(to.dtype).expand(to.shape)
        if not torch.equal(_bytes(to), _bytes(source)):
            to.data = source.clone()
        return to

    def _is_shared(self, to: Any) -> bool:
        if not isinstance(to, torch.Tensor) or to.is_meta or not to.numel():
            return False
        at = to.data_ptr()
        return any(begin <= at < end for begin, end in self._spans)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """As bytes, NaNs can be equal."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
