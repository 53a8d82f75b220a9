"""hoist.attach, detach, stage, stats, set_budget; load is in _load."""

from __future__ import annotations

import contextlib
from typing import (TYPE_CHECKING, Any, Iterator, Mapping, Protocol, cast,
                    get_args, overload)

import torch
from torch import nn

from .. import _session
from .._errors import FailedPrecondition, InvalidArgument, NotFound
from .._plan import PlanTerms, check_terms
from . import _libraries
from ._assemble import assemble
from ._attachment import (Attachment, attachment_of, attachments_in,
                          find_attached)
from ._budget import Budget, to_bytes
from ._casting import (DEFAULT_SKIP, Patterns, as_patterns,
                       check_storage_type, modules_that_match)
from ._grouping import Groups
from ._hand_over import content_of, known_model, same_model
from ._in_place import choose, pieces_of
from ._layout import choose_storage, lay_out
from ._options import (Idle, InPlaceOption, M, Names, Pipeline, T, Wanted,
                       Where, as_names)
from ._link import default_session
from .._progress import progress_bar
from ._sources import Published
from ._stats import AttachStats

if TYPE_CHECKING:
    from typing_extensions import Unpack


def attach(module: M, budget: Budget = None, *, groups: Groups = "block",
           order: Names = "learn", storage_dtype: torch.dtype | None = None,
           skip: Patterns = DEFAULT_SKIP, exclude: Patterns = (),
           idle: Idle = "cpu", name: str | None = None, device: Where = None,
           session: _session.Session | None = None, exclude_kwargs: Names = (),
           progress: bool | None = None, deadline: float = 60.0,
           in_place: InPlaceOption = None,
           **terms: Unpack[PlanTerms]) -> M:
    """Puts a module's weights under hoist; returns the module.

    Its weights are handed to hoistd group by group, and the module's own are
    let go on the way; from then on each group is staged on the device before
    the modules that need it run. The module computes what it computed before.
    Where hoistd has the same weights in the same groups already, nothing is
    handed over. Weights on the meta device are the model's called `name`.

    budget: device memory for the weights: bytes, "8GiB", a float in (0, 1] of
        the model's bytes, None for what hoistd can promise; or {device: any of
        these}, which spreads the groups over several devices in order.
    groups: what is staged together: "block" (each element of the outermost
        lists and sequences, and each largest subtree beside them), ("block",
        n) for n of those, "leaf", {group: [module names]}, or a function of
        (name, module) that gives a group's name or None.
    order: in which groups are needed, by name; "learn": from the first pass.
    storage_dtype: store parameters as this smaller floating type, in hoistd and
        on the link, and cast them back on the device. What they were is kept.
    skip: modules that storage_dtype leaves alone: patterns of names, classes or
        modules; one, or several.
    exclude: modules that hoist leaves alone, said in the same ways.
    idle: what a weight that comes and goes is outside its forward: "cpu" (the
        true value, read when it is looked at), "slot" (the same between passes;
        within a pass nothing is put back, so that compiled code sees one
        object), "meta". One that the budget keeps on the device is a read-only
        parameter there, from the first pass on (at once, if all of them are).
    name: the model's in hoistd; None: by its class and content.
    device: torch's name or hoistd's index; None: the current GPU if hoistd has
        it, else hoistd's first.
    session: None: one for the whole process, as hoist.connect() finds it.
    exclude_kwargs: arguments of the module that are not moved to the device.
    progress: True, False, or None for a bar if stderr is a terminal; with tqdm.
    deadline: seconds to wait for space, whenever something is staged.
    in_place: weights that are touched in part (a mixture's experts, an
        embedding), said as for `exclude`, or "auto" for those that hoist knows.
        They are not staged: each stays at one address, and the device reads
        over the link what it touches of it, except for the pieces that are
        touched most, which are in device memory as far as the budget goes
        beyond the groups. They stay on the host as long as the module is
        attached (host.in_place in hoistd.toml).
    terms: of the plan: `weight` and `priority` of this module's share of the
        link, and its cap, `max_bytes_per_second`, of each device;
        `stage_deadline`, seconds for a group's bytes to come, after which
        results are void (see check), and for a hoistd that has ended to be
        there again. See PlanTerms.

    If hoistd ends, the pass that is hit raises Unavailable. The next call of the
    module attaches it again, as it was, to the hoistd that listens there then:
    it finds the weights by content, or in the files they were loaded from. It
    waits for that hoistd for `stage_deadline`, once; later calls try. A module
    that is on the device as a whole is not hit, and goes on. NotFound:
    it came back without the weights (see detach); DataLoss: files have changed.

    If it fails, the module is as it was. Raises FailedPrecondition (attached
    already, or under accelerate's or diffusers' hooks), ResourceExhausted (the
    budget is too small, and what would do), Unavailable (no hoistd),
    AlreadyExists (`name` has other weights), Unimplemented (a tensor subclass
    that does not flatten).
    """
    root = unwrap(module)
    refuse_managed(root)
    wanted = Wanted(
        budget, groups, order, storage_dtype, as_patterns("skip", skip),
        as_patterns("exclude", exclude), idle, name, device,
        session or default_session(), as_names(exclude_kwargs), progress,
        deadline, in_place, **terms)
    check_wanted(wanted)
    excluded = modules_that_match(root, wanted.exclude)
    specs = lay_out(root, groups, excluded)
    if not specs:
        raise InvalidArgument("the module has no weights to attach")
    if storage_dtype is not None:
        choose_storage(root, specs, storage_dtype, wanted.skip)
    placed = choose(root, specs, in_place, wanted.session)
    everything = [*specs, *pieces_of(placed)]
    on_meta = all(stored.device.type == "meta"
                  for spec in everything for stored in spec.stored)
    if on_meta and name is None:
        raise FailedPrecondition(
            "the module's weights are on the meta device; give name=, the "
            "model that hoistd has them in, or use hoist.load for files")
    original = None
    source = None  # What the weights are, where it is known before hoistd says.
    if on_meta:
        assert name is not None
        original = known_model(wanted.session, name, everything, cast=False)
        if original is None:
            raise NotFound(
                f'hoistd has no model "{name}" with all of these groups')
    elif name is None or storage_dtype is not None:
        source = content_of(everything)
    if name is None:
        assert source is not None
        name = f"{type(root).__name__}-{source.hex()[:16]}"
        original = same_model(wanted.session, source)
    total = sum(spec.nbytes for spec in everything)
    with progress_bar(progress, f"attach {name}", total) as advance:
        assemble(root, wanted, specs, excluded, original, name, advance,
                 lambda model: Published(model, source),
                 source.hex()[:32] if source is not None else None, placed)
    _libraries.know(root)
    return module


