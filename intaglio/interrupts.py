"""Stop cleanly on Ctrl-C, on a request to terminate and on a closed terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_asked = False
_deferring = 0  # active blocks of `deferred`


class Interrupted(KeyboardInterrupt):
    """The user wants the program to stop.

    A separate class: once a plain KeyboardInterrupt has passed through code compiled from a string, as libraries use
    while importing, Python ends the program by the signal itself and ignores the exit code.
    """

    def __init__(self, number: int = signal.SIGINT):
        """`number`: the signal's number."""
        super().__init__(number)
        self.number = number


def install() -> None:
    """Make each of `SIGNALS` raise `Interrupted` in the main thread."""
    for number in SIGNALS:
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    global _asked
    again, _asked = _asked, True
    if again or not _deferring:
        raise Interrupted(number)


def check() -> None:
    """Raise `Interrupted` if a library swallowed it before; called before a result is kept."""
    if _asked:
        raise Interrupted


@contextmanager
def answered() -> Iterator[None]:
    """Let Ctrl-C end only the block; the program goes on. Other signals end the program as usual."""
    global _asked
    try:
        yield
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted) and error.number != signal.SIGINT:
            raise
        _asked = False


@contextmanager
def deferred() -> Iterator[None]:
    """Defer the first signal until the block has ended, for work in libraries' C++ code.

    An exception raised there at the wrong moment ends the program at once, without cleanup. A second signal is not
    deferred.
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
    """Block signals while the block runs, for work that must complete, such as removing temporary files."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
