"""An Offload: the offloaded layers of a worker, and its passes."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Iterable, Iterator, Sequence

import torch
from torch import nn

from .._errors import (FailedPrecondition, InvalidArgument,
                       ResourceExhausted)
from ..nn._plan.budget import Amount, to_bytes
from ..nn._run.turns import calls_on_stack
from . import _finding
from ._counts import OffloadStats
from ._engine import Engine, Saving
from ._hooks import Hooks, compile_anew
from ._keep import is_keeping, keep, kept_bytes
from ._parking import Parked
from ._runs import LayerRun, Pass


class _Thread(threading.local):
    """A thread's position: its pass, and its layer there."""

    def __init__(self) -> None:
        self.forward: Pass | None = None  # The current one, or the last one.
        self.kept_before = 0
        self.leave_all()

    def leave_all(self) -> None:
        """It is in no module."""
        self.root: nn.Module | None = None  # The running one,
        self.root_depth = 0  # nested so many times.
        self.between: Saving | None = None  # For the root, beside layers.
        self.layer: Any = None  # The running one,
        self.layer_depth = 0  # nested so many times.
        self.run: LayerRun | None = None  # The layer's, or already the next.
        self.saving: Saving | None = None  # The layer's.
        self.seen: set[nn.Module] = set()  # Layers of this pass.
        self.keeps: list[keep] = []  # Of modules of `skip`.


