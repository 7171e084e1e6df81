"""Compile a grammar first in a separate process, where the kernel limits time, memory and stack.

A grammar can come from a client of a server, and the library's limits leave gaps: rules that refer to each other in a
chain of thousands overflow the stack, which ends the process; intersections of regular expressions take minutes and
gigabytes; repetitions keep hundreds of megabytes.

One process per tokenizer has read the tokenizer and forks for each grammar. A fork compiles the grammar as the main
process will, computes the first mask, and answers with the bytes by which its memory grew. A fork that a limit ends
does not answer. Later masks are limited by the library alone.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path

from intaglio.errors import UsageError
from intaglio.processes.child_process import end_with, lower_limit
from intaglio.processes.children import Child, ChildEndedError

MAX_SECONDS = 5  # of processor time
MAX_WAIT = 10  # seconds of wall-clock time
MAX_BYTES = 1 << 30  # of address space, above what the tokenizer takes
MAX_STACK = 1 << 20  # bytes; a thread of the main process has at least 2 MiB
MAX_KEPT = 64 << 20  # bytes by which a grammar and its first mask may grow the process
MAX_CHECKS = 4  # at the same time
MAX_START = 60  # seconds to start the process and read a tokenizer
IDLE = 300  # seconds after which the process ends; the next check starts another


class GrammarCheck:
    """Checks grammars for one tokenizer. Can be called by several threads."""

    def __init__(self, tokenizer: str, end: int):
        """`tokenizer`: the text of its tokenizer.json, with the token `end` that ends a constrained text."""
        self._tokenizer, self._end = tokenizer, end
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_CHECKS)
        self._process: _Process | None = None

    def bytes_of(self, text: str, kind: str) -> int:
        """Return the bytes that the grammar `text` and its first mask take; `kind` names it in messages.

        Errors of the grammar itself are not reported here. Raises `UsageError` if it exceeds a limit.
        """
        with self._slots:
            for _ in range(2):  # the process may have ended since its last check
                process = self._running()
                answer = process.ask(text)
                if answer or process.child.runs():
                    break
        if not answer:
            raise UsageError(
                f"the {kind} takes more than {MAX_SECONDS} s, {MAX_BYTES >> 30} GiB or {MAX_STACK >> 20} MiB of stack "
                "to compile. Simplify it: fewer rules that refer to each other, smaller repetitions, no & and ~."
            )
        if int(answer) > MAX_KEPT:
            raise UsageError(f"the {kind} needs more than {MAX_KEPT >> 20} MB. Simplify it: smaller repetitions.")
        return int(answer)

    def _running(self) -> _Process:
        with self._lock:
            if self._process is None or not self._process.child.runs():
                self._process = _Process(self._tokenizer, self._end)
            return self._process


class _Process:
    """A running process of this module; it ends when this object is deleted."""

    def __init__(self, tokenizer: str, end: int) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self.child = Child(__name__, str(theirs.fileno()), str(end), pass_fds=[theirs.fileno()])
        self._close = weakref.finalize(self, self._control.close)
        self._control.settimeout(MAX_START)
        try:
            self.child.ask(json.dumps(tokenizer), MAX_START)
        except ChildEndedError as error:
            raise UsageError("the process that checks grammars did not start. Free memory, and try again.") from error

    def ask(self, text: str) -> bytes:
        """Return the answer to a grammar; empty if there is none."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, suppress(OSError):
                socket.send_fds(self._control, [b"g"], [theirs.fileno()])
            ours.settimeout(2 * MAX_WAIT)  # the fork's own alarm comes first
            with suppress(OSError):
                ours.sendall(text.encode())
                ours.shutdown(socket.SHUT_WR)
                return ours.recv(64)
        return b""


def _memory(name: str) -> int:
    """Return a size of this process in bytes, such as "VmSize" or "VmHWM" (the most that was resident)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _serve(control: socket.socket, end: int) -> None:
    """Read the tokenizer, then fork for each connection that comes through `control`."""
    import llguidance

    tokenizer = llguidance.LLTokenizer(json.loads(sys.stdin.readline()), eos_token=end)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks
    lower_limit(resource.RLIMIT_CORE, 0)
    print("ready", flush=True)  # noqa: T201  the answer
    control.settimeout(IDLE)
    parent = os.getpid()
    while True:
        try:
            message, received, *_ = socket.recv_fds(control, 1, 1)
        except TimeoutError:
            return
        if not message:
            return
        with socket.socket(fileno=received[0]) as connection:
            if os.fork() == 0:
                end_with(parent)
                _answer(connection, tokenizer)


def _answer(connection: socket.socket, tokenizer: object) -> None:
    """Compile the grammar that `connection` sends, within the limits, and send the bytes that it takes."""
    from llguidance import LLMatcher, LLParserLimits

    signal.setitimer(signal.ITIMER_REAL, MAX_WAIT)
    with connection.makefile("rb") as stream:
        text = stream.read().decode()
    before = _memory("VmRSS")
    lower_limit(resource.RLIMIT_AS, _memory("VmSize") + MAX_BYTES)
    lower_limit(resource.RLIMIT_CPU, MAX_SECONDS)
    lower_limit(resource.RLIMIT_STACK, MAX_STACK)
    matcher = LLMatcher(tokenizer, text, limits=LLParserLimits(verbose_errors=False), log_level=0)  # type: ignore[arg-type]
    if not matcher.is_error():
        matcher.compute_bitmask()
    connection.sendall(b"%d" % max(0, _memory("VmHWM") - before))
    os._exit(0)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _control:
        _serve(_control, int(sys.argv[2]))
