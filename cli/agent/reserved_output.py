"""Standard output for the program's own result, while code of others runs: what that prints is no part of it."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class _Reserved(io.TextIOBase):
    """Sends the output of the thread `owner` to `ours`, and all other output to standard error."""

    def __init__(self, ours: TextIO):
        self._ours = ours
        self.owner: int | None = None

    def _stream(self) -> TextIO:
        return self._ours if threading.get_ident() == self.owner else sys.stderr

    @property
    def encoding(self) -> str:  # type: ignore[override]  # of the stream that is written to
        return self._ours.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # as above
        return self._ours.errors

    @property
    def buffer(self) -> object:
        """The bytes below the text."""
        return self._stream().buffer

    def write(self, text: str) -> int:
        """Write to the stream of this thread."""
        return self._stream().write(text)

    def flush(self) -> None:
        """Flush the buffer."""
        self._stream().flush()
        self._ours.flush()

    def isatty(self) -> bool:
        """Whether the program's own output is shown on a terminal."""
        return self._ours.isatty()

    def fileno(self) -> int:
        """Return the descriptor of the stream of this thread."""
        return self._stream().fileno()

    def writable(self) -> bool:
        """Whether it may be written to."""
        return True

    def close(self) -> None:
        """Leave standard output open, whoever closes it."""


class ReservedOutput:
    """Standard output, reserved; see `reserved_output`."""

    def __init__(self, stream: _Reserved | None):
        self._stream = stream

    def release(self) -> None:
        """Let this thread write to standard output from here on; other threads and processes still do not."""
        if self._stream is not None:
            sys.stderr.flush()
            sys.stdout = self._stream  # a tool may have replaced it
            self._stream.owner = threading.get_ident()


@contextmanager
def reserved_output() -> Iterator[ReservedOutput]:
    """Send all prints of threads, processes and libraries to standard error, until it is released.

    The program keeps a descriptor of its own of standard output, and the first one becomes that of standard error: a
    tool that still runs at the end prints nothing into the result either.
    """
    original = sys.stdout
    if original is None or sys.stderr is None:
        yield ReservedOutput(None)
        return
    original.flush()
    try:
        whole = original.fileno() == 1
    except (OSError, ValueError):  # it is no file
        whole = False
    if whole:
        ours: TextIO = os.fdopen(os.dup(1), "w", encoding=original.encoding, errors=original.errors)
        os.dup2(2, 1)
    else:
        ours = original
    sys.stdout = _Reserved(ours)
    try:
        yield ReservedOutput(sys.stdout)
    finally:
        try:
            ours.flush()
        except OSError:  # nobody reads it, and its flush at exit would change the exit code
            if whole:
                os.dup2(os.open(os.devnull, os.O_WRONLY), ours.fileno())
            raise
        finally:
            if not whole:
                sys.stdout = original
