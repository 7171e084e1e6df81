"""The observation of a call: its value, or the reason why it has none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.runtime.agents.run.events import Status

_JSON = json.JSONEncoder(ensure_ascii=False, default=str)  # json.dumps would make one for each value


@dataclass(frozen=True)
class Observation:
    """The end of one call."""

    number: int
    tool: str
    arguments: Mapping[str, Any]  # by parameter, with the values of references; empty if it was skipped
    status: Status
    value: Any = None  # what the tool returned
    error: str | None = None  # one line, unless `status` is "done"
    began: float | None = None  # seconds since the beginning of the run; None: never started
    ended: float = 0.0
    attempts: int = 0
    shown: int | None = None  # the tool's

    @property
    def text(self) -> str:
        """The value as text, or the error."""
        return as_text(self.value) if self.status == "done" else f"error: {self.error}"

    def characters(self, most: int) -> int:
        """Return how many characters of the text models read: at most `most`, and of a value no more than `shown`."""
        return most if self.shown is None or self.status != "done" else min(most, self.shown)


def as_text(value: Any) -> str:
    """A value of a tool as text: a string unchanged, anything else as JSON."""
    return value if isinstance(value, str) else _JSON.encode(value)
