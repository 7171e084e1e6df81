"""The reports of a scheduler to an observer, such as a trace."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from intaglio.runtime.generation.scheduling.events import Failed, Finished
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.strategies.contract import Author

Kind = Literal["prefill", "decode"]


class Pass(NamedTuple):
    """One forward pass."""

    model: Author  # "large" or "small", the draft model
    kind: Kind  # "prefill": of prompts, no token is chosen yet
    began: float  # seconds, of `time.perf_counter`
    seconds: float
    rows: int
    tokens: int  # of all rows, without padding
    waiting: int  # requests in the queue


class Observer(Protocol):
    """Called on the thread that calls `Scheduler.step`; its exceptions are raised there."""

    def admitted(self, state: RequestState) -> None:
        """A request got a row."""

    def passed(self, made: Pass) -> None:
        """A forward pass was run."""

    def finished(self, event: Finished | Failed) -> None:
        """A request ended; it may never have had a row."""
