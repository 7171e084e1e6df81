"""Stop cleanly on Ctrl-C, on a request to terminate and on a closed terminal; on a second one, at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPEATED = 0.1  # seconds within which a signal is the same one: a terminal and a parent process may both send it
LONGEST_END = 15.0  # seconds for what `handled` calls
AT_ONCE = "\nintaglio: ended at once. Unfinished output is removed by the next command in the same place.\n"

_asked = 0  # the first signal
_asked_at = 0.0
_deferring = 0  # active blocks of `deferred`
_handlers: list[Callable[[int], None]] = []  # active blocks of `handled`


class Interrupted(KeyboardInterrupt):
    """The user wants the program to stop.

    A separate class: once a plain KeyboardInterrupt has passed through code compiled from a string, as libraries use
    while importing, Python ends the program by the signal itself and ignores the exit code.
    """

    def __init__(self, number: int = signal.SIGINT):
        """`number`: the signal's number."""
        super().__init__(number)
        self.number = number


def exit_code(number: int | None = None) -> int:
    """Return the exit code of a program that a signal ended, as shells have it: 130 for Ctrl-C, 143 for SIGTERM.

    `number`: by default that of the signal that came last, or Ctrl-C.
    """
    return 128 + (number or _asked or signal.SIGINT)


def install() -> None:
    """Make the first of `SIGNALS` raise `Interrupted` in the main thread, and a second one end the program at once."""
    for number in SIGNALS:
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    global _asked, _asked_at
    now = time.monotonic()
    if _asked:
        if now - _asked_at > REPEATED:
            end_at_once(number)
        return
    _asked, _asked_at = number, now
    if _handlers:
        _handlers[-1](number)
    elif not _deferring:
        raise Interrupted(number)


def end_at_once(number: int) -> NoReturn:
    """End the program without any cleanup: what should end it may hang."""
    with suppress(OSError):
        shown = "\x1b[?25h" if sys.stderr is not None and os.isatty(2) else ""  # the cursor, which a progress bar hides
        os.write(2, (shown + AT_ONCE).encode())
    os._exit(exit_code(number))


@contextmanager
def handled(by: Callable[[int], None]) -> Iterator[None]:
    """Call `by` with the number of the first signal, instead of raising `Interrupted`.

    The program ends at once with a second signal, or if the block has not ended `LONGEST_END` seconds after the first.
    """
    timers: list[threading.Timer] = []

    def first(number: int) -> None:
        timers.append(threading.Timer(LONGEST_END, end_at_once, [number]))
        timers[0].daemon = True
        timers[0].start()
        by(number)

    before = {number: signal.signal(number, _stop) for number in SIGNALS}
    _handlers.append(first)
    try:
        yield
    finally:
        _handlers.pop()
        for number, handler in before.items():
            signal.signal(number, handler)
        for timer in timers:
            timer.cancel()


def check() -> None:
    """Raise `Interrupted` if a library swallowed it before; called before a result is kept."""
    if _asked:
        raise Interrupted(_asked)


@contextmanager
def answered() -> Iterator[None]:
    """Let Ctrl-C end only the block; the program goes on. Other signals end the program as usual."""
    global _asked
    try:
        yield
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted) and error.number != signal.SIGINT:
            raise
    if _asked == signal.SIGINT:
        _asked = 0


@contextmanager
def deferred() -> Iterator[None]:
    """Defer the first signal until the block has ended, for work in libraries' C++ code.

    An exception raised there at the wrong moment ends the program at once, without cleanup.
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
