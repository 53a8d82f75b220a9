"""hoist.attach, detach, stage, stats, set_budget; load is in load.py."""

from __future__ import annotations

import contextlib
import os
from typing import (TYPE_CHECKING, Any, Callable, Iterator, Protocol,
                    Sequence, TypeVar, cast, get_args, overload)

import torch
from torch import nn

from ... import _session
from ..._errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound
from ..._model import Model
from ..._plan import PlanTerms, check_terms
from ..._progress import progress_bar
from .._plan.budget import Amount, Budget, parse
from .._plan.stats import AttachStats
from .._store.hand_over import content_of, known_model, same_model
from .._store.sources import Published
from .._store.uses import Uses
from .._tree.casting import (DEFAULT_SKIP, Patterns, check_storage_type,
                             matching_modules)
from .._tree.grouping import Groups
from .._tree.layout import GroupSpec, choose_storage, lay_out
from .._tree.pieces import InPlaceOption, choose, pieces_of
from .._tree.stacks import AheadOption
from . import libraries
from .assemble import assemble
from .attachment import Attachment, attachment_of, attachments_in, find_attached
from .options import (AttachOptions, HandOver, Idle, M, Names, Pipeline, T,
                      Wanted, Where)
from .out_of_memory import retry

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R")


def attach(module: M, budget: Budget = None, *, groups: Groups = "block",
           order: Names = "learn", storage_dtype: torch.dtype | None = None,
           skip: Patterns = DEFAULT_SKIP, exclude: Patterns = (),
           idle: Idle = "cpu", name: str | None = None, device: Where = None,
           session: _session.Session | None = None, exclude_kwargs: Names = (),
           progress: bool | None = None, deadline: float = 60.0,
           in_place: InPlaceOption = None, ahead: AheadOption = None,
           hand_over: HandOver = "whole", **terms: Unpack[PlanTerms]) -> M:
    """Puts a module's weights under hoist; returns the module.

    hoistd receives its weights group by group, and the module's own are
    released at the end. From then on each group is staged on the device before
    its modules run. Outputs stay the same. Weights that hoistd has already, in
    the same groups, are not sent again. Weights on the meta device are those
    of the model `name`.

    budget: device memory for the weights: bytes, "8GiB", a float in (0, 1] of
        the model's bytes; or {device: any of these}, which spreads the groups
        over several devices in order. None: all that hoistd can promise, until
        others need it. An idle module then gives way, and its next pass has
        what is free.
    groups: the unit of staging: "block" (each element of the outermost
        lists and sequences, and each largest subtree beside them), ("block",
        n) for n of those, "leaf", {group: [module names]}, or a function of
        (name, module) that gives a group's name or None. Within a budget, or
        if the module exceeds the device's pool, a large block is several
        groups, "layers.0/1" and so on.
    order: of the groups' use, by name; "learn": from the first pass.
    storage_dtype: store parameters as this smaller floating type, in hoistd and
        on the link, and cast them back on the device. hoistd keeps the
        originals.
    skip: modules that storage_dtype leaves alone: patterns of names, classes or
        modules; one, or several.
    exclude: modules that hoist leaves alone, in the same forms.
    idle: a streamed weight outside its forward: "cpu" (the true value, read on
        access), "slot" (the same between passes; within a pass the staged
        object stays, so that compiled code sees one), "meta". A resident weight
        is a read-only parameter on the device, from the first pass on (at once,
        if all are resident).
    name: the model's in hoistd; None: its class and content.
    device: torch's name or hoistd's index; None: the current GPU if hoistd has
        it, else hoistd's first.
    session: None: one for the whole process, as hoist.connect() finds it.
    exclude_kwargs: arguments of the module that are not moved to the device.
    progress: True, False, or None for a bar if stderr is a terminal; with tqdm.
    deadline: seconds to wait for space, whenever something is staged.
    in_place: zero-copy weights (a mixture's experts, an embedding), in the
        forms of `exclude`, or "auto" for those that hoist knows. They are not
        staged: each stays at one address, and the device reads the touched
        pieces over the link. The most touched pieces are cached in device
        memory, within the budget beyond the groups. The weights stay on the
        host while the module is attached (host.in_place in hoistd.toml).
    ahead: copies cold experts of in_place= to the device before their layer
        needs them, for batches of few tokens. "auto": those that the layer's
        router names over the output of the layer before the last. Or a function
        of a layer's number and that output, which returns the experts' numbers
        on the device, likeliest first, or None. Outputs do not depend on it.
        It takes device memory for twice 6 experts, within the budget.
    hand_over: "whole": the module keeps its own weights until attach has
        succeeded, beside hoistd's copy. "by_group": each group's are released
        once hoistd has it, for lack of memory for both; a failed attach then
        needs hoistd to restore them.
    terms: of the plan: `weight` and `priority` of this module's share of the
        link, and its rate limit, `max_bytes_per_second`, on each device;
        `stage_deadline`, seconds for a group's bytes to arrive, after which
        results are void (see check), and for a hoistd to restart. See
        PlanTerms.

    If hoistd ends, the pass that it hits raises Unavailable. The next call
    attaches the module again, to the hoistd that listens there then: it finds
    the weights by content, or in their files. It waits for that hoistd for
    `stage_deadline`, once; later calls try. A fully resident module goes on.
    NotFound: hoistd restarted without the weights (see detach); DataLoss:
    files have changed.

    A failed attach leaves the module as it was, with the very same tensors.
    hoistd forgets what it published for it, unless another session uses that.
    (With hand_over="by_group" they are copies of hoistd's; DataLoss names lost
    ones, which are on the meta device.) Damaged weights of hoistd's are
    replaced by the module's.
    Raises FailedPrecondition (attached already, or under accelerate's or
    diffusers' hooks); ResourceExhausted (the budget is too small; the text
    names one that would be enough); Unavailable (no hoistd); AlreadyExists
    (`name` has other weights); Unimplemented (a tensor subclass that does not
    flatten).
    """
    options: AttachOptions = {
        "groups": groups, "order": order, "storage_dtype": storage_dtype,
        "skip": skip, "exclude": exclude, "idle": idle, "name": name,
        "device": device, "session": session, "exclude_kwargs": exclude_kwargs,
        "progress": progress, "deadline": deadline, "in_place": in_place,
        "ahead": ahead, "hand_over": hand_over, **terms}
    attach_as(module, Wanted.of(budget, options)).commit()
    return module


