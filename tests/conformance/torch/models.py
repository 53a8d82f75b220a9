"""Small modules, each with one thing that offloaders get wrong, and their
inputs; what they compute is compared bit for bit."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import torch
from torch import nn

WIDTH = 64


class Block(nn.Module):
    """A norm and two linears; 132 KiB at the default width."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Words(nn.Module):
    """Pieces that are read in place, of 1,024 rows, before what comes and goes."""

    WIDTH = 512

    def __init__(self, rows: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(rows, self.WIDTH)
        self.layers = nn.ModuleList(nn.Linear(self.WIDTH, self.WIDTH)
                                    for _ in range(layers))

    @classmethod
    def on(cls, device: torch.device, rows: int = 2048,
           layers: int = 3) -> Words:
        torch.manual_seed(0)
        return cls(rows, layers).to(device).requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x

    def read(self, device: torch.device) -> torch.Tensor:
        """A pass over some rows of each piece."""
        with torch.no_grad():
            out: torch.Tensor = self(torch.arange(
                0, self.embed.num_embeddings, 256, device=device))
        return out


class Transformer(nn.Module):
    """The head is tied to the embedding."""

    def __init__(self, blocks: int = 6, width: int = WIDTH) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Stack(nn.Module):
    """Nothing but blocks, which are called one after another; no group of it
    is pinned."""

    def __init__(self, blocks: int = 6, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class TwiceInAPass(nn.Module):
    """A block that comes again later, and one twice in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at in (0, 1, 0, 2, 2, 3, 0):
            x = self.layers[at](x)
        return x


class Sometimes(nn.Module):
    """Blocks that a call may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.last = Block()

    def forward(self, x: torch.Tensor, leave_out: tuple[int, ...] = ()
                ) -> torch.Tensor:
        x = self.first(x)
        for at, layer in enumerate(self.layers):
            if at not in leave_out:
                x = layer(x)
        return self.last(x)


class OtherOrder(nn.Module):
    """Called in another order than constructed."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(5))
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for at in (3, 1, 4, 0, 2):
            x = self.layers[at](x)
        return self.last(x)


class ImageTransformer(nn.Module):
    """Parameters of its own beside children, and nn.MultiheadAttention, which
    uses its child's weights without calling it."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
            self.block = Block()
            self.scale = nn.Parameter(torch.randn(WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(x)
            y, _ = self.attention(y, y, y, need_weights=False)
            return self.block(x + y * self.scale)

    def __init__(self) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, 17, WIDTH))
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        x = x + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


class Nested(nn.Module):
    """Lists, dictionaries and sequences in one another, and lists and
    dictionaries of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.randn(WIDTH) for _ in range(2))
        self.shifts = nn.ParameterDict({"a": torch.randn(WIDTH),
                                        "b": torch.randn(WIDTH)})
        self.stages = nn.ModuleList(
            nn.ModuleDict({
                "blocks": nn.ModuleList(
                    nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), Block())
                    for _ in range(2)),
                "out": nn.Linear(WIDTH, WIDTH)})
            for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at, stage in enumerate(self.stages):
            for block in stage["blocks"]:
                x = block(x) * self.scales[at]
            x = stage["out"](x) + self.shifts["ab"[at]]
        return x


class Shared(nn.Module):
    """ALBERT's way: one block under several names, called again and again."""

    def __init__(self) -> None:
        super().__init__()
        one, other = Block(), Block()
        self.layers = nn.ModuleList([one, one, other, one, other])
        self.again = one
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.out(self.again(x))


class ManyInputs(nn.Module):
    """Several inputs by position and by name; its output is a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Bilinear(WIDTH, WIDTH, WIDTH)
                                    for _ in range(2))
        self.gates = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor, *, scale: float = 1.0,
                extra: dict[str, Any] | None = None) -> dict[str, Any]:
        kept = []
        for layer, gate in zip(self.layers, self.gates):
            x = layer(x, y) * scale
            if extra is not None:
                x = x + gate(extra["gate"][0])
            kept.append(x)
        return {"out": x, "kept": tuple(kept), "scale": scale}


class Cached(nn.Module):
    """Writes to a cache of the caller's, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor],
                at: int = 0) -> torch.Tensor:
        for layer, kept in zip(self.layers, cache):
            kept[:, at] = layer(x)
            x = x + kept[:, :at + 1].sum(1)
        return x


class Scale(nn.Module):
    """Parameters and no children."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class OnlyParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ModuleList(Scale() for _ in range(5))
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = scale(x) + self.bias
        return x


@dataclasses.dataclass(frozen=True)
class Case:
    """A module and one pass of it; fresh inputs with each call."""

    make: Callable[[], nn.Module]
    run: Callable[[nn.Module, torch.device, int], Any]
    leaves: tuple[str, ...] = ()  # Modules for groups={...}.


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _x(model: nn.Module, device: torch.device, turn: int) -> Any:
    return model(numbers(2, 5, WIDTH, seed=turn).to(device))


def _ids(model: nn.Module, device: torch.device, turn: int) -> Any:
    return model((torch.arange(14).reshape(2, 7) * (turn + 3) % 50).to(device))


def _sometimes(model: nn.Module, device: torch.device, turn: int) -> Any:
    return model(numbers(2, 5, WIDTH).to(device),
                 leave_out=[(1, 3), (), (0, 1, 2, 3), ()][turn % 4])


def _many(model: nn.Module, device: torch.device, turn: int) -> Any:
    x, y, gate = numbers(3, 4, WIDTH, seed=turn).to(device)
    return model(x, y=y, scale=0.5,
                 extra=None if turn % 2 else {"gate": [gate, "text"]})


def _cached(model: nn.Module, device: torch.device, turn: int) -> Any:
    cache = [torch.zeros(2, 3, WIDTH, device=device) for _ in range(3)]
    before = [one.data_ptr() for one in cache]
    outs = [model(numbers(2, WIDTH, seed=at).to(device), cache, at=at)
            for at in range(3)]
    assert [one.data_ptr() for one in cache] == before
    return outs, cache


CASES = {
    "transformer": Case(Transformer, _ids),
    "stack": Case(Stack, _x),
    "twice": Case(TwiceInAPass, _x),
    "sometimes": Case(Sometimes, _sometimes),
    "other order": Case(OtherOrder, _x),
    "image": Case(ImageTransformer, lambda model, device, turn: model(
        numbers(2, 3, 16, 16, seed=turn).to(device))),
    "nested": Case(Nested, _x),
    "shared": Case(Shared, _x),
    "many inputs": Case(ManyInputs, _many),
    "cached": Case(Cached, _cached),
    "only parameters": Case(OnlyParameters, _x),
}
