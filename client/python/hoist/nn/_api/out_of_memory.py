"""hoist.retry_on_oom: a call that lacked device memory runs once more."""

from __future__ import annotations

import contextlib
import re
import threading
from typing import Callable, TypeVar

import torch

from ..._errors import FailedPrecondition, HoistError, ResourceExhausted
from .._plan.budget import Amount, to_bytes
from .attachment import Attachment

T = TypeVar("T")

_ASKED = re.compile(r"Tried to allocate ([0-9.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# A session has one spare, so one second call at a time. A call may have others
# within.
_second_call = threading.RLock()


def retry(attachment: Attachment, call: Callable[[], T], spare: Amount,
          deadline: float) -> T:
    """See hoist.retry_on_oom."""
    try:
        return call()
    except torch.OutOfMemoryError as error:
        if _is_capturing():
            raise
        # Its frames keep the first call's tensors.
        lacked = error.with_traceback(None)
    part = attachment.parts[0]
    session = part.link.session
    with _second_call, contextlib.ExitStack() as stack:
        torch.cuda.empty_cache()
        nbytes = (_missing(lacked, part.torch_device) if spare is None
                  else to_bytes(spare, attachment.image_bytes, "spare"))
        try:
            stack.enter_context(session.spare(
                nbytes, device=part.device.index, deadline=deadline))
        except HoistError as error:
            raise part.link.explained(error, session) from lacked
        try:
            return call()
        except torch.OutOfMemoryError as error:
            raise ResourceExhausted(
                f"hoistd left {nbytes} bytes, and the second call lacks memory, "
                f"too; give spare= more than that ({error})") from lacked


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _missing(error: torch.OutOfMemoryError, device: torch.device) -> int:
    """Bytes that torch asked for last, and that the device lacks."""
    asked = _ASKED.search(str(error))
    if asked is None:
        raise FailedPrecondition(
            "torch does not say how much memory the call lacked; say it by "
            f"spare= ({error})") from error
    # Torch rounds to hundredths.
    nbytes = int((float(asked[1]) + 0.005) * _UNITS[asked[2]])
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    return max(nbytes - free, 1)
