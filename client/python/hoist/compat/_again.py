"""Attachment with options from several calls."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from torch import nn

from .._errors import AlreadyExists, FailedPrecondition, HoistError
from ..nn import attach
from ..nn._api.attach import detach_module, unwrap
from ..nn._api.attachment import Attachment, attachment_of
from ..nn._api.options import AttachOptions
from ..nn._api.pipeline import pipeline_of
from ..nn._plan.budget import Amount, Budget, to_bytes
from ..nn._tree.layout import lay_out

# Without the name: other groups or types make another model.
_KEPT = {"budget", *AttachOptions.__annotations__} - {"name", "progress"}


def attach_with(module: nn.Module, **options: Any) -> None:
    """Attaches. A module that is already attached keeps its other options, so
    casting and offloading may be requested in either order. On an error the
    module is unchanged."""
    before = attachment_of(unwrap(module))
    if before is None:
        if options.get("storage_dtype") is not None and "budget" in options:
            options["budget"] = of_bytes(options["budget"],
                                         lambda: _given_bytes(module))
        attach(module, **options)
        return
    pipeline = pipeline_of(before)
    if pipeline is None:
        _exchange(module, before, options)
        return
    if options.pop("budget", None) is not None:
        raise FailedPrecondition(
            "the module has its memory of its pipeline's budget; leave budget= "
            "out, or hoist.detach the module first")
    with pipeline.exchanging(before) as budget:
        _exchange(module, before, {**options, "budget": budget}, budget)


def _exchange(module: nn.Module, before: Attachment, options: dict[str, Any],
              budget: int | None = None) -> None:
    """budget: replaces both budgets; None: each has its own."""
    # The current options: hoistd may have ended, and the session with it.
    kept = {name: getattr(before.wanted, name) for name in _KEPT}
    if budget is not None:
        kept["budget"] = budget
    wanted = {**kept, **options}
    # Relative to the original weights, whatever cast came since.
    wanted["budget"] = of_bytes(wanted["budget"],
                                lambda: before.original.image_bytes)
    detach_module(module, without_loss=True)
    try:
        attach(module, **wanted)
    except BaseException:
        _attach_again(module, before, kept)
        raise


def _attach_again(module: nn.Module, before: Attachment,
                  kept: dict[str, Any]) -> None:
    wanted = {**kept, "budget": of_bytes(kept["budget"],
                                         lambda: before.model.image_bytes)}
    try:
        try:
            attach(module, **wanted, name=before.wanted.name)
        except AlreadyExists:  # The name belongs to the original files.
            attach(module, **wanted)
    except HoistError as error:
        raise type(error)(
            "the module is detached: with the options that it had it could "
            f"not be attached again: {error}") from error


def of_bytes(budget: Budget, whole: Callable[[], int]) -> Budget:
    """Converts fractions of the whole to bytes."""
    def one(amount: Amount) -> Amount:
        return to_bytes(amount, whole()) if isinstance(amount, float) else (
            amount)

    if isinstance(budget, Mapping):
        return {device: one(amount) for device, amount in budget.items()}
    return one(budget)


def _given_bytes(module: nn.Module) -> int:
    return sum(spec.nbytes for spec in lay_out(unwrap(module), "block", set()))