def detach(module: T) -> T:
    """Gives an attached module, or a pipeline's, their own weights again;
    returns what it was given.

    Bytes, types, strides, ties and devices are what they were before attach
    (of a module that was loaded: on the CPU), and so are hooks and forward.
    Whether hoistd lives, has ended or was started again does not matter where
    weights are in files, in the new hoistd or in this process; for what this
    module handed over it waits as long as attach says.

    A hoistd that gives no sign of life (it is stopped, or hangs) is waited for
    no longer than 5 seconds: weights come from files then, or DeadlineExceeded
    is raised, and the module stays attached and goes on when hoistd does.

    NotFound: the module is not attached. DataLoss: hoistd ended, and some
    weights with it; the module is detached all the same, and has those on the
    meta device.
    """
    pipeline = _pipeline(module)
    if pipeline is not None:
        pipeline.detach()
        return module
    found = _attachment(module)
    if found.root is not unwrap(module):
        raise FailedPrecondition(
            f"a {type(found.root).__name__} that holds this module was "
            "attached; detach that")
    try:
        found.detach()
    finally:
        if attachment_of(found.root) is None:
            _libraries.forget(found.root)
    return module


@overload
def stage(what: str) -> contextlib.AbstractContextManager[nn.Module]: ...


@overload
def stage(what: M) -> contextlib.AbstractContextManager[M]: ...


@contextlib.contextmanager
def stage(what: nn.Module | str) -> Iterator[Any]:
    """Makes the weights of a module usable on the device for the block, for
    what does not go through forward. Waits for the bytes, and at the block's
    end for the current stream.

    what: a module, attached or within one; or "model/group", hoistd's names.

    Gives the module; of a group, the one that is attached.
    NotFound: no such module is attached in this process.
    """
    if isinstance(what, str):
        model, _, group = what.rpartition("/")
        found = find_attached(model or group)
        if found is None:
            raise NotFound(f'no module of the model "{model or group}" is '
                           "attached in this process")
        with found.passes.beside_the_plan(
                found.groups_named(group if model else None)):
            yield found.root
        return
    found = _attachment(what)
    with found.passes.beside_the_plan(
            found.groups_below(set(unwrap(what).modules()))):
        yield what


def stats(module: nn.Module | Pipeline) -> AttachStats:
    """What an attached module is and has done so far; of a pipeline it is
    PipelineStats."""
    return (_pipeline(module) or _attachment(module)).stats()


def set_budget(module: nn.Module | Pipeline, budget: Budget) -> None:
    """Changes the device memory of an attached module or pipeline, between
    passes. On ResourceExhausted it stays as it was. Where hoistd has ended it
    is attached again first."""
    (_pipeline(module) or _attachment(module)).set_budget(budget)


def advance(module: nn.Module | Pipeline, *, wait: bool = False) -> None:
    """Of weights that are read in place, those pieces change places that are to
    become hot, or cold. Passes, and replays of CUDA graphs, bring some each;
    this brings all at once, between passes, and waits for the GPU.

    wait: also for pieces that are still being copied to the device.
    """
    (_pipeline(module) or _attachment(module)).advance(wait)


def check(module: nn.Module | Pipeline) -> None:
    """Waits for what this process has put on the module's devices, on any
    stream, and raises if results of an attached module or pipeline may not be
    trusted: hoistd, the session or a deadline ended while they were computed.

    FailedPrecondition: the current stream is being captured.
    """
    (_pipeline(module) or _attachment(module)).check()


def check_wanted(wanted: Wanted) -> None:
    """Before anything is handed over."""
    check_terms(wanted.terms)
    if wanted.idle not in get_args(Idle):
        raise InvalidArgument(
            f"idle={wanted.idle!r} is none of {get_args(Idle)}")
    amounts: Any = (wanted.budget.values()
                    if isinstance(wanted.budget, Mapping) else [wanted.budget])
    for amount in amounts:
        to_bytes(amount, 1)
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
    """What attach_pipeline makes, which is above this."""

    def detach(self) -> None: ...

    def stats(self) -> AttachStats: ...

    def set_budget(self, budget: Budget) -> None: ...

    def advance(self, wait: bool) -> None: ...

    def check(self) -> None: ...


def _pipeline(what: object) -> _Attached | None:
    """None: it is no pipeline that is attached."""
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
    """FailedPrecondition: somebody else moves these weights already."""
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
