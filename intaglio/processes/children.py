"""Modules of this package in child processes, which always end when this process ends; see `child_process`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import IO

from intaglio.errors import EngineError


class ChildEndedError(Exception):
    """A child process ended instead of answering: its exit code, and as text the last line of its standard error."""

    def __init__(self, code: int, errors: str):
        super().__init__((errors.strip().splitlines() or [f"exit code {code}"])[-1])
        self.code = code


class Child:
    """A running module that answers each line of text with one. It ends by `end`, or when this object is deleted.

    `under`: a program and its options, such as a debugger, which runs the command that follows them as its child.
    """

    def __init__(self, module: str, *arguments: str, pass_fds: Collection[int] = (), under: Sequence[str] = ()):
        # Not a pipe, which could fill up; closed at the end.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*under, *child_command(module, *arguments, kind=["under"] if under else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            pass_fds=pass_fds,
            process_group=0 if under else None,  # to be killed together
        )
        self._kill = partial(os.killpg, self.process.pid, signal.SIGKILL) if under else self.process.kill
        self.end = weakref.finalize(self, _end, self.process, self._kill, self._errors)

    def runs(self) -> bool:
        """Whether the child can be asked."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Kill the child, and what it runs under; a question is then answered by an error."""
        _unless_ended(self._kill)

    def finish(self, seconds: float) -> int:
        """End the child's input, wait for its end, and return its exit code; after `seconds` it is killed."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            self.process.stdin = None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.wait()

    def ask(self, line: str, seconds: float = threading.TIMEOUT_MAX) -> str:
        """Send a line and return the answer, both without their line feeds; after `seconds` the child is killed.

        Raises `ChildEndedError`.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        timer = threading.Timer(seconds, _unless_ended, [self._kill])  # does not keep this object
        timer.start()
        try:
            with suppress(BrokenPipeError):
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            answer = self.process.stdout.readline()
        finally:
            timer.cancel()
        if answer.endswith("\n"):
            return answer[:-1]
        code = self.process.wait()
        self._errors.seek(0)
        raise ChildEndedError(code, self._errors.read())


def run(module: str, *arguments: str) -> None:
    """Run `module` to its end. If it fails, raises `EngineError` with the last line of its standard error."""
    child = subprocess.run(child_command(module, *arguments), capture_output=True, text=True, check=False)
    if child.returncode != 0:
        raise EngineError(str(ChildEndedError(child.returncode, child.stderr)))


def child_command(module: str, *arguments: str, kind: Sequence[str] = ()) -> list[str]:
    """The command line that runs `module` as a child of this process; `kind`: see `child_process`."""
    start = [sys.executable, "-P", "-m", "intaglio.processes.child_process"]
    return [*start, *kind, str(os.getpid()), module, *arguments]


def _unless_ended(kill: Callable[[], object]) -> None:
    with suppress(ProcessLookupError):
        kill()


def _end(process: subprocess.Popen[str], kill: Callable[[], object], errors: IO[str]) -> None:
    _unless_ended(kill)
    with suppress(BrokenPipeError):
        process.communicate()
    errors.close()
