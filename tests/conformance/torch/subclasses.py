"""Tensor subclasses for tests: hand-written ones, and torchao's."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import torch
from torch import nn
from torch.utils import _pytree as pytree

WIDTH = 128


class Packed(torch.Tensor):
    """Integers that stand for `bytes - 128`; a wrapper of one tensor."""

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Packed:
        return torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), dtype=torch.float32,
            device=raw.device)

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Packed({tuple(self.shape)})"  # torch 2.11 asks compiled ones.

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["raw"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], context: Any,
                             size: Any, stride: Any) -> Packed:
        return cls(inner["raw"])

    def dequantize(self) -> torch.Tensor:
        return self.raw.float() - 128

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].raw)
        args, kwargs = pytree.tree_map_only(
            Packed, lambda one: one.dequantize(), (args, kwargs or {}))
        return func(*args, **kwargs)


class Scaled(torch.Tensor):
    """`data * scale + shift`, rows apart: a subclass whose `data` is one too,
    and whose context (`shift`) is no tensor."""

    operators: set[Any] = set()  # That any was asked for.

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor,
                shift: float) -> Scaled:
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, strides=data.stride(), dtype=torch.float32,
            device=scale.device)

    def __init__(self, data: torch.Tensor, scale: torch.Tensor,
                 shift: float) -> None:
        self.inner = data
        self.scale = scale
        self.shift = shift

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Scaled({self.inner!r})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["inner", "scale"], self.shift

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], context: Any,
                             size: Any, stride: Any) -> Scaled:
        return cls(inner["inner"], inner["scale"], context)

    def dequantize(self) -> torch.Tensor:
        return self.inner.dequantize() * self.scale[:, None] + self.shift

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        cls.operators.add(func)
        if func is torch.ops.aten.detach.default:
            one = args[0]
            return cls(one.inner, one.scale, one.shift)
        args, kwargs = pytree.tree_map_only(
            Scaled, lambda one: one.dequantize(), (args, kwargs or {}))
        return func(*args, **kwargs)


class Opaque(torch.Tensor):
    """A wrapper that does not say what it is made of."""

    @staticmethod
    def __new__(cls, hidden: torch.Tensor) -> Opaque:
        return torch.Tensor._make_wrapper_subclass(
            cls, hidden.shape, dtype=hidden.dtype, device=hidden.device)

    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].hidden)
        args, kwargs = pytree.tree_map_only(
            Opaque, lambda one: one.hidden, (args, kwargs or {}))
        return func(*args, **kwargs)


def nested(module: nn.Linear) -> None:
    """Gives a linear a weight that is a Scaled of a Packed."""
    device = module.weight.device
    raw = torch.randint(0, 256, module.weight.shape, dtype=torch.uint8,
                        device=device)
    scale = torch.rand(len(raw), device=device) / 1000
    module.weight = nn.Parameter(
        Scaled(Packed(raw), scale, 0.001), requires_grad=False)


def inner_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors of a subclass, however deep."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from inner_tensors(getattr(tensor, name))


class Layer(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, dtype=dtype)
        self.down = nn.Linear(2 * WIDTH, WIDTH, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    """Blocks of two linears, whose weights a test quantises."""

    def __init__(self, dtype: torch.dtype = torch.float32,
                 blocks: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(dtype) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Bytes(nn.Module):
    """In the place of a linear that the device has no kernel for: its output
    is what its weight is made of."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight

    def forward(self) -> list[torch.Tensor]:
        return [one.clone() for one in inner_tensors(self.weight)]


class ManyBytes(nn.Module):
    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Bytes(one) for one in linears)

    def forward(self) -> list[list[torch.Tensor]]:
        return [layer() for layer in self.layers]


def _torchao(name: str, prototype: bool = False,
             **options: Any) -> Callable[[nn.Module], None]:
    def quantise(module: nn.Module) -> None:
        import torchao.quantization as quantization
        where: Any = quantization
        if prototype:
            import torchao.prototype.mx_formats as where
        quantization.quantize_(module, getattr(where, name)(**options))
    return quantise


