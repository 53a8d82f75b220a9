"""Calls of a module that are refused while its weights are transient."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from ..._errors import FailedPrecondition
from .._show.group import Group
from .._show.shown import FREEZE, refuse_gradient
from .turns import is_in_backward


def refuse_tracing() -> None:
    """A trace would hold addresses that other weights use later. Within a
    transform of functorch's no weight can be put together."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise FailedPrecondition(
            "the module cannot be transformed (torch.vmap, torch.func) while "
            "its weights come and go; hoist.set_budget(module, 1.0) and call "
            "it once, or hoist.detach(module) first")
    modes = (_get_current_dispatch_mode_stack()
             if torch._C._len_torch_dispatch_stack() else ())
    # Not torch.compiler.is_compiling(), which is true for all threads at once.
    if torch._C._get_tracing_state() is not None or any(
            isinstance(mode, (FakeTensorMode, ProxyTorchDispatchMode))
            for mode in modes):
        raise FailedPrecondition(
            "the module cannot be traced (torch.jit.trace, make_fx, "
            "torch.export, fake tensors) while its weights come and go; "
            "hoist.detach(module) first (for torch.jit.trace alone, "
            "hoist.set_budget(module, 1.0) would be enough)")


def refuse_freezing() -> None:
    """inductor makes constants of weights if gradients are off."""
    config: Any = sys.modules.get("torch._inductor.config")
    if (config is not None and config.freezing
            and not torch.is_grad_enabled()):
        raise FailedPrecondition(
            "code that inductor compiles with `freezing` has copies of weights, "
            "while these live in hoist, and come and go; compile it without, or "
            "give hoist.set_budget(module, 1.0) room for all of it")


def are_graded(args: Any, kwargs: Any) -> bool:
    """A call with these inputs makes a graph."""
    return torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad
        for value in (*args, *kwargs.values()))


def refuse_training(groups: list[Group], args: Any, kwargs: Any) -> None:
    """A backward raises at the gradient of a transient weight; this raises
    earlier, if the call shows that there will be one."""
    if not are_graded(args, kwargs):
        return
    for group in groups:
        name = None if group.bound else group.binding.trained()
        if name is not None:
            raise FailedPrecondition(
                f'"{name}" needs gradients, and lives in hoist, where weights '
                f"that come and go are shared and read-only; {FREEZE}; or call "
                "the module under torch.no_grad()")


def refuse_backward(groups: list[Group], output: Any) -> None:
    """One graph had these groups' weights without requires_grad: a backward
    through its outputs would silently drop their gradients."""
    graded = [one for one in tree_leaves(output)
              if isinstance(one, torch.Tensor) and one.grad_fn is not None]
    if not graded:
        return  # torch says that there is no graph.
    for group in groups:
        if group.operands is None:
            continue
        for weight in group.spec.weights:
            if weight.requires_grad and not group.binding.is_own(weight):
                for one in graded:
                    refuse_gradient(one, weight.name)
                return


def refuse_past_hooks(group: Group, output: Any) -> None:
    """Refuses a graph that would read other weights' bytes, since its nodes
    keep weights past the hooks. A checkpoint's recomputation is permitted: its
    weights are read while they are staged."""
    name = group.past_hooks
    if name is None or is_in_backward() or not any(
            isinstance(one, torch.Tensor) and one.requires_grad
            for one in tree_leaves(output)):
        return
    raise FailedPrecondition(
        f'"{name}" comes and goes, and its library keeps it in the graph past '
        "torch's saved-tensor hooks: a backward would read other weights' "
        "bytes; checkpoint the layers with use_reentrant=True, or give "
        "hoist.set_budget(module, 1.0) room for all of it")
