"""An agent as a model of the server, and its runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Self

from intaglio.errors import BusyError
from intaglio.runtime.agents.loops.agent import Agent
from intaglio.runtime.agents.run.events import AnyEvent
from intaglio.serve.models.agent_description import AgentDescription
from intaglio.serve.responses.errors import ApiError


@dataclass
class ServedAgent:
    """An agent that the server offers as a model."""

    description: AgentDescription
    agent: Agent
    created: int = field(default_factory=lambda: int(time.time()))
    runs: set[AgentStream] = field(default_factory=set)  # those that have not ended

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.description.name

    def start(self, question: str, seconds: float) -> AgentStream:
        """Start a run, which fails after `seconds`. Raises `BusyError` if too many run already."""
        if len(self.runs) >= self.description.runs:
            raise BusyError(f"agent {self.name!r}: {len(self.runs)} runs at a time are its maximum. Try again later.")
        late = f"the answer took more than {seconds:g} seconds. Reduce the request."
        return AgentStream(self, question, seconds, ApiError(504, late, "timeout_error"))

    def fail_all(self, error: Exception) -> int:
        """End all runs with `error`; return their number."""
        runs = list(self.runs)
        for run in runs:
            run.fail(error)
        return len(runs)


class AgentStream:
    """The events of a run, for one task of the event loop. An async context manager; leaving it ends the run."""

    def __init__(self, served: ServedAgent, question: str, seconds: float, late: Exception):
        self._runs = served.runs
        self._events: asyncio.Queue[AnyEvent | None] = asyncio.Queue()
        self._runs.add(self)
        self._task = asyncio.create_task(served.agent.run(question, self._events.put_nowait), name="agent")
        self._task.add_done_callback(self._ended)
        self._error: Exception | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self.fail, late)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def __aiter__(self) -> AsyncIterator[AnyEvent]:
        """Yield the events until the run has ended. Raises the error of `fail`, and that of a bug in the run."""
        while (event := await self._events.get()) is not None:
            yield event
        if self._error is not None:
            raise self._error
        self._task.result()

    def fail(self, error: Exception) -> None:
        """End the run with `error`."""
        self._error = error
        self._task.cancel()

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._timer.cancel()
        self._runs.discard(self)
        self._events.put_nowait(None)
