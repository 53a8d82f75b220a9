"""Decoder layers whose weights come just before they are needed."""

from __future__ import annotations

from threading import get_ident
from typing import Any, Generator, Mapping, Sequence

import torch
import vllm.envs as envs
from torch import nn
# The import registers the operators vllm::wait_prefetch and start_prefetch.
from vllm.model_executor.offloader import PrefetchOffloader  # noqa: F401
from vllm.model_executor.offloader.base import BaseOffloader

from .._eager import inlined
from .._errors import FailedPrecondition, Unimplemented
from .._in_place import InPlace
from .._library import DEVICE_KINDS
from .._model import Group
from .._plan import Plan
from .._stage_counts import Mark, StageCounts


class PlanOffloader(BaseOffloader):  # type: ignore[misc]
    """vLLM's hooks around its decoder layers, for plans of hoistd's.

    The operator before a layer stages it, and the one after it ends that. They
    are vLLM's own: for compilers and CUDA graphs they write to the layer's
    input and output, so that no reader of a weight leaves its layer. Each pass
    checks that they are in the code that runs (_Followed).

    Threads: those that run the model, one at a time.
    """

    def __init__(self) -> None:
        self._layers: list[nn.Module] = []
        self._stacks: list[range] = []  # Of layers: one list of a model's.
        self._followed: dict[int, _Followed] = {}  # By layer.

    def wrap_modules(self, modules_generator: Generator[nn.Module, None, None],
                     prefix: str = "") -> list[nn.Module]:
        """vLLM calls it for each list of layers that a model makes."""
        modules = list(modules_generator)
        begin = len(self._layers)
        for module in modules:
            _surround(module, len(self._layers))
            self._layers.append(module)
        self._stacks.append(range(begin, len(self._layers)))
        return modules

    def layers_of(self, model: nn.Module) -> list[str]:
        """The names of the wrapped layers, in their order."""
        names = {id(one): name for name, one in model.named_modules()}
        return [names[id(layer)] for layer in self._layers
                if id(layer) in names]

    def follow(self, model: nn.Module, plan: Plan,
               groups: Mapping[str, Sequence[Group]],
               device: torch.device) -> None:
        """From now on the plan stages the model's layers. groups: by the
        layers' names; other layers need no stage.

        Unimplemented: calls of the model cannot be seen.
        """
        names = {id(one): name for name, one in model.named_modules()}
        found = {index: groups[names[id(layer)]]
                 for index, layer in enumerate(self._layers)
                 if names.get(id(layer)) in groups}
        followed = _Followed(type(model).__name__, plan, found, self._stacks,
                             device)
        followed.watch(model)
        self._followed.update(dict.fromkeys(found, followed))

    def _wait_for_layer(self, layer_idx: int) -> None:
        # None before the model is bound: vLLM runs nothing before that.
        followed = self._followed.get(layer_idx)
        if followed is not None:
            followed.stage(layer_idx)

    def _start_prefetch(self, layer_idx: int) -> None:
        """The layer's work has been launched. vLLM's own offloader begins to
        copy the next layer here; hoistd has begun already."""
        followed = self._followed.get(layer_idx)
        if followed is not None:
            followed.done(layer_idx)


class _Followed:
    """One model's layers under a plan."""

    def __init__(self, name: str, plan: Plan,
                 groups: Mapping[int, Sequence[Group]],
                 stacks: Sequence[range], device: torch.device) -> None:
        self._name = name
        self._plan = plan
        self._groups = groups
        streamed = [index for index, of in groups.items()
                    if any(plan.kind(one) == "streamed" for one in of)]
        self._places = {index: at for at, index in enumerate(streamed)}
        self._stacks = [found for stack in stacks if (
            found := [self._places[index] for index in stack
                      if index in self._places])]
        self._counts = StageCounts(len(streamed), device, self._judge)
        self._began: dict[int, Mark] = {}  # By thread.

    def watch(self, model: nn.Module) -> None:
        """Unimplemented: see PlanOffloader.follow."""
        if not self._places:
            return  # All layers are always there.
        refuse_compiled_whole(model)
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end)

    def stage(self, layer: int) -> None:
        stream = stream_of(self._plan)
        for group in self._groups[layer]:
            self._plan.stage(group, stream=stream)
        if layer in self._places:
            self._counts.note(self._places[layer])

    def done(self, layer: int) -> None:
        stream = stream_of(self._plan)
        for group in self._groups[layer]:
            self._plan.done(group, stream=stream)

    @inlined
    def _begin(self, module: nn.Module, args: Any) -> None:
        # If all code is compiled as one, torch guards the inputs of that.
        if not torch.compiler.is_compiling():
            self._began[get_ident()] = self._counts.begin_pass()

    @inlined
    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        began = self._began.pop(get_ident(), None)
        if began is not None:
            self._counts.end_pass(began)

    def _judge(self, staged: Sequence[bool]) -> None:
        """FailedPrecondition: layers were read that the pass did not stage. A
        model may have several stacks of layers, and not run all of them."""
        ran = [[staged[at] for at in stack] for stack in self._stacks]
        if any(map(any, ran)) and all(
                all(stack) or not any(stack) for stack in ran):
            return
        raise FailedPrecondition(
            f"a pass of {self._name} staged {sum(staged)} of its "
            f"{len(staged)} streamed layers, so that it computed with other "
            "bytes than their weights; what it gave is void. The compiled code "
            "that ran was not made for a budget: delete vLLM's compile cache "
            f"({envs.VLLM_CACHE_ROOT}/torch_compile_cache), or start the "
            "engine with VLLM_DISABLE_COMPILE_CACHE=1")


def refuse_compiled_whole(model: nn.Module) -> None:
    """Unimplemented: calls of the model cannot be seen."""
    if type(model).__call__ is not nn.Module.__call__:
        raise Unimplemented(
            f"{type(model).__name__} takes no budget, as vLLM compiles all of "
            "it, and nothing could see its passes; start it without one")


def stream_of(weights: Plan | InPlace) -> int | None:
    """The stream that this thread's kernels run on, in hoistd's terms."""
    if weights.device_kind == DEVICE_KINDS["emulated"]:
        return None
    return torch.cuda.current_stream().cuda_stream


def _surround(module: nn.Module, index: int) -> None:
    theirs = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        torch.ops.vllm.wait_prefetch(_activations(args, kwargs), index)
        given = theirs(*args, **kwargs)
        torch.ops.vllm.start_prefetch(
            given[0] if isinstance(given, tuple) else given, index)
        return given

    module.forward = forward


def _activations(args: tuple[Any, ...], kwargs: Mapping[str, Any]
                 ) -> torch.Tensor:
    """The tensors that a layer computes from; positions are integers."""
    for one in (*args, *kwargs.values()):
        if isinstance(one, torch.Tensor) and one.is_floating_point():
            return one
    raise Unimplemented("a decoder layer is called with no activations; start "
                        "the engine without a budget")
