"""A bar for what takes long."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, Callable, Iterator

log = logging.getLogger("hoist.nn")

Advance = Callable[[int], None]


@contextlib.contextmanager
def progress_bar(progress: Any, what: str, total: int) -> Iterator[Advance]:
    """Gives a function that takes bytes that are done.

    progress: True, False, or None for a bar if stderr is a terminal; needs
    tqdm. The standard log tells without it.
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
    log.info("%s: %d bytes", what, total)
    try:
        yield bar.update if bar is not None else lambda nbytes: None
    finally:
        if bar is not None:
            bar.close()
