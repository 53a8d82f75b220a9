"""hoist.attach_pipeline: the modules of a pipeline under one budget.

A pipeline's components run one after another, over and over. Each is attached
like any module; this module divides the budget. The called component has all
that it can use; for it the others give their plans back, the one that is needed
last first.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import threading
import weakref
from typing import (TYPE_CHECKING, Any, Iterable, Iterator, Mapping, TypeVar,
                    cast)

import torch
from torch import nn

from ..._errors import (FailedPrecondition, HoistError, InvalidArgument,
                        ResourceExhausted)
from .._plan.budget import Budget, parse_one, to_bytes
from .._plan.stats import PipelineStats
from .._run.hooks import NotCopied
from .attach import detach, unwrap
from .attachment import Attachment, attachment_of
from .component import Component, image_bytes
from .gate import Gate
from .lender import own
from .options import AttachOptions, Names, Pipeline

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger("hoist.nn")

P = TypeVar("P", bound=Pipeline)

# Steps left of a denoiser when the next component is requested.
_AHEAD = 2


def attach_pipeline(pipe: P, budget: Budget = None, *,
                    components: Names | None = None,
                    each: Mapping[str, AttachOptions] | None = None,
                    **options: Unpack[AttachOptions]) -> P:
    """Puts the weights of a pipeline's modules under hoist, in one budget;
    returns the pipeline. Its outputs stay the same.

    pipe: one of diffusers', or an object with `components`, a mapping of names.
        `model_cpu_offload_seq`, where there is one, is the order of use; else
        the calls show it. One call of it at a time, as ever.
    budget: device memory for all its weights together: bytes, "8GiB", a float
        in (0, 1] of the components' bytes, None for all that hoistd can
        promise.
    components: names of the attached ones; None: every module with weights. You
        move the others. One that is attached already, by hoist.load say, joins
        as it is: its budget becomes the pipeline's, its other options stay.
    each: further options of some, by name; not of joining ones.
    options: hoist.attach's, without `name` and `order`.

    The called component has the budget that it can use; the others release
    theirs. `hoist.detach`, `stats`, `set_budget` and `check` take the pipeline,
    too.

    A failure leaves the pipeline as it was: its modules keep their weights
    until all are attached. With hand_over="by_group" attached weights come back
    from hoistd. Raises hoist.attach's errors.
    """
    attach_pipeline_as(pipe, budget, components, each or {}, options).commit()
    return pipe


def attach_pipeline_as(pipe: Any, budget: Budget, components: Names | None,
                       each: Mapping[str, AttachOptions],
                       options: AttachOptions) -> PipelineAttachment:
    """Attaches the pipeline; the modules' own tensors are kept until `commit`,
    and restored by `undo`."""
    amount = parse_one(budget)
    check_options(options, each)
    if vars(pipe).get("_hoist") is not None:
        raise FailedPrecondition(
            "the pipeline is attached already; hoist.detach it first")
    modules = _modules_of(pipe, components)
    _refuse_casting(pipe, modules)
    unknown = {*each} - {*modules}
    if unknown:
        raise InvalidArgument(f"each= names {', '.join(sorted(unknown))}; the "
                              f"components are {', '.join(modules)}")
    wanted = {name: cast(AttachOptions,
                         {**options, **each.get(name, {})})
              for name in modules}
    joining = {name: found for name, module in modules.items()
               if (found := attachment_of(unwrap(module))) is not None}
    for name in joining:
        _check_joins(name, joining[name], each)
    left = to_bytes(amount, sum(image_bytes(modules[name], wanted[name])
                                for name in modules)
                    if isinstance(budget, float) else 1)
    parts: dict[str, Component] = {}
    try:
        # These first, as the others need their memory.
        for name, found in joining.items():
            parts[name] = Component.join(name, modules[name], found)
        for name in modules:
            if name in joining:
                continue
            part = Component.attach(name, modules[name], left or None,
                                    wanted[name])
            parts[name] = part
            # From the first one, which was alone.
            left = left or part.promised
            part.set(0)
        left = left or next(iter(parts.values())).all_there_is()
        for part in parts.values():
            part.check_fits(left)
        made = PipelineAttachment(pipe, left, [parts[name] for name in modules],
                                  _order_of(pipe, modules))
    except BaseException:
        _undo(parts.values())
        raise
    vars(pipe)["_hoist"] = made
    return made


def _undo(components: Iterable[Component]) -> None:
    """Undoes all of them, even if some fail. New ones first, as the others need
    their memory."""
    with contextlib.ExitStack() as stack:
        for one in sorted(components, key=lambda one: not one.joined):
            stack.callback(one.undo)


def check_options(options: Mapping[str, Any],
                  each: Mapping[str, Mapping[str, Any]] | None) -> None:
    """InvalidArgument: an option is for one module alone."""
    for one in options, *(each or {}).values():
        for name in sorted({"name", "order"} & {*one}):
            raise InvalidArgument(f"{name}= is a module's, not a pipeline's")


# The pipeline whose budget an attachment shares.
_shared_by: weakref.WeakKeyDictionary[
    Attachment, weakref.ref[PipelineAttachment]] = weakref.WeakKeyDictionary()


def pipeline_of(attachment: Attachment) -> PipelineAttachment | None:
    """The pipeline whose budget it shares; None: it has one of its own."""
    ref = _shared_by.get(attachment)
    found = None if ref is None else ref()
    if found is None or found.release(attachment):
        return None
    return found


def _check_joins(name: str, attachment: Attachment,
                 each: Mapping[str, AttachOptions]) -> None:
    if name in each:
        raise InvalidArgument(
            f'each= names "{name}", which is attached already and joins as it '
            "is; say its options where it is attached")
    if pipeline_of(attachment) is not None:
        raise FailedPrecondition(
            f'component "{name}" is another pipeline\'s, and has its memory of '
            "that one's budget; hoist.detach that pipeline first, or give "
            "components= without it: its calls come under that budget here, "
            "too")


def _modules_of(pipe: Any, wanted: Names | None) -> dict[str, nn.Module]:
    """By name, each once, in the order of the pipeline's components."""
    components = getattr(pipe, "components", None)
    if not isinstance(components, Mapping):
        raise InvalidArgument(f"{type(pipe).__name__} is no pipeline: it has "
                              "no components")
    found: dict[str, nn.Module] = {}
    for name, one in components.items():
        if isinstance(one, nn.Module) and _has_weights(one) and not any(
                one is other for other in found.values()):
            found[name] = one
    if wanted is not None:
        names = [wanted] if isinstance(wanted, str) else list(wanted)
        for name in names:
            if name not in found:
                raise InvalidArgument(
                    f'components names "{name}", which is no module with '
                    f"weights; those are {', '.join(found)}")
        found = {name: found[name] for name in found if name in names}
    if not found:
        raise InvalidArgument(f"{type(pipe).__name__} has no modules to attach")
    return found


