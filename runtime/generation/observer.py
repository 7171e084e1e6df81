"""What a scheduler reports to an observer of its work, such as a trace."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from intaglio.runtime.generation.events import Failed, Finished
from intaglio.runtime.generation.request_state import RequestState
from intaglio.runtime.strategies.contract import Author

Kind = Literal["prefill", "decode"]


class Pass(NamedTuple):
    """One forward pass."""

    model: Author  # "large" or "small", the draft model
    kind: Kind  # "prefill": of prompts, of which nothing is chosen yet
    began: float  # seconds, of `time.perf_counter`
    seconds: float
    rows: int
    tokens: int  # of all rows, without padding
    waiting: int  # requests in the queue


class Observer(Protocol):
    """Called on the thread that calls `Scheduler.step`; what it raises is raised there."""

    def begun(self, state: RequestState) -> None:
        """A request got a row."""

    def passed(self, made: Pass) -> None:
        """A forward pass was run."""

    def ended(self, event: Finished | Failed) -> None:
        """A request ended; it may never have had a row."""
