"""Cold experts are copied ahead of their reads, to places behind the last one.

A guess for a layer is made where the layer before begins. A call of the experts
then gives those that have come by the numbers of their places. All of it is work
of the device, so a CUDA graph captures it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable, Sequence

import torch
from torch import nn

from ..._errors import InvalidArgument, ResourceExhausted
from .._tree.pieces import InPlaceWeight
from .._tree.stacks import AheadOption, Guess, Stack, find_stacks
from .places import PLACES, Places, Shared
from .routers import Routers

_PAGE = 2 << 20
RINGS = 2  # In turn: a layer's experts are read while the next one's come.
# Of a layer's experts, the part that a batch's tokens may choose. More of them
# would read most of the experts.
_MOST_CHOSEN = 4


@dataclasses.dataclass
class Under:
    """A fetch, from its begin until the layer has run. It keeps what the side
    stream reads."""

    kept: Any
    came: torch.cuda.Event | None  # None: at once.


class Side:
    """The stream of the copies; on the CPU, the only one."""

    def __init__(self, device: torch.device) -> None:
        self._stream = (torch.cuda.Stream(device, priority=-1)
                        if device.type == "cuda" else None)
        self._last: Any = None  # The last pass's stream.

    def run(self, work: Callable[[], Any]) -> Under:
        """After the current stream's work so far."""
        if self._stream is None:
            return Under(work(), None)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            kept = work()
            came = torch.cuda.Event()
            came.record()
        return Under(kept, came)

    def join(self, under: Under) -> None:
        if under.came is not None:
            torch.cuda.current_stream().wait_event(under.came)

    def begin(self) -> None:
        """A pass. Places may still be read by the one before, on another
        stream."""
        if self._stream is None or torch.cuda.is_current_stream_capturing():
            return
        current = torch.cuda.current_stream()
        if self._last is not None and self._last != current:
            self._stream.wait_stream(self._last)
        self._last = current


