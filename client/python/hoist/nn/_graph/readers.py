"""Finds misplaced readers of weights in code that is being compiled.

Before a group is staged, and after it is done, its weights' memory holds other
bytes. The operators keep correct readers between them. This module finds the
others: code that reads a weight outside its group's calls, or keeps a view.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_NEVER = 1 << 62


def watch(output: Any, tell: Callable[[torch.Tensor | None], None]) -> None:
    """Watches the graph that torch._dynamo is making. Once it is made, `tell`
    is called with the tag of each group with a misplaced reader; None: this
    torch does not tell which group."""
    backend = output.compiler_fn
    if getattr(backend, "_hoist_watches", False):
        return

    @functools.wraps(backend)
    def compile_watched(module: Any, *args: Any, **kwargs: Any) -> Any:
        for tag in misplaced(module.graph):
            given = tag.meta.get("grapharg")
            tell(None if given is None else given.example)
        return backend(module, *args, **kwargs)

    vars(compile_watched).update(_torchdynamo_orig_backend=backend,
                                 _hoist_watches=True)
    output.compiler_fn = compile_watched


def misplaced(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """The tags of groups whose weights have readers outside all pairs."""
    at = {node: index for index, node in enumerate(graph.nodes)}
    spans: dict[int, list[tuple[int, int]]] = {}
    tags: dict[int, torch.fx.Node] = {}
    for node in graph.nodes:
        name = _operator(node)
        if name is None:
            continue
        tag, weights = node.args[1], node.args[2]
        for memory in map(_memory, weights):
            tags[memory] = tag
            pairs = spans.setdefault(memory, [])
            if name == "stage":
                pairs.append((at[node], _NEVER))
            elif name == "read":
                continue
            elif pairs:
                pairs[-1] = pairs[-1][0], at[node]
            else:
                pairs.append((-1, at[node]))  # Staged by an earlier graph.
    for node in graph.nodes:
        memory = _memory(node)
        if memory not in spans:
            continue
        if any(_operator(user) is None and not any(
                begin < at[user] < end for begin, end in spans[memory])
                for user in node.users):
            yield tags[memory]


def _operator(node: torch.fx.Node) -> str | None:
    packet = getattr(node.target, "overloadpacket", node.target)
    for name in ("stage", "read", "done"):
        if packet is getattr(torch.ops.hoist, name):
            return name
    return None


def _memory(node: torch.fx.Node) -> int:
    """Equal for values over the same memory, as far as it is known."""
    value = node.meta.get("example_value")
    while is_traceable_wrapper_subclass(value):  # Without memory of its own.
        value = getattr(value, value.__tensor_flatten__()[0][0])
    if isinstance(value, torch.Tensor):
        with contextlib.suppress(NotImplementedError, RuntimeError):
            return int(value.untyped_storage()._cdata)
    return id(node)