class Offload:
    """The result of hoist.offload_activations; see README.md.

    Threads: any may run layers, each its own passes. Call `close` between
    passes.
    Owns: the hooks in the modules. Saved tensors own themselves, so a backward
    may follow close().
    """

    def __init__(self, engine: Engine, root: nn.Module | None,
                 layers: Sequence[nn.Module], skip: Iterable[nn.Module],
                 budget: Amount, keep_last: int) -> None:
        self._engine = engine
        self._given = list(layers)
        self._budget = budget
        self._keep_last = keep_last
        self._layers = len(layers) or None  # If it is known.
        self._kept = keep_last  # The number of last layers that stay, for now.
        self._sizes: list[int] = []  # Of the last whole pass's layers; bytes.
        self._most_live = 1  # Concurrent passes.
        self._passes: weakref.WeakSet[Pass] = weakref.WeakSet()
        self._thread = _Thread()
        self._hooks = Hooks()
        self._step = -1
        # The first step that needs each parked block.
        self._expected: list[tuple[int, weakref.ref[Parked]]] = []
        self._is_closed = False
        for layer in layers:
            self._hooks.add(layer, self._begin_layer, self._end_layer)
        for module in skip:
            self._hooks.add(module, self._begin_skip, self._end_skip)
        if root is not None:
            self._hooks.add(root, self._begin_root, self._end_root)
        compile_anew()

    @contextlib.contextmanager
    def layer(self) -> Iterator[None]:
        """Makes the block's saved tensors a layer, for layers that are no
        modules. Blocks within layers are a part of them.

        Layers belong to one pass until a backward of it begins.
        """
        self._check_open()
        mark = object()
        self._begin(mark)
        try:
            yield
        finally:
            self._end(mark)

    def stats(self) -> OffloadStats:
        """Counts so far; kept_bytes["keep"] counts this thread's saved bytes
        under hoist.keep() in its passes."""
        with self._engine.lock:
            return self._engine.counts.told(len(self._sizes),
                                            self._engine.memory,
                                            self._engine.parking)

    def park(self, until: int | None = None) -> int:
        """Moves all offloaded tensors of passes from the host to hoistd's disk;
        returns the bytes. For passes whose backward is far away: others use the
        host memory meanwhile. Call it between passes.

        A backward reads its tensors back, and waits for the disk; with `until`
        hoistd reads ahead during the step before that one (see step()).

        FailedPrecondition: within a pass, or hoistd has no disk for it
        (disk.spill_dir), or cannot write now. ResourceExhausted: no room on the
        host for the transfer. The rest stays as it is. InvalidArgument: `until`
        is not a step's number; nothing has moved.
        """
        self._check_open()
        if until is not None and (isinstance(until, bool)
                                  or not isinstance(until, int)):
            raise InvalidArgument(f"until={until!r}: a step's number, an int")
        if self._thread.root is not None or self._thread.layer is not None:
            raise FailedPrecondition("a pass is under way; park between passes")
        parked = 0
        passes = [one for one in self._all_passes() if not one.has_come_back]
        for forward in passes:
            forward.finish()
        self._engine.copier.synchronize()
        for run in (run for one in passes for run in one.runs()):
            for went in self._engine.park(run):
                parked += went.nbytes
                if until is not None:
                    self._expected.append((until, weakref.ref(went)))
        self._engine.memory.shrink()
        self._forget_parked()
        self._look_ahead()
        return parked

    def step(self) -> None:
        """A step of the worker begins; the first is step 0. Only `until` of
        park() looks at them."""
        self._step += 1
        self._look_ahead()

    def _forget_parked(self) -> None:
        """Forgets blocks on hoistd's disk that are no longer needed."""
        with self._engine.lock:
            self._engine.parking.forget_some()

    def _look_ahead(self) -> None:
        waiting = []
        for until, parked in self._expected:
            found = parked()
            if found is not None and until > self._step + 1:
                waiting.append((until, parked))
            elif found is not None:
                found.expect()
        self._expected = waiting

    def close(self) -> None:
        """Makes layers plain again. Offloaded tensors return on demand, and the
        host memory with the last of them."""
        if self._is_closed:
            return
        self._is_closed = True
        self._hooks.remove()
        compile_anew()
        self._engine.memory.close()
        self._forget_parked()

    def __enter__(self) -> Offload:
        self._check_open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise FailedPrecondition(
                "this Offload is closed; make another by "
                "hoist.offload_activations")

    # Passes.

    def _begin_root(self, root: nn.Module) -> None:
        here = self._thread
        if here.root is not None and _is_over(here.root, root):
            self._cut_short()
        if here.root is not None:
            here.root_depth += 1  # It calls itself.
        if here.root is not None or not _saves():
            return
        self._begin_pass([root])  # Perhaps a copy of the given module.
        here.root, here.root_depth = root, 1
        between = Saving(self._engine, self._run_between)
        between.enter()
        here.between = between

    def _end_root(self, root: nn.Module) -> None:
        here = self._thread
        if here.root is None:
            return
        here.root_depth -= 1
        if here.root_depth > 0:
            return
        here.root = None
        if here.between is not None:
            here.between.leave()
            here.between = None
        assert here.forward is not None
        self._count_keeps()
        if here.run is not None:  # Of tensors saved after the last layer.
            with self._engine.lock:
                self._engine.counts.keep("between", here.run.nbytes)
        here.run = None
        self._whole(here.forward)

    def _begin_pass(self, roots: Sequence[nn.Module]) -> None:
        here = self._thread
        if here.forward is not None:
            self._whole(here.forward)
            here.forward.finish()
        self._engine.weights = _finding.weights_of(roots)
        self._engine.memory.ask_again()
        self._forget_parked()
        with self._engine.lock:
            self._engine.counts.passes += 1
        self._plan()
        here.forward = Pass(self._engine, self._layers, self._kept)
        here.run, here.seen = None, set()
        here.kept_before = kept_bytes()
        with self._engine.lock:
            self._passes.add(here.forward)

    def _all_passes(self) -> list[Pass]:
        """The live ones; other threads begin more meanwhile."""
        with self._engine.lock:
            return list(self._passes)

    def _whole(self, forward: Pass) -> None:
        """A pass has had all its layers. One that calls only some of them, or
        was left by an error, is not taken for a shorter model."""
        if len(forward.sizes) >= max(1, len(self._given)):
            self._sizes = list(forward.sizes)
            self._layers = len(self._sizes)

    def _plan(self) -> None:
        """Chooses how many of the last layers stay, from the last pass.

        ResourceExhausted: the budget is too small for any.
        """
        if self._budget is None or not self._sizes:
            return
        live = 1 + sum(one.is_live for one in self._all_passes())
        live = self._most_live = max(live, self._most_live)
        sizes = self._sizes
        budget = to_bytes(self._budget, sum(sizes)) // live
        kept, total = 0, 0
        while kept < len(sizes) and total + sizes[-1 - kept] <= budget:
            kept += 1
            total += sizes[-kept]
        least = max((sum(pair) for pair in zip(sizes, sizes[1:])),
                    default=sum(sizes))
        if least > budget:
            raise ResourceExhausted(
                f"budget={self._budget!r} is {budget} bytes of device memory "
                f"for each of {live} passes, and two layers in a row save "
                f"{least}; give {least * live} at least, or smaller layers")
        self._kept = max(kept, self._keep_last)

    # Layers.

    def _begin_layer(self, layer: nn.Module) -> None:
        self._begin(layer)

    def _end_layer(self, layer: nn.Module) -> None:
        self._end(layer)

    def _begin(self, layer: Any) -> None:
        here = self._thread
        if isinstance(here.layer, nn.Module) and _is_over(here.layer, layer):
            self._cut_short()
        if here.layer is not None:
            here.layer_depth += here.layer is layer  # It calls itself.
            return
        if not (_saves() or here.root is not None):
            return
        if here.root is None and self._is_new_pass(layer):
            self._begin_pass(self._given)
        assert here.forward is not None
        here.layer, here.layer_depth = layer, 1
        if isinstance(layer, nn.Module):
            here.seen.add(layer)
            # Weights made for this call, as by FSDP and hoist.attach.
            self._engine.weights |= _finding.weights_of([layer])
        run = self._next_run()
        if _saves():
            saving = Saving(self._engine, lambda: run)
            saving.enter()
            here.saving = saving

    def _end(self, layer: Any) -> None:
        here = self._thread
        if here.layer is not layer:
            return
        here.layer_depth -= 1
        if here.layer_depth > 0:
            return
        here.layer = None
        if here.saving is not None:
            here.saving.leave()
            here.saving = None
        assert here.forward is not None and here.run is not None
        run, here.run = here.run, None
        self._count_keeps()
        self._sent(here.forward, run)

    def _count_keeps(self) -> None:
        here = self._thread
        before, here.kept_before = here.kept_before, kept_bytes()
        with self._engine.lock:
            self._engine.counts.keep("keep", here.kept_before - before)

    def _sent(self, forward: Pass, run: LayerRun) -> None:
        if not forward.is_offloaded(run.position):
            with self._engine.lock:
                self._engine.counts.keep("last", run.nbytes)
        if forward.end(run) or self._budget is None:
            return
        if isinstance(self._budget, float) and not self._sizes:
            return  # A fraction of an unknown size.
        budget = to_bytes(self._budget, sum(self._sizes))
        live = self.stats().live_bytes
        if live > budget:
            memory = self._engine.memory
            raise ResourceExhausted(
                f"{live} bytes of activations are on the device, the budget is "
                f"{budget}, and layer {run.position} of {self._layers} finds "
                f"no room in the arena of {memory.leased_bytes} bytes; give "
                f"arena={self._least_arena(forward)} at least, or a larger "
                f"budget ({memory.refusal})")

    def _least_arena(self, forward: Pass) -> int:
        """For all offloaded layers of a pass; an estimate until a pass was
        whole."""
        sizes = self._sizes or forward.sizes
        if self._layers is None:
            return sum(sizes)
        offloaded = self._layers - self._kept
        return sum(sizes[:offloaded]) if self._sizes else (
            max(sizes) * offloaded)

    def _is_new_pass(self, layer: Any) -> bool:
        here = self._thread
        return (here.forward is None or here.forward.has_come_back
                or layer in here.seen or not here.forward.is_live)

    def _run_between(self) -> LayerRun | None:
        """Tensors that the root saves beside layers belong to the next layer:
        checkpoints of layers save their inputs there. Tensors that a layer's
        own pair leaves to this one stay."""
        return self._next_run() if self._thread.layer is None else None

    def _next_run(self) -> LayerRun:
        here = self._thread
        if here.run is None:
            assert here.forward is not None
            here.run = here.forward.begin()
        return here.run

    # Skipped modules.

    def _begin_skip(self, module: nn.Module) -> None:
        here = self._thread
        if here.root is not None or here.layer is not None:
            here.keeps.append(keep())
            here.keeps[-1].__enter__()

    def _end_skip(self, module: nn.Module) -> None:
        if self._thread.keeps:
            self._thread.keeps.pop().__exit__()

    def _cut_short(self) -> None:
        """A pass was left by KeyboardInterrupt or the like, without hooks."""
        here = self._thread
        for entered in (*reversed(here.keeps), here.saving, here.between):
            if isinstance(entered, keep):
                entered.__exit__()
            elif entered is not None:
                entered.leave()
        here.leave_all()


def _is_over(entered: nn.Module, begun: Any) -> bool:
    """No call of the entered module still runs, except one that has just
    begun."""
    return calls_on_stack(entered) <= (entered is begun)


def _saves() -> bool:
    """Tensors that are saved now are for a later backward, and may be moved."""
    return (torch.is_grad_enabled() and not is_keeping()
            and torch._C._current_graph_task_id() == -1)