class Ahead:
    """Of one module's weights in place. Threads: one at a time, as a pass."""

    def __init__(self, root: nn.Module, weights: Sequence[InPlaceWeight],
                 option: AheadOption, device: torch.device) -> None:
        if option != "auto" and not callable(option):
            raise InvalidArgument(f'ahead={option!r} is neither "auto", nor a '
                                  "function of a layer's number and its input")
        self._stacks = find_stacks(root, weights, option)
        self._device = device
        self._rings: dict[str, tuple[int, int]] = {}
        self._first: list[int] = []
        self._lay_out()
        self._option = option
        self._places: list[Places] = []
        self._under: dict[int, Under] = {}
        self._shared = Shared.on(device)
        self._side = Side(device)
        self._undo: list[Callable[[], Any]] = []

    def _lay_out(self) -> None:
        """Where each stack's places are. Weights of one shape share a ring with
        those of each second layer."""
        numbers: dict[Any, int] = {}
        for number, stack in enumerate(self._stacks):
            size = {one.weight.name: one.stored.nbytes
                    for one in stack.weights.values()}
            first = max(-(-_pages(nbytes) * stack.units // nbytes)
                        for nbytes in size.values())
            self._first.append(first)
            for at, (name, nbytes) in enumerate(size.items()):
                unit = nbytes // stack.units
                more = (_pages((first + PLACES) * unit) - _pages(nbytes))
                key = number % RINGS, at, stack.units, unit
                self._rings[name] = more, numbers.setdefault(key, len(numbers))

    def ring_of(self, weight: InPlaceWeight) -> tuple[int, int]:
        """The bytes behind it, and the number of the memory that it shares."""
        return self._rings.get(weight.weight.name, (0, 0))

    @property
    def nbytes(self) -> int:
        return sum({number: nbytes for nbytes, number
                    in self._rings.values()}.values())

    def check(self, hot_bytes: int) -> None:
        if self.nbytes > hot_bytes:
            raise ResourceExhausted(
                f"ahead= takes {self.nbytes >> 20} MiB of device memory for "
                f"copies, and the budget leaves {hot_bytes >> 20} MiB beside "
                f"the groups; {(self.nbytes - hot_bytes >> 20) + 1} MiB more "
                "would be enough, or ahead=None")

    def bind(self, view: Callable[[InPlaceWeight, int], torch.Tensor],
             marks: Callable[[InPlaceWeight],
                             tuple[torch.Tensor, torch.Tensor]]
             ) -> dict[nn.Module, Renaming]:
        """view: of a weight, with so many experts. marks: which are cold, and
        the counts of touches. Returns what each experts' module calls."""
        made = {}
        for number, (stack, first) in enumerate(zip(self._stacks,
                                                    self._first)):
            wide = {name: view(one, first + PLACES)
                    for name, one in stack.weights.items()}
            places = _kind_of(self._device)(
                [*wide.values()], stack.units, first,
                *marks(next(iter(stack.weights.values()))), self._shared)
            self._places.append(places)
            hook = stack.layer.register_forward_pre_hook(
                _AtLayer(self, number), with_kwargs=True)
            self._undo.append(hook.remove)
            # An own attribute, before the class's method.
            made[stack.experts] = stack.experts.forward = Renaming(
                self, number, stack, places, _Wide(
                    stack, wide, places, first + PLACES),
                stack.experts.__dict__.get("forward"))
            self._undo.append(stack.experts.forward.undo)
        if self._option == "auto":
            routers = Routers(self._stacks)
            self._undo.append(routers.remove)
            self._guess: Guess = routers
        else:
            self._guess = self._option  # type: ignore[assignment]
        return made

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()
        self._places = []
        self._under = {}

    def at_layer(self, number: int, hidden: torch.Tensor) -> None:
        """The layer begins: the next one's experts are guessed; the first
        one's, too."""
        if number == 0:
            self._side.begin()
        for at in (number, number + 1) if number == 0 else (number + 1,):
            if at < len(self._stacks) and at not in self._under:
                stack = self._stacks[at]
                tokens = hidden.numel() // hidden.shape[-1]
                if (tokens * stack.chosen * _MOST_CHOSEN <= stack.units
                        and stack.function is not None):
                    self._under[at] = self._side.run(
                        functools.partial(self._fetch, at, hidden))

    def _fetch(self, number: int, hidden: torch.Tensor) -> Any:
        guess = self._guess(number, hidden)
        if guess is None:
            guess = torch.empty(0, dtype=torch.int64, device=self._device)
        guess = guess.reshape(-1)
        self._places[number].fetch(guess)
        return hidden, guess

    def is_under(self, number: int) -> bool:
        return number in self._under

    def join(self, number: int) -> None:
        self._side.join(self._under.pop(number))

    def end_pass(self) -> None:
        """Fetches that no experts came for end here."""
        while self._under:
            self._side.join(self._under.popitem()[1])

    def counts(self) -> dict[str, int]:
        guessed, fetched, read = self._shared.counts.tolist()
        return {"guessed": guessed, "fetched_bytes": fetched,
                "fetched_read_bytes": read}


@dataclasses.dataclass
class _AtLayer:
    """The pre-hook of a layer."""

    ahead: Ahead
    number: int

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if _is_plain():
            for value in (*args, *kwargs.values()):
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    self.ahead.at_layer(self.number, value)
                    return


@dataclasses.dataclass
class Renaming:
    """The experts' forward: what has come is read at its place."""

    ahead: Ahead
    number: int
    stack: Stack
    places: Places
    wide: _Wide
    before: Any  # An own forward that the module had.

    def undo(self) -> None:
        own = self.stack.experts.__dict__
        if own.get("forward") is self:
            del own["forward"]
            if self.before is not None:
                own["forward"] = self.before

    def takes(self, args: Any, kwargs: Any) -> bool:
        """A call whose experts were fetched; it counts its touches."""
        return (self.ahead.is_under(self.number) and _is_plain()
                and len(args) == 3 and not kwargs and self.before is None
                and self.stack.function is not None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.takes(args, kwargs):
            return self._renamed(*args)
        experts = self.stack.experts
        return (type(experts).forward(experts, *args, **kwargs)
                if self.before is None else self.before(*args, **kwargs))

    def _renamed(self, hidden: torch.Tensor, chosen: torch.Tensor,
                 factors: torch.Tensor) -> Any:
        self.places.answer(chosen)
        self.ahead.join(self.number)
        return self.stack.function(self.wide, hidden,
                                   self.places.rename(chosen), factors)


class _Wide:
    """The experts' module as transformers' functions see it: with places."""

    def __init__(self, stack: Stack, weights: dict[str, torch.Tensor],
                 places: Places, experts: int) -> None:
        self.__dict__.update(weights)
        self._module = stack.experts
        self._places = places
        self.num_experts = experts

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if name.endswith("_bias") and isinstance(value, torch.Tensor):
            return self._places.rows(value)
        return value


def _kind_of(device: torch.device) -> type[Places]:
    """Unimplemented: a GPU, without Triton."""
    if device.type != "cuda":
        return Places
    from .places_cuda import CudaPlaces
    return CudaPlaces


def _is_plain() -> bool:
    """Neither compiled nor transformed code, nor with gradients."""
    return not (torch.compiler.is_compiling() or torch.is_grad_enabled()
                or torch._C._functorch.peek_interpreter_stack() is not None)


def _pages(nbytes: int) -> int:
    return math.ceil(nbytes / _PAGE) * _PAGE
