"""A pipeline's component is called."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from torch import nn

from .._run.hooks import NotCopied
from .component import Component


class Calls(Protocol):
    """The pipeline, which divides its budget by its components' calls."""

    def take(self, component: Component) -> bool:
        """The component is called: gives it all of the budget that it can use.
        False: it runs already, and goes on with what it has."""

    def step(self, component: Component) -> None:
        """A denoiser is called once more."""


@dataclasses.dataclass
class Gate(NotCopied):
    """Replaces a module's call, before any hook of its own, while work must
    precede it: does that work, and calls the module."""

    pipeline: Calls
    component: Component
    module: nn.Module
    instead_of: Any  # The earlier value, of torch's compile().
    once: bool  # Its component lacks memory; else steps are counted.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.once:
            if self.pipeline.take(self.component):
                return self.module(*args, **kwargs)
        else:
            self.pipeline.step(self.component)
        if self.instead_of is not None:
            return self.instead_of(*args, **kwargs)
        return self.module._call_impl(*args, **kwargs)

    def __bool__(self) -> bool:
        """peft asks by this whether the module is compiled."""
        return self.instead_of is not None

    def stand(self) -> None:
        vars(self.module)["_compiled_call_impl"] = self

    def go(self) -> None:
        if vars(self.module).get("_compiled_call_impl") is not self:
            return  # The module was compiled meanwhile.
        if self.instead_of is None:
            del vars(self.module)["_compiled_call_impl"]
        else:
            vars(self.module)["_compiled_call_impl"] = self.instead_of
