"""Two processes that train adapters over one base: what each of them does."""

from __future__ import annotations

import copy
import os
import pathlib
import sys
from typing import Any, Callable

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "client" / "python"))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import hoist
from models import Stack, numbers
from training import adapt, trained

KIND = os.environ.get("HOIST_TEST_DEVICE", "cpu")
WORLD = 2
WIDTH = 64

Wrap = Callable[[nn.Module], nn.Module]


def run_ranks(what: Callable[..., None], folder: pathlib.Path,
              *args: Any) -> None:
    """In a process a rank; raises what one of them raises."""
    mp.spawn(_rank, args=(what, str(folder / "store"), args), nprocs=WORLD)


def _rank(rank: int, what: Callable[..., None], store: str,
          args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(WORLD))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                            world_size=WORLD)
    try:
        what(*args)
    finally:
        dist.destroy_process_group()


class Seen(nn.Module):
    """A base within a module, with a buffer that is each worker's own."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("seen", torch.full((3,), dist.get_rank() + 1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) * self.seen.sum()


def both() -> tuple[Seen, Seen]:
    """The same, resident and attached, with adapters that differ from those of
    other ranks until a wrapper makes them alike."""
    torch.manual_seed(3)
    resident = Stack(6, WIDTH).requires_grad_(False)
    base = hoist.attach(copy.deepcopy(resident), 0.5)
    made = []
    for one in (resident, base):
        whole = Seen(adapt(one))
        with torch.no_grad():
            for value in trained(whole).values():
                value += dist.get_rank()
        made.append(whole.to(KIND))
    return made[0], made[1]


def values(model: nn.Module) -> list[torch.Tensor]:
    return [one.full_tensor() if hasattr(one, "full_tensor") else one
            for one in (value.detach().clone()
                        for value in trained(model).values())]


def steps(model: nn.Module) -> list[torch.Tensor]:
    """Losses and adapters of three steps over the rank's own inputs."""
    optimizer = torch.optim.SGD(trained(model).values(), lr=0.1)
    found = []
    for at in range(3):
        x = numbers(2, 3, WIDTH, seed=WORLD * at + dist.get_rank()).to(KIND)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found += [loss.detach(), *values(model)]
    return found


def equals_resident(wrap: Wrap) -> None:
    """Wrapped, an attached base is trained as a resident one is, and keeps its
    weights; ranks have the same adapters."""
    resident, attached = both()
    own = trained(attached)
    before = {name: value.clone()
              for name, value in attached.state_dict().items()}
    plain, wrapped = wrap(resident), wrap(attached)
    expected, found = steps(plain), steps(wrapped)
    assert len(found) == len(expected) > 3
    for one, other in zip(found, expected):
        assert torch.equal(one, other)
    mine = torch.cat([one.reshape(-1) for one in values(wrapped)])
    everybodys = [torch.empty_like(mine) for _ in range(WORLD)]
    dist.all_gather(everybodys, mine)
    assert all(torch.equal(one, mine) for one in everybodys)
    assert torch.equal(attached.seen, resident.seen)
    for name, value in attached.state_dict().items():
        if name not in own and name != "seen":
            assert torch.equal(value, before[name]), name
    assert hoist.stats(attached.base).streamed_bytes > 0
    hoist.check(attached.base)


def distributed(module: nn.Module) -> nn.Module:
    wrapped = nn.parallel.DistributedDataParallel(module)
    assert "_ddp_params_and_buffers_to_ignore" not in vars(module)
    return wrapped


def sharded(module: Seen) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh(KIND, (WORLD,))
    # fully_shard leaves ranks' weights as they differ.
    for value in (*trained(module).values(), module.seen):
        dist.broadcast(value.detach(), 0)
    for layer in module.base.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def wrappers_are_torchs_own_after_detach(rank: int) -> None:
    wrapper = nn.parallel.DistributedDataParallel
    before = wrapper.__init__
    model = hoist.attach(Stack(2), 0.9)
    assert wrapper.__init__ is not before
    hoist.detach(model)
    assert wrapper.__init__ is before
