"""How much the program says about its work, beside results and errors: set by the command line, once per command."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class Verbosity(IntEnum):
    """Levels, each of which includes those before it."""

    QUIET = 0  # results and errors
    NORMAL = 1  # notices, warnings and progress bars too
    VERBOSE = 2  # every row of a table, and the time of each step


_level = Verbosity.NORMAL


def set_verbosity(level: Verbosity) -> None:
    """Set the level of this process."""
    global _level
    _level = level


def verbosity() -> Verbosity:
    """The level of this process."""
    return _level


def is_quiet() -> bool:
    """Whether to show results and errors only."""
    return _level is Verbosity.QUIET


def is_verbose() -> bool:
    """Whether to show everything."""
    return _level is Verbosity.VERBOSE


def shows_progress() -> bool:
    """Whether to draw progress bars: on a terminal, unless quiet."""
    return sys.stderr.isatty() and not is_quiet()


@contextmanager
def timed(description: str) -> Iterator[None]:
    """Print the time of the block on standard error when it ends, if verbose."""
    began = time.perf_counter()
    try:
        yield
    finally:
        if is_verbose():
            sys.stderr.write(f"{description}: {time.perf_counter() - began:.2f} s\n")
