"""Stopping on Ctrl-C, on a request to terminate and on a closed terminal, without leaving anything half-done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_asked = False
_deferring = 0  # blocks of `deferred` that are running


class Interrupted(KeyboardInterrupt):
    """The user wants the program to stop.

    A class of its own, as Python ends a program by the signal itself, whatever exit code it asked for, once a plain
    KeyboardInterrupt has passed through code that was compiled from a string, as libraries do while importing.
    """

    def __init__(self, number: int = signal.SIGINT):
        """`number`: the signal."""
        super().__init__(number)
        self.number = number


def install() -> None:
    """Let each of `SIGNALS` raise `Interrupted` in the main thread."""
    for number in SIGNALS:
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    global _asked
    again, _asked = _asked, True
    if again or not _deferring:
        raise Interrupted(number)


def check() -> None:
    """Raise `Interrupted` if it was raised before and a library swallowed it; called before a result is kept."""
    if _asked:
        raise Interrupted


@contextmanager
def answered() -> Iterator[None]:
    """Let Ctrl-C end the block, and not the program, which goes on; what else asks it to stop ends it as ever."""
    global _asked
    try:
        yield
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted) and error.number != signal.SIGINT:
            raise
        _asked = False


@contextmanager
def deferred() -> Iterator[None]:
    """Let a first signal wait until the block has ended, for work in libraries' C++.

    An exception that arrives there at the wrong moment ends the program at once, and nothing is cleaned up. A
    second signal does not wait.
    """
    global _deferring
    _deferring += 1
    try:
        yield
    finally:
        _deferring -= 1
        check()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold signals back while the block runs, for what must not be cut short, such as removing temporary files."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
