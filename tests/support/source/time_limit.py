"""A hard time limit for tests that guard against endless waiting."""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EVERY = 10.0  # seconds between exceptions, for code that swallows the first
GRACE = 60.0  # seconds until the process ends, for code that swallows all of them or never returns to Python
_deadlines: list[float] = []  # of the open backstops


class TooLong(BaseException):
    """Not an `Exception`, which code under test may handle as its own failure."""


@contextmanager
def time_limit(seconds: float, every: float = EVERY, grace: float = GRACE) -> Iterator[None]:
    """Fail a block that takes longer, in the main thread; end the process if the block still does not end."""

    def over(_number: int, _frame: FrameType | None) -> None:
        raise TooLong(f"the test took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, every)
    try:
        with backstop(seconds + grace):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def backstop(seconds: float) -> Iterator[None]:
    """End the process with the stacks of all threads if the block takes longer. May be nested."""
    _deadlines.append(time.monotonic() + seconds)
    try:
        _arm()
        yield
    finally:
        _deadlines.pop()
        _arm()


def _arm() -> None:
    """Set the only timer of the interpreter for this."""
    if not _deadlines:
        faulthandler.cancel_dump_traceback_later()
        return
    left = max(0.001, min(_deadlines) - time.monotonic())
    faulthandler.dump_traceback_later(left, exit=True, file=sys.__stderr__)