def _refuse_casting(pipe: Any, modules: Mapping[str, nn.Module]) -> None:
    """Raises before the first step: SDXL's pipelines cast a VAE that overflows
    in float16 to float32 in each call, and back."""
    vae = modules.get("vae")
    if (vae is not None and hasattr(pipe, "upcast_vae")
            and getattr(vae, "dtype", None) == torch.float16
            and getattr(getattr(vae, "config", None), "force_upcast", False)):
        raise FailedPrecondition(
            'component "vae" is of float16, and the pipeline casts it to '
            "float32 in each call, as its config has force_upcast; what hoist "
            "stages stays of one type. Load the pipeline in bfloat16, or a VAE "
            "made for float16 (force_upcast=False); or leave it to yourself by "
            "components=")


def _order_of(pipe: Any, names: Iterable[str]) -> list[str]:
    """Empty if the order is unknown."""
    said = getattr(pipe, "model_cpu_offload_seq", None) or ""
    return [name for name in dict.fromkeys(said.split("->")) if name in {
        *names}]


def _has_weights(module: nn.Module) -> bool:
    return attachment_of(unwrap(module)) is not None or any(
        one.nbytes for one in itertools.chain(module.parameters(),
                                              module.buffers()))


class PipelineAttachment(NotCopied):
    """Divides a pipeline's budget among its components.

    Threads: any; a call whose component lacks memory waits for components that
    run in other threads.
    """

    def __init__(self, pipe: Any, budget: int, components: list[Component],
                 order: list[str]) -> None:
        """order: names, as far as it is known."""
        self.budget = budget
        self._pipe = weakref.ref(pipe)
        self._components = components
        self._order = [component for name in order
                       for component in components if component.name == name]
        self._current: Component | None = None
        self._gates: dict[Component, list[Gate]] = collections.defaultdict(list)
        self._lock = threading.RLock()
        for component in components:
            self._own(component)
        self._stand_where_needed()

    def _own(self, component: Component) -> None:
        _shared_by[component.attachment] = weakref.ref(self)
        own(self, component.attachment)

    # For gates.

    def take(self, component: Component) -> bool:
        """The component is called: gives it all of the budget that it can use.
        False: it runs already, and goes on with what it has."""
        with self._lock:
            self._leave_out_detached()
            if not component.attached:
                return True
            self._note_order(component)
            self._current = component
            component.calls = 0
            try:
                if component.granted < self._useful(component):
                    self._make_room(component)
            finally:
                self._stand_where_needed()
            if self._current is not component:
                return False
            if not component.takes_steps:
                self._bring_next(component)
            return True

    def step(self, component: Component) -> None:
        """A denoiser is called once more."""
        with self._lock:
            self._leave_out_detached()
            if not component.attached:
                return
            if self._current is not component:
                self._current = component
                component.calls = 0
            component.calls += 1
            if self._steps_left(component) <= _AHEAD:
                self._bring_next(component)
                self._go(component)

    def _useful(self, component: Component) -> int:
        return min(component.whole, self.budget)

    def _free(self) -> int:
        return self.budget - sum(one.granted for one in self._components)

    def _make_room(self, component: Component) -> None:
        """Others give all back. That costs nothing until the space is used:
        hoistd keeps their copies there until then."""
        useful = self._useful(component)
        others = self._last_needed_first(component)
        for other in others:
            if useful - component.granted <= self._free():
                break
            other.set(0)
        budget = min(useful, component.granted + self._free())
        if budget < component.least:
            held = ", ".join(f'"{one.name}" {one.granted}'
                             for one in self._components if one.granted)
            raise ResourceExhausted(
                f'component "{component.name}" needs {component.least} bytes '
                f"of the budget's {self.budget}, which others keep, as they "
                f"run or CUDA graphs were captured of them: {held}")
        try:
            component.set(budget)
        except FailedPrecondition as error:
            # `set_budget` took its memory after the call, and its pass has
            # brought back what it needs.
            log.debug("%s runs with the least: %s", component.name, error)
            self._current = None  # Its next call comes here again.
        except ResourceExhausted:
            if not any(other.granted for other in others):
                raise
            for other in others:  # The free space may be in small pieces.
                other.set(0)
            component.set(budget)

    def _last_needed_first(self, component: Component) -> list[Component]:
        """The other components, the one that is needed last first."""
        at = self._order.index(component)
        after = self._order[at + 1:] + self._order[:at]
        unknown = [one for one in self._components if one not in self._order]
        return unknown + after[::-1]

    def _note_order(self, component: Component) -> None:
        if component in self._order:
            return
        at = len(self._order)
        if self._current in self._order:
            at = self._order.index(self._current) + 1
        self._order.insert(at, component)

    # The next component.

    def _next(self, component: Component) -> Component | None:
        if component not in self._order or len(self._order) < 2:
            return None
        at = self._order.index(component) + 1
        return self._order[at % len(self._order)]

    def _bring_next(self, component: Component) -> None:
        """Prefetches it: into the free part of the budget, else to the host."""
        following = self._next(component)
        if following is None or following.granted:
            return
        try:
            if following.whole <= self._free():
                following.set(following.whole)
                self._stand_where_needed()
            else:
                self._to_host(following)
        except HoistError as error:  # Its own call will raise it.
            log.debug("%s is not brought ahead: %s", following.name, error)

    def _to_host(self, component: Component) -> None:
        """Its groups that fit the device, from files and the spill."""
        wanted, nbytes = [], 0
        for group in component.attachment.groups:
            nbytes += group.staged.image_bytes
            if nbytes > self.budget:
                break
            wanted.append(group.staged)
        session = component.attachment.parts[0].session
        session.prefetch(wanted, tier="host")

    def _steps_left(self, component: Component) -> int:
        """The rest of the denoiser's loop, with this step; 0: unknown."""
        scheduler = getattr(self._pipe(), "scheduler", None)
        timesteps = getattr(scheduler, "timesteps", None)
        if not isinstance(timesteps, torch.Tensor):
            return 0
        done = getattr(scheduler, "step_index", None)
        if not isinstance(done, int):
            done = component.calls - 1
        return len(timesteps) - done

    # Gates.

    def _stand_where_needed(self) -> None:
        """Puts gates before components whose calls must be noticed."""
        for component in self._components:
            self._go(component)
            root = component.attachment.root
            if component is self._current:
                following = self._next(component)
                if (component.takes_steps and following is not None
                        and not following.granted):
                    self._stand(component, {component.called, root}, False)
            elif component.granted < self._useful(component):
                self._stand(component, {component.called, *root.modules()},
                            True)

    def _stand(self, component: Component, modules: set[nn.Module],
               once: bool) -> None:
        if not once and len(modules) > 1:
            modules = {component.called}  # It calls the module itself.
        for module in modules:
            before = vars(module).get("_compiled_call_impl")
            gate = Gate(self, component, module, before, once)
            gate.stand()
            self._gates[component].append(gate)

    def _go(self, component: Component) -> None:
        for gate in self._gates.pop(component, []):
            gate.go()

    def _leave_out_detached(self) -> None:
        for component in list(self._components):
            if not component.attached:  # It was detached by itself.
                self._leave_out(component)

    def _leave_out(self, component: Component) -> None:
        self._go(component)
        _shared_by.pop(component.attachment, None)
        self._components.remove(component)
        if component in self._order:
            self._order.remove(component)

    def release(self, attachment: Attachment) -> bool:
        """Releases a component to another pipeline, if this one's is gone."""
        if self._pipe() is not None:
            return False
        with self._lock:
            for component in list(self._components):
                if component.attachment is attachment:
                    self._leave_out(component)
        return True

    @contextlib.contextmanager
    def exchanging(self, attachment: Attachment) -> Iterator[int]:
        """For a block that attaches a component's module again with other
        options, in the budget that it is given: the new attachment becomes the
        component. FailedPrecondition: it runs."""
        with self._lock:
            old = next(one for one in self._components
                       if one.attachment is attachment)
            for one in self._components:
                one.set(0)
            if old.granted:
                raise FailedPrecondition(
                    f'component "{old.name}" runs, or a CUDA graph was '
                    "captured of it; hoist.detach it first")
            if not self._free():
                raise ResourceExhausted(
                    f"all of the pipeline's {self.budget} bytes are others', "
                    "which run or of which CUDA graphs were captured")
            self._go(old)
            try:
                yield self._free()
            finally:
                self._exchange(old, attachment_of(attachment.root))
                self._stand_where_needed()

    def _exchange(self, old: Component, now: Attachment | None) -> None:
        if now is None:
            self._leave_out(old)
            return
        if now is old.attachment:
            return  # It was refused before any change.
        new = Component(old.name, now, old.called)
        for among in (self._components, self._order):
            among[:] = [new if one is old else one for one in among]
        if self._current is old:
            self._current = None
        _shared_by.pop(old.attachment, None)
        self._own(new)
        new.set(0)

    # Its making; see attach_pipeline_as.

    def commit(self) -> None:
        for component in self._components:
            component.commit()

    def undo(self) -> None:
        """Before `commit`."""
        with self._lock:
            components = list(self._components)
            for component in components:
                self._leave_out(component)
            pipe = self._pipe()
            if pipe is not None:
                vars(pipe).pop("_hoist", None)
        _undo(components)

    # For the callers of hoist.*; see attach.py.

    def detach(self) -> None:
        with self._lock:
            failed: HoistError | None = None
            for component in list(self._components):
                try:
                    if component.attached:
                        detach(component.attachment.root)
                except HoistError as error:
                    if component.attached:
                        raise  # It goes on, and so does the pipeline.
                    failed = failed or error
                self._leave_out(component)
            pipe = self._pipe()
            if pipe is not None:
                vars(pipe).pop("_hoist", None)
            if failed is not None:
                raise failed

    def stats(self) -> PipelineStats:
        with self._lock:
            self._leave_out_detached()
            return PipelineStats.of(
                type(self._pipe()).__name__, self.budget,
                {one.name: one.attachment.stats()
                 for one in self._components})

    def set_budget(self, budget: Budget) -> None:
        """ResourceExhausted: a component needs more; it stays as it was."""
        with self._lock:
            wanted = parse_one(budget)
            if wanted is None:
                raise InvalidArgument("say how much the pipeline's budget is")
            amount = to_bytes(wanted, sum(one.whole
                                          for one in self._components))
            for one in self._components:
                one.check_fits(amount)
            self._take_all("set its budget", amount)

    def _take_all(self, what: str, budget: int) -> None:
        self._leave_out_detached()
        try:
            for one in self._components:
                one.set(0)
            if any(one.granted for one in self._components):
                raise FailedPrecondition(
                    "the pipeline is running, or CUDA graphs were captured of "
                    f"it; {what} between calls")
            self.budget = budget
        finally:
            self._current = None
            self._stand_where_needed()

    def sleep(self) -> None:
        with self._lock:
            self._take_all("let it sleep", self.budget)

    def wake(self) -> None:
        with self._lock:
            self._leave_out_detached()
            first, *_ = [*self._order, *self._components, None]
            if first is None or any(one.granted for one in self._components):
                return
            try:
                self._make_room(first)
            finally:
                self._stand_where_needed()

    def take_back(self, attachment: Attachment) -> bool:
        """See lender.Owner: hoistd asks for each component's memory."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            for component in self._components:
                if component.attachment is attachment:
                    component.set(0)
                    if self._current is component:
                        self._current = None  # Its next call takes it again.
            self._stand_where_needed()
        finally:
            self._lock.release()
        return True

    def advance(self, wait: bool) -> None:
        for component in self._components:
            if component.attached:
                component.attachment.advance(wait)

    def check(self) -> None:
        for component in self._components:
            if component.attached:
                component.attachment.check()
