"""Stacked experts whose functions let a call rename them, and their routers."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterator, Optional, Sequence, Union

import torch
from torch import nn

from ..._errors import InvalidArgument
from .pieces import InPlaceWeight

# The number of a layer of experts, in order, and what the layer before it reads:
# the experts that the layer will read, likeliest first. None: no guess.
Guess = Callable[[int, torch.Tensor], Optional[torch.Tensor]]
# "auto": the layers' own routers. None: nothing is fetched ahead.
AheadOption = Union[str, Guess, None]

# transformers' functions that add up a token's experts in its order of choice,
# so their results do not depend on the experts' numbers.
FUNCTIONS = ("grouped_mm", "batched_mm")
_NORMS = ("post_attention_layernorm", "pre_feedforward_layernorm",
          "pre_mlp_layernorm", "ffn_norm")


@dataclasses.dataclass
class Stack:
    """The experts of one layer: their module, the weights by attribute, and
    where a pass comes by before."""

    experts: nn.Module
    layer: nn.Module
    weights: dict[str, InPlaceWeight]  # In the order of their reads.
    units: int
    chosen: int  # Of a token.
    router: nn.Module | None
    norm: nn.Module | None

    @property
    def function(self) -> Any:
        """transformers' function that this call goes through; None: another,
        which is not to be given other numbers."""
        name = getattr(self.experts.config, "_experts_implementation", None)
        if name not in FUNCTIONS or getattr(self.experts, "_is_expert_parallel",
                                            False):
            return None
        from transformers.integrations import moe
        functions: Any = moe.ALL_EXPERTS_FUNCTIONS
        return functions.get_interface(name, None)


def find_stacks(root: nn.Module, weights: Sequence[InPlaceWeight],
                option: AheadOption) -> list[Stack]:
    """In the module's order. InvalidArgument: there are none, or no routers."""
    by_module: dict[nn.Module, dict[str, InPlaceWeight]] = {}
    for one in weights:
        by_module.setdefault(one.modules[0], {})[
            one.weight.name.rpartition(".")[2]] = one
    stacks = list(_stacks(root, by_module))
    if not any(stack.function for stack in stacks):
        raise InvalidArgument(
            "ahead= needs stacked experts of transformers' that are read in "
            "place, in a list of layers, and computed by one of "
            f"{FUNCTIONS}: model.set_experts_implementation(\"grouped_mm\")")
    if option == "auto" and not any(stack.router for stack in stacks):
        raise InvalidArgument(
            'ahead="auto" finds no router beside the experts: a module whose '
            "weight has a row for each; give a function that guesses")
    return stacks


def _stacks(root: nn.Module,
            by_module: dict[nn.Module, dict[str, InPlaceWeight]]
            ) -> Iterator[Stack]:
    modules = dict(root.named_modules())
    for name, module in modules.items():
        weights = by_module.get(module, {})
        units = {one.units for one in weights.values()}
        if ({*weights} not in ({"gate_up_proj", "down_proj"},
                               {"up_proj", "down_proj"})
                or units != {getattr(module, "num_experts", 0)}
                or not hasattr(module, "has_bias")):
            continue
        layer = _layer(modules, name)
        if layer is None:
            continue
        beside = modules[name.rpartition(".")[0]]
        router = next((one for one in beside.children()
                       if _rows(one) in units), None)
        chosen = next((int(value) for value in (
            getattr(router, "top_k", None),
            getattr(module.config, "num_experts_per_tok", None)) if value), 1)
        yield Stack(module, layer, dict(sorted(weights.items(),
                                               reverse=True)),
                    units.pop(), chosen, router,
                    next((getattr(layer, one) for one in _NORMS
                          if hasattr(layer, one)), None))


def _layer(modules: dict[str, nn.Module], name: str) -> nn.Module | None:
    """The element of a list that has the module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (parts[length - 1].isdigit() and isinstance(
                modules[".".join(parts[:length - 1])], nn.ModuleList)):
            return modules[".".join(parts[:length])]
    return None


def _rows(module: nn.Module) -> int:
    weight = getattr(module, "weight", None)
    return (weight.shape[0] if isinstance(weight, torch.Tensor)
            and weight.dim() == 2 else 0)