def attach_as(module: nn.Module, wanted: Wanted) -> Attachment:
    """Attaches the module; its own tensors are kept until `commit`, and
    restored by `undo`."""
    root = unwrap(module)
    refuse_managed(root)
    check_wanted(wanted)
    excluded = matching_modules(root, wanted.exclude)
    specs = lay_out(root, wanted.groups, excluded, wanted.in_parts)
    if not specs:
        raise InvalidArgument("the module has no weights to attach")
    if wanted.storage_dtype is not None:
        choose_storage(root, specs, wanted.storage_dtype, wanted.skip)
    placed = choose(root, specs, wanted.in_place, wanted.session)
    everything = [*specs, *pieces_of(placed)]
    original, name, source = _find(root, wanted, everything)
    total = sum(spec.nbytes for spec in everything)

    def assembled(original: Model | None, name: str) -> Attachment:
        with progress_bar(wanted.progress, f"attach {name}", total) as advance:
            return assemble(
                root, wanted, specs, excluded, original, name, advance,
                lambda model: Published(model, source), Uses(),
                source.hex()[:32] if source is not None else None, placed)

    try:
        return assembled(original, name)
    except DataLoss:
        if original is None or not all(spec.in_hand for spec in everything):
            raise
    # Damaged: the owner can repair it, and others publish one of their own.
    return assembled(None, original.name if original.owner == os.getuid()
                     else name)


def _find(root: nn.Module, wanted: Wanted, everything: Sequence[GroupSpec]
          ) -> tuple[Model | None, str, bytes | None]:
    """The model of these weights, if hoistd has it; its present or future name;
    and the content hash, if it is known before hoistd computes it."""
    name = wanted.name
    if all(stored.meta_at_first for spec in everything
           for stored in spec.stored):
        if name is None:
            raise FailedPrecondition(
                "the module's weights are on the meta device; give name=, the "
                "model that hoistd has them in, or use hoist.load for files")
        original = known_model(wanted.session, name, everything, cast=False)
        if original is None:
            raise NotFound(
                f'hoistd has no model "{name}" with all of these groups')
        return original, name, None
    if name is not None and wanted.storage_dtype is None:
        return None, name, None
    source = content_of(everything)
    if name is not None:
        return None, name, source
    return (same_model(wanted.session, source),
            f"{type(root).__name__}-{source.hex()[:16]}", source)


