"""Grouped linears and a grouped MLP in the shape of TransformerEngine's: one
weight a group, rows of the groups one after another (`m_splits`), a fused
activation that is computed again in backward, and fp8-like saved inputs."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree


class Eights(torch.Tensor):
    """Rows in eight bits with a scale each, as a wrapper of both."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, strides=data.stride(), dtype=torch.float32,
            device=data.device)

    def __init__(self, data: torch.Tensor, scale: torch.Tensor) -> None:
        self.data8 = data
        self.scale = scale

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Eights({tuple(self.shape)})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["data8", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], context: Any,
                             size: Any, stride: Any) -> Any:
        return cls(inner["data8"], inner["scale"])

    @classmethod
    def of(cls, rows: torch.Tensor) -> Any:
        scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
        return cls((rows / scale).round().to(torch.int8), scale)

    def wide(self) -> torch.Tensor:
        return self.data8.float() * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].data8, args[0].scale)
        args, kwargs = pytree.tree_map_only(
            cls, lambda one: one.wide(), (args, kwargs or {}))
        return func(*args, **kwargs)


class _Grouped(torch.autograd.Function):
    """Each group's rows by its weight. The input is saved once, as a whole."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, splits: Sequence[int], eight: bool,
                *weights: torch.Tensor) -> torch.Tensor:
        saved = Eights.of(x) if eight else x
        ctx.save_for_backward(saved, *weights)
        ctx.splits = splits
        return torch.cat([rows @ weight.t() for rows, weight in
                          zip(x.split(list(splits)), weights)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        saved, *weights = ctx.saved_tensors
        x = saved.wide() if isinstance(saved, Eights) else saved
        rows = gradients[0].split(list(ctx.splits))
        back = torch.cat([one @ weight for one, weight in zip(rows, weights)])
        return (back, None, None,
                *(one.t() @ group for one, group in
                  zip(rows, x.split(list(ctx.splits)))))


class _Activated(torch.autograd.Function):
    """silu(gate) * up, of which neither is saved but the input of both."""

    @staticmethod
    def forward(ctx: Any, both: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(both)
        gate, up = both.chunk(2, -1)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        both, = ctx.saved_tensors
        with torch.enable_grad():
            again = both.detach().requires_grad_()
            gate, up = again.chunk(2, -1)
            found, = torch.autograd.grad(F.silu(gate) * up, again,
                                         gradients[0])
        return found


class GroupedLinear(nn.Module):
    def __init__(self, groups: int, width: int, out: int,
                 eight: bool = False) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(out, width) / width ** 0.5)
            for _ in range(groups))
        self.eight = eight

    def forward(self, x: torch.Tensor, splits: Sequence[int]) -> torch.Tensor:
        return _Grouped.apply(x, splits, self.eight, *self.weights)


class GroupedMlp(nn.Module):
    """Routed rows through two grouped linears, and an activation between."""

    def __init__(self, groups: int = 4, width: int = 32,
                 eight: bool = False) -> None:
        super().__init__()
        self.up = GroupedLinear(groups, width, 4 * width, eight)
        self.down = GroupedLinear(groups, 2 * width, width, eight)

    def forward(self, x: torch.Tensor, splits: Sequence[int]) -> torch.Tensor:
        return x + self.down(_Activated.apply(self.up(x, splits)), splits)


class GroupedMlps(nn.Module):
    def __init__(self, layers: int = 6, eight: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GroupedMlp(eight=eight)
                                    for _ in range(layers))

    def forward(self, x: torch.Tensor, splits: Sequence[int]) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, splits)
        return x
