"""A progress bar for long operations."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, Iterator, Protocol

log = logging.getLogger("hoist.nn")


class Advance(Protocol):
    """Takes the number of finished bytes, and a note for the bar."""

    def __call__(self, nbytes: int, note: str = "") -> None: ...


@contextlib.contextmanager
def progress_bar(progress: bool | None, what: str, total: int | None
                 ) -> Iterator[Advance]:
    """Yields a function that takes the number of finished bytes.

    progress: True, False, or None for a bar if stderr is a terminal; needs
        tqdm. The standard log reports without it.
    total: bytes; None: unknown so far.
    """
    if progress is None:
        progress = sys.stderr.isatty()
    bar: Any = None
    if progress:
        try:
            import tqdm.auto
            bar = tqdm.auto.tqdm(total=total, desc=what, unit="B",
                                 unit_scale=True, unit_divisor=1024)
        except ImportError:
            log.info("no progress bar without tqdm")
    log.info("%s: %s bytes", what, "?" if total is None else total)

    def advance(nbytes: int, note: str = "") -> None:
        if bar is not None:
            if note:
                bar.set_postfix_str(note, refresh=False)
            bar.update(nbytes)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.close()
