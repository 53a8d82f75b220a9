"""Exceptions: one class for each of gRPC's codes, by what the caller does."""

from __future__ import annotations


class HoistError(Exception):
    """What hoist refused, and what would do."""

    code = 2  # gRPC's number of it.

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message  # What was needed, and what there is.

    def __str__(self) -> str:  # KeyError would print the repr.
        return self.message


class Cancelled(HoistError):
    """Called off."""
    code = 1


class UnknownError(HoistError):
    """A code that is none of these."""
    code = 2


class InvalidArgument(HoistError, ValueError):
    """Fix the call."""
    code = 3


class DeadlineExceeded(HoistError, TimeoutError):
    """The deadline that was given has passed."""
    code = 4


class NotFound(HoistError, KeyError):
    """No such model, group, tensor or file."""
    code = 5


class AlreadyExists(HoistError):
    """The name is taken by something else."""
    code = 6


class PermissionDenied(HoistError, PermissionError):
    """Another user's."""
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
    """No element of that number."""
    code = 11


class Unimplemented(HoistError, NotImplementedError):
    """Not in this build or on this device."""
    code = 12


class InternalError(HoistError):
    """hoist's bug."""
    code = 13


class Unavailable(HoistError, ConnectionError):
    """No daemon, or it is gone: retry."""
    code = 14


class DataLoss(HoistError):
    """The bytes are not what they were."""
    code = 15


class Unauthenticated(HoistError):
    """Not known who asks."""
    code = 16


BY_CODE: dict[int, type[HoistError]] = {
    cls.code: cls for cls in (
        Cancelled, UnknownError, InvalidArgument, DeadlineExceeded, NotFound,
        AlreadyExists, PermissionDenied, ResourceExhausted, FailedPrecondition,
        Aborted, OutOfRange, Unimplemented, InternalError, Unavailable,
        DataLoss, Unauthenticated)
}
