"""One run of an agent: its clock, its observer, and what it has used of its limits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from intaglio.errors import IntaglioError, one_line
from intaglio.runtime.agents.agent import AgentLimits, AgentResult
from intaglio.runtime.agents.events import AnyEvent, Ended, ModelBegan, ModelEnded, ModelWrote, Observer, Role
from intaglio.runtime.agents.model import End, Model, ModelError, ModelRequest, Usage
from intaglio.runtime.agents.observation import Observation
from intaglio.runtime.generation.chat import ToolCall

_log = logging.getLogger(__name__)


class LimitReached(Exception):  # noqa: N818  # it ends a run, and is no error of the caller
    """A limit of the run; the message names it."""


class Run:
    """The state of one run. An agent adds to `observations` and `plans`."""

    def __init__(self, limits: AgentLimits, observer: Observer | None):
        self.limits, self.observer = limits, observer
        self.observations: dict[int, Observation] = {}
        self.plans: list[str] = []
        self.usage = Usage()
        self._began = time.perf_counter()

    def clock(self) -> float:
        """Return the seconds since the run began."""
        return time.perf_counter() - self._began

    def emit(self, kind: Callable[..., AnyEvent], **fields: Any) -> None:
        """Report an event. An observer that raises does not end the run."""
        if self.observer is None:
            return
        try:
            self.observer(kind(seconds=self.clock(), **fields))
        except Exception as error:
            _log.warning("the observer of a run raised %s", one_line(error) or repr(error))

    async def finish(self, answering: Callable[[], Awaitable[str]]) -> AgentResult:
        """Await the answer within the limit of time. A limit, or a model that fails, ends it with a text that says so.

        What `answering` has not finished is cancelled.
        """
        try:
            async with asyncio.timeout(self.limits.seconds) as timeout:
                answer, complete = await answering(), True
        except LimitReached as limit:
            answer, complete = self._without_answer(str(limit)), False
        except TimeoutError:
            if not timeout.expired():
                raise
            answer, complete = self._without_answer(f"the run reached its limit of {self.limits.seconds:g} s"), False
        except IntaglioError as error:
            answer, complete = self._without_answer(one_line(error).rstrip(".")), False
        self.emit(Ended, answer=answer, complete=complete)
        return AgentResult(answer, complete, dict(self.observations), self.usage, self.clock(), tuple(self.plans))

    async def pieces(self, model: Model, role: Role, request: ModelRequest) -> AsyncGenerator[str | ToolCall, None]:
        """Yield the pieces of an answer of `model`, at most as many tokens as the run has left.

        Raises `LimitReached`, `ModelError`, `UsageError`. Close the generator to end the answer early.
        """
        if self.usage.calls >= self.limits.model_calls:
            raise LimitReached(f"the run reached its limit of {self.limits.model_calls} requests to models")
        left = self.limits.tokens - self.usage.completion
        if left <= 0:
            raise LimitReached(f"the run reached its limit of {self.limits.tokens} tokens")
        number = self.usage.calls + 1
        used, count, failure = None, 0, None
        self.usage += Usage(calls=1)
        self.emit(ModelBegan, request=number, role=role)
        try:
            async with model.stream(replace(request, max_tokens=min(request.max_tokens, left))) as answer:
                async for piece in answer:
                    if isinstance(piece, End):
                        used = piece.usage
                        break
                    count += 1
                    if isinstance(piece, str):
                        self.emit(ModelWrote, request=number, text=piece)
                    yield piece
                else:
                    raise ModelError(f"model {model.name!r}: the answer has no end. Is the server one of OpenAI's API?")
        except (IntaglioError, LimitReached) as error:
            failure = one_line(error)
            raise
        finally:
            # Of an answer that was left early nothing is known but its pieces, mostly a token each.
            used = used or Usage(completion=count)
            self.usage += used._replace(calls=0)
            self.emit(
                ModelEnded,
                request=number,
                prompt_tokens=used.prompt,
                cached_tokens=used.cached,
                completion_tokens=used.completion,
                error=failure,
            )

    def next_number(self) -> int:
        """Return the number of the next call."""
        return max(self.observations, default=0) + 1

    def _without_answer(self, reason: str) -> str:
        results = sum(each.status == "done" for each in self.observations.values())
        return f"No answer: {reason}. {results} of {len(self.observations)} tool calls have a result."