def detach(module: T) -> T:
    """Restores an attached module's, or a pipeline's, own weights; returns its
    argument.

    Bytes, types, strides, ties and devices are those before attach (of a
    loaded module: on the CPU), as are hooks and forward. It also works after
    hoistd's end or restart, for weights in files, in the new hoistd or in this
    process; for attached weights it waits as long as attach does.

    It waits for a silent hoistd (stopped, or hanging) for 5 seconds at most:
    then weights come from files, or DeadlineExceeded is raised, and the module
    stays attached and goes on with hoistd.

    NotFound: the module is not attached. DataLoss: hoistd ended with some of
    the weights; the module is detached all the same, with those on the meta
    device.
    """
    pipeline = _pipeline(module)
    if pipeline is not None:
        pipeline.detach()
    else:
        detach_module(module)
    return module


def detach_module(module: object, without_loss: bool = False) -> None:
    """See Attachment."""
    found = _attachment(module)
    if found.root is not unwrap(module):
        raise FailedPrecondition(
            f"a {type(found.root).__name__} that holds this module was "
            "attached; detach that")
    try:
        found.detach(without_loss)
    finally:
        if attachment_of(found.root) is None:
            libraries.forget(found.root)


@overload
def stage(what: str) -> contextlib.AbstractContextManager[nn.Module]: ...


@overload
def stage(what: M) -> contextlib.AbstractContextManager[M]: ...


@contextlib.contextmanager
def stage(what: nn.Module | str) -> Iterator[Any]:
    """Makes a module's weights usable on the device within the block, outside
    of forward. Waits for the bytes, and at the block's end for the current
    stream.

    what: a module, attached or within one; or "model/group", hoistd's names.

    Yields the module; for a group, the attached one.
    NotFound: no such module is attached in this process.
    """
    if isinstance(what, str):
        model, _, group = what.rpartition("/")
        found = find_attached(model or group)
        if found is None:
            raise NotFound(f'no module of the model "{model or group}" is '
                           "attached in this process")
        with found.passes.outside_plan(
                found.groups_named(group if model else None)):
            yield found.root
        return
    found = _attachment(what)
    with found.passes.outside_plan(
            found.groups_below(set(unwrap(what).modules()))):
        yield what


def stats(module: nn.Module | Pipeline) -> AttachStats:
    """Facts and counts of an attached module; of a pipeline, PipelineStats."""
    return (_pipeline(module) or _attachment(module)).stats()


def set_budget(module: nn.Module | Pipeline, budget: Budget) -> None:
    """Changes the device memory of an attached module or pipeline, between
    passes. ResourceExhausted leaves it unchanged. After hoistd's end the module
    is attached again first."""
    (_pipeline(module) or _attachment(module)).set_budget(parse(budget))


def sleep(module: nn.Module | Pipeline) -> None:
    """Returns the device memory of an attached module or pipeline to hoistd,
    between passes. Its weights stay in hoistd's host tier, and readable. The
    next pass, or `wake`, takes the budget again.

    FailedPrecondition: it is running, or a CUDA graph of its plan was captured.
    Other CUDA graphs of it are void, as after `set_budget`.
    """
    (_pipeline(module) or _attachment(module)).sleep()


def wake(module: nn.Module | Pipeline) -> None:
    """Takes device memory for a sleeping module before its next pass does, and
    begins to copy; of a pipeline, for the component that is called first. Hot
    zero-copy weights come back here alone. Does nothing if it is awake.

    ResourceExhausted: others have too much of the device; it stays asleep.
    """
    (_pipeline(module) or _attachment(module)).wake()


def retry_on_oom(module: nn.Module, call: Callable[[], R], *,
                 spare: Amount = None, deadline: float = 10.0) -> R:
    """Calls `call`, and once more if it lacks device memory. Returns its result.

        output = hoist.retry_on_oom(model, lambda: model(x), spare="2GiB")

    After torch.OutOfMemoryError torch's cache is emptied, and hoistd's pool
    leaves memory to this process while the second call runs: idle weights go,
    and modules with the default budget give way, this one too, and then stream.
    torch's cache keeps what the call allocates. The first call may end at any
    operator. What it wrote by then stays written: a KV cache, inputs in place.
    `call` must restore that itself.

    module: an attached module on the device that lacks memory. It may run in
        `call` alone, or within more of the caller's code.
    spare: bytes, "2GiB", or a float for a part of the module's bytes. None: the
        free memory that torch's failed allocation lacked; a call that goes on
        to allocate more needs a number.
    deadline: seconds to wait for others to give way.

    Second calls of one process take turns. ResourceExhausted, from torch's
    error: hoistd has less, or others keep it (the text names the bytes that it
    could leave), or the second call lacks memory, too. Unavailable: hoistd has
    ended. torch's error itself: the current stream is being captured.
    """
    return retry(_attachment(module), call, spare, deadline)


