"""Modules of this package in child processes, which always end when this process ends; see `child_process`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Collection
from contextlib import suppress
from typing import IO

from intaglio.errors import EngineError


class ChildEndedError(Exception):
    """A child process ended instead of answering: its exit code, and as text the last line of its standard error."""

    def __init__(self, code: int, errors: str):
        super().__init__((errors.strip().splitlines() or [f"exit code {code}"])[-1])
        self.code = code


class Child:
    """A running module that answers each line of text with one. It ends by `end`, or when this object is deleted."""

    def __init__(self, module: str, *arguments: str, pass_fds: Collection[int] = ()):
        # Not a pipe, which could fill up; closed at the end.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            _command(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            pass_fds=pass_fds,
        )
        self.end = weakref.finalize(self, _end, self.process, self._errors)

    def runs(self) -> bool:
        """Whether the child can be asked."""
        return self.process.poll() is None

    def ask(self, line: str, seconds: float = threading.TIMEOUT_MAX) -> str:
        """Send a line and return the answer, both without their line feeds; after `seconds` the child is killed.

        Raises `ChildEndedError`.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        timer = threading.Timer(seconds, self.process.kill)
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
    child = subprocess.run(_command(module, *arguments), capture_output=True, text=True, check=False)
    if child.returncode != 0:
        raise EngineError(str(ChildEndedError(child.returncode, child.stderr)))


def _command(module: str, *arguments: str) -> list[str]:
    """The command line that runs `module` as a child of this process."""
    return [sys.executable, "-P", "-m", "intaglio.processes.child_process", str(os.getpid()), module, *arguments]


def _end(process: subprocess.Popen[str], errors: IO[str]) -> None:
    process.kill()
    with suppress(BrokenPipeError):
        process.communicate()
    errors.close()
