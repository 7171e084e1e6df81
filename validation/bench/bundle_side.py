"""A bundle that is measured in a process of its own, so that its peak memory is its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

import msgspec

from intaglio import errors
from intaglio.errors import EngineError
from intaglio.processes.children import Child, ChildEndedError
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
        self._child = Child(WORKER)
        try:
            plain = {name: _plain(value) for name, value in options.items()}
            found = self._ask(Opening(bundle, plain, [*prompts] if prompts else None, rows), Opened)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.kind, self.unit = found.kind, found.unit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.end()

    def run(self, load: Load) -> Round:
        """Run a round."""
        time.sleep(REST)
        return self._ask(load, Round)

    def _ask(self, asked: msgspec.Struct, kind: type[Answer]) -> Answer:
        try:
            line = self._child.ask(msgspec.json.encode(asked).decode())
        except ChildEndedError as error:
            raise EngineError(f"{self.subject}: its process ended: {error}") from error
        with suppress(msgspec.ValidationError):
            refused = msgspec.json.decode(line, type=Refused)
            raise getattr(errors, refused.error)(refused.message)
        return msgspec.json.decode(line, type=kind)


def _plain(value: Any) -> Any:
    """Paths as text, for JSON."""
    return value if isinstance(value, bool | int | float | str | list | tuple | None) else str(value)