def advance(module: nn.Module | Pipeline, *, wait: bool = False) -> None:
    """Moves pieces of zero-copy weights that are to become hot, or cold.
    Passes, and replays of CUDA graphs, move some each; this moves all at once,
    between passes, and waits for the GPU.

    wait: also for pieces that are still being copied to the device.
    """
    (_pipeline(module) or _attachment(module)).advance(wait)


def check(module: nn.Module | Pipeline) -> None:
    """Waits for this process's work on the module's devices, on all streams,
    and raises if results of an attached module or pipeline may be wrong:
    hoistd, the session or a deadline ended meanwhile.

    FailedPrecondition: the current stream is being captured.
    """
    (_pipeline(module) or _attachment(module)).check()


def check_wanted(wanted: Wanted) -> None:
    """Checks the options before any hand-over."""
    check_terms(wanted.terms)
    if wanted.idle not in get_args(Idle):
        raise InvalidArgument(
            f"idle={wanted.idle!r} is none of {get_args(Idle)}")
    if wanted.hand_over not in get_args(HandOver):
        raise InvalidArgument(
            f"hand_over={wanted.hand_over!r} is none of {get_args(HandOver)}")
    if wanted.ahead is not None and wanted.in_place is None:
        raise InvalidArgument('ahead= is for weights of in_place=; "auto" has '
                              "a mixture's experts")
    if wanted.storage_dtype is not None:
        check_storage_type(wanted.storage_dtype)
    if isinstance(wanted.order, str) and wanted.order != "learn":
        raise InvalidArgument(f'order={wanted.order!r} is neither "learn" nor '
                              "a list of groups' names")


def unwrap(module: object) -> nn.Module:
    """The module that torch.compile or DataParallel's kin wrap."""
    if not isinstance(module, nn.Module):
        raise InvalidArgument(
            f"{type(module).__name__} is no torch.nn.Module; for a pipeline "
            "there is hoist.attach_pipeline")
    found: nn.Module = getattr(module, "_orig_mod", module)
    return found


class _Attached(Protocol):
    """attach_pipeline's result; its module is above this one."""

    def detach(self) -> None: ...

    def stats(self) -> AttachStats: ...

    def set_budget(self, budget: Budget) -> None: ...

    def sleep(self) -> None: ...

    def wake(self) -> None: ...

    def advance(self, wait: bool) -> None: ...

    def check(self) -> None: ...


def _pipeline(what: object) -> _Attached | None:
    """None: it is no attached pipeline."""
    if isinstance(what, nn.Module) or not hasattr(what, "__dict__"):
        return None
    return cast("_Attached | None", vars(what).get("_hoist"))


def _attachment(what: object) -> Attachment:
    module = unwrap(what)
    found = attachment_of(module)
    if found is None:
        found = next(attachments_in(module), None)
    if found is None:
        raise NotFound(f"this {type(module).__name__} is not attached to hoist")
    return found


def refuse_managed(module: nn.Module) -> None:
    """FailedPrecondition: another library already moves these weights."""
    if next(attachments_in(module), None) is not None:
        raise FailedPrecondition(
            "the module, or a part of it, is attached already; "
            "hoist.detach it first")
    for name, one in module.named_modules():
        if hasattr(one, "_hf_hook"):
            raise FailedPrecondition(
                f'accelerate manages "{name or "the module"}" (device_map or '
                "cpu_offload); accelerate.hooks.remove_hook_from_submodules("
                "module) first, or load it without device_map")
        hooks = getattr(one, "_diffusers_hook", None)
        if hooks is not None and any("offload" in key or "layerwise" in key
                                     for key in hooks.hooks):
            raise FailedPrecondition(
                f'diffusers offloads or casts "{name or "the module"}" '
                "already; attach a module without those hooks, or use "
                "hoist.compat in their place")
