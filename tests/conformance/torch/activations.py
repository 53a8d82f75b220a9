"""Layers that save much for backward, training of them, and who looks at what
is on the device meanwhile."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from equal import same_bytes

WIDTH, TOKENS = 32, 16


class Block(nn.Module):
    """Attention written out, as fused kernels may sum in any order; views of one
    projection, a mask that all blocks share, and dropout."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS).tril() == 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)).masked_fill(self.mask, -1e9)
        x = x + self.out(scores.softmax(-1) @ v)
        hidden = F.dropout(F.gelu(self.up(self.norm(x))), 0.1, self.training)
        return x + self.down(hidden)


class Blocks(nn.Module):
    def __init__(self, blocks: int = 24,
                 make: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(make() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def batch(device: torch.device, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, TOKENS, WIDTH, generator=generator).to(device)


def train(module: nn.Module, device: torch.device, steps: int = 3,
          run: Callable[..., torch.Tensor] | None = None
          ) -> list[torch.Tensor]:
    """The losses of some steps, and all gradients of each."""
    torch.manual_seed(7)  # Of dropout.
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    run = module if run is None else run
    found = []
    for step in range(steps):
        loss = run(batch(device, step)).square().mean()
        loss.backward()
        found += [loss.detach().clone(), *gradients(module)]
        optimizer.step()
        optimizer.zero_grad()
    return found


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [one.grad.clone() for one in module.parameters()
            if one.grad is not None]


def same(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> bool:
    """Bit for bit, as many, and nothing that is no number."""
    assert all(one.isfinite().all() for one in wanted)
    return len(found) == len(wanted) > 0 and all(
        map(same_bytes, found, wanted))


class LiveBytes(TorchDispatchMode):
    """What operators' outputs take on the CPU at once, by their storages; it
    knows nothing of hoist."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {one.untyped_storage()._cdata for one in self._ours(args)}
        for one in self._ours(found):
            storage = one.untyped_storage()
            # A view of what no operator has made is of a weight, or, where the
            # device is emulated, of the arena.
            if storage._cdata not in given:
                self._sizes[storage._cdata] = (StorageWeakRef(storage),
                                               storage.nbytes())
        self._sizes = {key: one for key, one in self._sizes.items()
                       if not one[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in
                                       self._sizes.values()))
        return found

    def _ours(self, values: Any) -> list[torch.Tensor]:
        return [one for one in tree_leaves(values)
                if isinstance(one, torch.Tensor) and one.device.type == "cpu"]


def peak_bytes(module: nn.Module, device: torch.device) -> int:
    """The most that a step's tensors take on the device; weights' gradients do
    not stay."""
    hooks = [one.register_post_accumulate_grad_hook(
        lambda one: setattr(one, "grad", None)) for one in module.parameters()]
    x = batch(device)
    if device.type == "cuda":
        module(x).square().mean().backward()  # cuBLAS makes its workspace.
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        module(x).square().mean().backward()
        peak = torch.cuda.max_memory_allocated(device) - before
    else:
        with LiveBytes() as live:
            module(x).square().mean().backward()
        peak = live.peak
    for hook in hooks:
        hook.remove()
    return peak


def reachable(graph: Any) -> Iterator[Any]:
    """The nodes of a graph, from a tensor's grad_fn."""
    seen, left = set(), [graph]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            left += [next_node for next_node, _ in node.next_functions]
