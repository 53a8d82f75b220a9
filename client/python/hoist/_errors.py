"""Exceptions: a class for each gRPC code, told apart by the caller's remedy."""

from __future__ import annotations


class HoistError(Exception):
    """A refusal, with its remedy."""

    code = 2  # gRPC's number.

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message  # The requirement, and the actual state.

    def __str__(self) -> str:  # KeyError would print the repr.
        return self.message


class Cancelled(HoistError):
    """The call was cancelled."""
    code = 1


class UnknownError(HoistError):
    """An unknown code."""
    code = 2


class InvalidArgument(HoistError, ValueError):
    """Fix the call."""
    code = 3


class DeadlineExceeded(HoistError, TimeoutError):
    """The call's deadline has passed."""
    code = 4


class NotFound(HoistError, KeyError):
    """No such model, group, tensor or file."""
    code = 5


class AlreadyExists(HoistError):
    """The name is taken."""
    code = 6


class PermissionDenied(HoistError, PermissionError):
    """It belongs to another user."""
    code = 7


class ResourceExhausted(HoistError, MemoryError):
    """Free something, or wait."""
    code = 8


class FailedPrecondition(HoistError, RuntimeError):
    """Change state first: released, closed, forked."""
    code = 9


class MissingExtra(FailedPrecondition, ImportError):
    """A package that this call needs is not installed: `name`."""

    def __init__(self, message: str, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class Aborted(HoistError):
    """Lost a race."""
    code = 10


class OutOfRange(HoistError, IndexError):
    """No element has that number."""
    code = 11


class Unimplemented(HoistError, NotImplementedError):
    """This build or this device does not support it."""
    code = 12


class InternalError(HoistError):
    """A bug in hoist."""
    code = 13


class Unavailable(HoistError, ConnectionError):
    """There is no daemon, or it has ended: retry."""
    code = 14


class DataLoss(HoistError):
    """Bytes are lost or changed."""
    code = 15


class Unauthenticated(HoistError):
    """The caller is unknown."""
    code = 16


BY_CODE: dict[int, type[HoistError]] = {
    cls.code: cls for cls in (
        Cancelled, UnknownError, InvalidArgument, DeadlineExceeded, NotFound,
        AlreadyExists, PermissionDenied, ResourceExhausted, FailedPrecondition,
        Aborted, OutOfRange, Unimplemented, InternalError, Unavailable,
        DataLoss, Unauthenticated)
}
