"""hoist's options in vLLM's own configuration."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any, Literal, Mapping

from .._errors import InvalidArgument


@dataclasses.dataclass(frozen=True)
class Options:
    """Keys of `--model-loader-extra-config`, all optional:

        --model-loader-extra-config '{"deadline": 120}'
    """

    # hoistd's; None: $HOIST_SOCKET, else one's own hoistd, else the node's.
    socket: str | None = None
    # The name of these weights in hoistd. An engine with other weights is
    # refused, by the field that differs. None: a name derived from the weights,
    # so that no engine is refused.
    name: str | None = None
    # Device memory for weights: bytes, "8GiB", or a fraction of the weights. If
    # it is less than all, decoder layers come over the link just before they
    # are needed. None: all are on the device.
    budget: int | float | str | None = None
    # "auto": a mixture's fused experts are in host memory, which the device
    # reads in place. The budget, which it needs, has all other weights and the
    # most used experts. None: layers are streamed whole.
    in_place: Literal["auto", None] = None
    # Seconds without a step after which the weights leave the device; the next
    # step brings them back. None: they stay. Not with a budget.
    idle_after: float | None = None
    # Seconds to wait for hoistd, for space of each group, and for another
    # engine that publishes the same weights.
    deadline: float = 60.0
    # If hoistd cannot hold the engine's weights: refuse to start, or load the
    # files into this process, as `--load-format auto` does.
    unsupported: Literal["refuse", "private"] = "refuse"
    # On CPUs: linear layers compute with hoistd's memory in place, or vLLM
    # packs a copy of it in this process, which is faster and not shared.
    cpu_kernels: Literal["shared", "packed"] = "shared"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """InvalidArgument: an unknown key, or an invalid value; names the valid
        ones."""
        hints = typing.get_type_hints(cls)
        for key, value in given.items():
            if key not in hints:
                raise InvalidArgument(
                    f'--model-loader-extra-config: hoist has no "{key}"; '
                    "it has " + ", ".join(hints))
            _check(key, value, hints[key])
        options = cls(**given)
        if options.idle_after is not None and options.budget is not None:
            raise InvalidArgument(
                '--model-loader-extra-config: "idle_after" and "budget" exclude '
                "each other, as a plan's layers would come back elsewhere")
        if options.in_place is not None and options.budget is None:
            raise InvalidArgument(
                '--model-loader-extra-config: "in_place" needs a "budget", '
                "which holds all other weights and the most used experts")
        return options


def _check(key: str, value: Any, hint: Any) -> None:
    if typing.get_origin(hint) is Literal:
        fits = value in typing.get_args(hint)
        wanted = " or ".join(map(json.dumps, typing.get_args(hint)))
    elif key == "budget":
        if value is not None:
            from ..nn._plan.budget import to_bytes  # Needs torch.
            to_bytes(value, 1)  # Its errors name the fault.
        return
    elif float in (hint, *typing.get_args(hint)):
        fits = (isinstance(value, (int, float)) and value >= 0
                and not isinstance(value, bool)) or (
                    value is None and hint is not float)
        wanted = "a number of seconds"
    else:
        fits = value is None or isinstance(value, str)
        wanted = "a text"
    if not fits:
        raise InvalidArgument(f'--model-loader-extra-config: "{key}" is '
                              f"{wanted}, not {value!r}")
