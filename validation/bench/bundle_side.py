"""A bundle that is measured in a process of its own, so that its peak memory is its own."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from intaglio import errors
from intaglio.errors import EngineError
from intaglio.processes import child_process
from intaglio.validation.bench.load import Load, Round
from intaglio.validation.bench.worker import Opened, Opening, Refused

REST = 0.05  # seconds before a round, after which no thread of another process still spins
WORKER = "intaglio.validation.bench.worker"

Answer = TypeVar("Answer")


class BundleSide:
    """A bundle in its process. A context manager; raises the errors that the bundle's own verbs raise."""

    def __init__(self, bundle: str, options: Mapping[str, Any], prompts: Sequence[str] | None, rows: int):
        """`options`: of `TextGenerator`, without their defaults; `prompts`: None for pieces of running text.

        `rows`: requests at a time in the first round.
        """
        self.subject = bundle
        # Not a pipe, which could fill up; closed at the end.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._child = subprocess.Popen(
            child_process.command(WORKER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )
        try:
            plain = {name: _plain(value) for name, value in options.items()}
            found = self._ask(Opening(bundle, plain, [*prompts] if prompts else None, rows), Opened)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.kind, self.unit = found.kind, found.unit

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._child.kill()
        with suppress(BrokenPipeError):
            self._child.communicate()
        self._errors.close()

    def run(self, load: Load) -> Round:
        """Run a round."""
        time.sleep(REST)
        return self._ask(load, Round)

    def _ask(self, asked: msgspec.Struct, kind: type[Answer]) -> Answer:
        assert self._child.stdin is not None and self._child.stdout is not None
        with suppress(BrokenPipeError):
            self._child.stdin.write(msgspec.json.encode(asked).decode() + "\n")
            self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line.endswith("\n"):
            code = self._child.wait()
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines()
            reason = lines[-1] if lines else f"exit code {code}"
            raise EngineError(f"{self.subject}: its process ended: {reason}")
        with suppress(msgspec.ValidationError):
            refused = msgspec.json.decode(line, type=Refused)
            raise getattr(errors, refused.error)(refused.message)
        return msgspec.json.decode(line, type=kind)


def _plain(value: Any) -> Any:
    """Paths as text, for JSON."""
    return value if isinstance(value, bool | int | float | str | list | tuple | None) else str(value)
