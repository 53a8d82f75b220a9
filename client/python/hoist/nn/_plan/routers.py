"""Guesses the next layer's experts by its own router."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import nn

from .._tree.stacks import Stack


class Routers:
    """A Guess: a layer's router, asked over an earlier hidden state.

    It has copies of the routers' weights, from their first calls: a group that
    is streamed is not there so early. They have the weight of the norm before
    them in them, whose scale changes no order.
    """

    def __init__(self, stacks: Sequence[Stack]) -> None:
        self._chosen = [stack.chosen for stack in stacks]
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._hooks = [
            stack.router.register_forward_hook(self._learner(number, stack))
            for number, stack in enumerate(stacks) if stack.router is not None]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def __call__(self, number: int,
                 hidden: torch.Tensor) -> torch.Tensor | None:
        known = self._known.get(number)
        if known is None:
            return None
        weight, bias = known
        rows = hidden.reshape(-1, hidden.shape[-1]).to(weight.dtype)
        scores = rows @ weight
        if bias is not None:
            scale = rows.float().pow(2).mean(-1, keepdim=True).rsqrt()
            scores = scores * scale + bias
        return scores.topk(self._chosen[number], -1).indices.t()

    def _learner(self, number: int, stack: Stack) -> Any:
        def learn(router: Any, args: Any, output: Any) -> None:
            if (torch.compiler.is_compiling() or number in self._known
                    or _is_capturing(router.weight)):
                return
            with torch.no_grad():
                weight = router.weight.detach()
                norm = getattr(stack.norm, "weight", None)
                if norm is not None and norm.device == weight.device:
                    weight = weight * norm.detach()
                bias = getattr(router, "bias", None)
                self._known[number] = (
                    weight.t().contiguous(),
                    None if bias is None else bias.detach().clone())

        return learn


def _is_capturing(weight: torch.Tensor) -> bool:
    return weight.is_cuda and torch.cuda.is_current_stream_capturing()