def _rowwise(module: nn.Module) -> None:
    from torchao.quantization.granularity import PerRow
    _torchao("Float8DynamicActivationFloat8WeightConfig",
             granularity=PerRow())(module)


def _intx_groups(module: nn.Module) -> None:
    from torchao.quantization.granularity import PerGroup
    _torchao("IntxWeightOnlyConfig", weight_dtype=torch.int3,
             granularity=PerGroup(32))(module)


def _by_hand(name: str, make: Callable[[Any, nn.Linear], torch.Tensor]
             ) -> Callable[[nn.Module], None]:
    """torchao's own tensor, without the quantiser that needs a GPU."""
    def quantise(module: nn.Module) -> None:
        import torchao.quantization as quantization
        kind = getattr(quantization, name)
        for one in module.modules():
            if isinstance(one, nn.Linear):
                one.weight = nn.Parameter(make(kind, one),
                                          requires_grad=False)
    return quantise


def _int4(kind: Any, linear: nn.Linear) -> torch.Tensor:
    rows, columns = linear.weight.shape
    device = linear.weight.device
    return kind(
        torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8).to(
            torch.int8).to(device),
        torch.randn(columns // 32, rows, dtype=torch.bfloat16, device=device),
        torch.randn(columns // 32, rows, dtype=torch.bfloat16, device=device),
        [1, 32], torch.Size((rows, columns)))


def _int4_tiles(kind: Any, linear: nn.Linear) -> torch.Tensor:
    rows, columns = linear.weight.shape
    device = linear.weight.device
    return kind(
        torch.randint(0, 1 << 30, (rows // 8, columns // 128, 32, 4),
                      dtype=torch.int32, device=device),
        torch.randn(columns // 32, rows, 2, dtype=torch.bfloat16,
                    device=device),
        [1, 32], torch.Size((rows, columns)))


# What turns a module's linears into quantised ones, by name.
TORCHAO = {
    "float8 e4m3": _torchao("Float8WeightOnlyConfig"),
    "float8 e5m2": _torchao("Float8WeightOnlyConfig",
                            weight_dtype=torch.float8_e5m2),
    "float8 dynamic": _torchao("Float8DynamicActivationFloat8WeightConfig"),
    "float8 rows": _rowwise,
    "float8 int4": _torchao("Float8DynamicActivationInt4WeightConfig"),
    "int8": _torchao("Int8WeightOnlyConfig"),
    "int8 dynamic": _torchao("Int8DynamicActivationInt8WeightConfig"),
    "int8 intx": _torchao("Int8DynamicActivationIntxWeightConfig"),
    "intx int4": _torchao("IntxWeightOnlyConfig", weight_dtype=torch.int4),
    "intx int3 groups": _intx_groups,
    "int4 plain": _torchao("Int4WeightOnlyConfig", group_size=32,
                           int4_packing_format="plain"),
    "int4 int32": _torchao("Int4WeightOnlyConfig", group_size=32,
                           int4_packing_format="plain_int32"),
    "int4 tiles": _torchao("Int4WeightOnlyConfig", group_size=32,
                           int4_packing_format="tile_packed_to_4d"),
    "int4 preshuffled": _torchao("Int4WeightOnlyConfig", group_size=128,
                                 int4_packing_format="preshuffled"),
    "int4 plain by hand": _by_hand("Int4Tensor", _int4),
    "int4 tiles by hand": _by_hand("Int4TilePackedTo4dTensor", _int4_tiles),
    "mx fp8": _torchao("MXDynamicActivationMXWeightConfig", True),
    "mx fp4": _torchao("MXDynamicActivationMXWeightConfig", True,
                       activation_dtype=getattr(torch, "float4_e2m1fn_x2", 0),
                       weight_dtype=getattr(torch, "float4_e2m1fn_x2", 0)),
    "nvfp4": _torchao("NVFP4WeightOnlyConfig", True),
    "nvfp4 dynamic": _torchao("NVFP4DynamicActivationNVFP4WeightConfig",
                              True),
}
