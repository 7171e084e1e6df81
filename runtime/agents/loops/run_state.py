"""One run of an agent: its clock, its observer, and its use of the limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from intaglio.errors import IntaglioError, one_line
from intaglio.runtime.agents.loops.agent import AgentLimits, AgentResult
from intaglio.runtime.agents.loops.call_scheduler import CallScheduler
from intaglio.runtime.agents.models.model import End, Model, ModelError, ModelRequest, Usage, exceeds
from intaglio.runtime.agents.plan.surrounding_text import encodable
from intaglio.runtime.agents.run.events import AnyEvent, Ended, ModelBegan, ModelEnded, ModelWrote, Observer, Role
from intaglio.runtime.agents.run.observation import Observation
from intaglio.runtime.agents.tools.result import raised
from intaglio.runtime.agents.tools.tool import Tool
from intaglio.runtime.generation.requests.message import FunctionCall, Message, ToolCall

RETRIES = 2  # of answers that end too early, in a run
RETRY_SECONDS = 0.5  # before each
TAIL = 8  # pieces that are read of an answer after its part that counts
TAIL_SECONDS = 1.0  # and for how long
Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class LimitReached(Exception):  # noqa: N818  # it ends a run, and is no error of the caller
    """A limit of the run; the message names it."""


class CutOff(LimitReached):
    """The answer of a model hit the token limit; raised after its last piece."""


class BrokenStream(ModelError):  # noqa: N818  # as `CutOff`
    """The answer of a model ended too early, after it had begun."""


class Run:
    """The state of one run. An agent adds to `observations` and `plans`."""

    def __init__(self, limits: AgentLimits, observer: Observer | None):
        self.limits, self.observer = limits, observer
        self.observations: dict[int, Observation] = {}
        self.plans: list[str] = []
        self.usage = Usage()
        self.partial: Callable[[], str | None] = lambda: None  # the answer so far
        self._retries = RETRIES
        self._calls = 0  # of tools
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    def clock(self) -> float:
        """Return the seconds since the run began."""
        return self._loop.time() - self._began

    def emit(self, kind: Callable[..., AnyEvent], **fields: Any) -> None:
        """Report an event. An observer that raises does not end the run."""
        if self.observer is None:
            return
        try:
            self.observer(kind(seconds=self.clock(), **fields))
        except Exception as error:
            _log.warning("the observer of a run raised %s", one_line(error) or repr(error))

    async def finish(self, answering: Callable[[], Awaitable[str]]) -> AgentResult:
        """Await the answer within the limit of time. A limit, or a failing model, ends it with a text of the reason.

        What `answering` has not finished is cancelled.
        """
        try:
            async with asyncio.timeout(self.limits.max_seconds) as timeout:
                answer, complete = await answering(), True
        except LimitReached as limit:
            answer, complete = self._without_answer(str(limit)), False
        except TimeoutError:
            if not timeout.expired():
                raise
            complete = False
            answer = self._without_answer(f"the run reached its limit of {self.limits.max_seconds:g} s")
        except IntaglioError as error:
            answer, complete = self._without_answer(one_line(error).rstrip(".")), False
        self.emit(Ended, answer=answer, complete=complete)
        return AgentResult(answer, complete, dict(self.observations), self.usage, self.clock(), tuple(self.plans))

    def check(self, question: str, tools: Mapping[str, Tool]) -> None:
        """Raise `LimitReached` for a question that a tool refuses."""
        for tool in tools.values():
            if tool.refuses is None:
                continue
            try:
                reason = tool.refuses(question)
            except Exception as error:  # of the user's function
                reason = f"tool {tool.name!r} could not check the question: {raised(error).error}"
            if reason:
                raise LimitReached(" ".join(reason.split()).rstrip("."))

    async def pieces(self, model: Model, role: Role, request: ModelRequest) -> AsyncGenerator[str | ToolCall, None]:
        """Yield the pieces of an answer of `model`, at most as many tokens as the run has left.

        Raises `LimitReached`, `ModelError`, `UsageError`, and `CutOff` at the limit of tokens, enforced here if
        the model does not. Close the generator to end the answer early.
        """
        if self.usage.calls >= self.limits.max_model_calls:
            raise LimitReached(f"the run reached its limit of {self.limits.max_model_calls} requests to models")
        left = self.limits.max_tokens - self.usage.completion
        if left <= 0:
            raise LimitReached(f"the run reached its limit of {self.limits.max_tokens} tokens")
        number = self.usage.calls + 1
        most = min(request.max_tokens, left)
        end, count, characters, opened, failure = None, 0, 0, False, None
        self.usage += Usage(calls=1)
        self.emit(ModelBegan, request=number, role=role)
        try:
            sent = replace(request, messages=[_encodable(each) for each in request.messages], max_tokens=most)
            async with model.stream(sent) as answer:
                opened = True
                async for piece in answer:
                    if isinstance(piece, End):
                        end = piece
                        break
                    count += 1
                    if isinstance(piece, str):
                        characters += len(piece)
                        self.emit(ModelWrote, request=number, text=piece)
                    yield piece
                    if exceeds(count, characters, most):
                        raise CutOff(self._shortage(most, request.max_tokens, left))
                else:
                    raise ModelError(f"model {model.name!r}: the answer has no end. Is the server one of OpenAI's API?")
            if end.finish_reason == "length":
                raise CutOff(self._shortage(end.usage.completion, request.max_tokens, left))
        except (IntaglioError, LimitReached) as error:
            failure = one_line(error)
            if opened and isinstance(error, ModelError):
                raise BrokenStream(str(error)) from error
            raise
        except asyncio.CancelledError:
            failure = "cancelled"
            raise
        except Exception as error:  # a model that breaks its contract ends the run with an answer, too
            cause = one_line(error)
            failure = f"model {model.name!r}: {type(error).__name__}{f': {cause}' if cause else ''}"
            raise (BrokenStream if opened else ModelError)(failure) from error
        finally:
            # Of an answer that was left early nothing is known but its pieces, mostly a token each.
            used = Usage(completion=count) if end is None else end.usage
            self.usage += used._replace(calls=0)
            self.emit(
                ModelEnded,
                request=number,
                prompt_tokens=used.prompt,
                cached_tokens=used.cached,
                completion_tokens=used.completion,
                error=failure,
            )

    async def text(
        self, model: Model, role: Role, request: ModelRequest, answer_in: Callable[[str], str | None]
    ) -> str:
        """Return the text of an answer; `answer_in` returns the run's answer so far, or None, from the text so far.

        Raises what `pieces` does. An answer that ends too early before the run's answer has begun is asked for again.
        """
        texts: list[str] = []
        self.partial = lambda: answer_in("".join(texts))

        async def read() -> str:
            texts.clear()
            async with aclosing(self.pieces(model, role, request)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, str):
                        texts.append(piece)
            return "".join(texts)

        text = await self.retried(read, lambda: self.partial() is not None)
        self.partial = lambda: None
        return text

    async def retried(self, attempt: Callable[[], Awaitable[Result]], keeps: Callable[[], bool]) -> Result:
        """Await `attempt()`, and again if the model's answer ends too early, unless `keeps()` something of it."""
        while True:
            try:
                return await attempt()
            except BrokenStream:
                if keeps() or not self.may_retry():
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def may_retry(self) -> bool:
        """Whether an answer that ended too early may be asked for again, which is then counted."""
        self._retries -= 1
        return self._retries >= 0

    @asynccontextmanager
    async def scheduling(self, tools: Mapping[str, Tool]) -> AsyncIterator[CallScheduler]:
        """Run calls of tools. Those that have ended are in `observations` afterwards, even if the run ends early."""
        async with CallScheduler(tools, self.limits, self.observer, self.clock, self.observations) as scheduler:
            try:
                yield scheduler
            finally:
                self.observations.update(scheduler.observations)
                self._calls += scheduler.added

    @property
    def may_call(self) -> bool:
        """Whether the limits allow another call of a tool."""
        return len(self.observations) < self.limits.max_calls

    def out_of_calls(self) -> LimitReached:
        """Return what ends the run when a model asks for more calls of tools."""
        return LimitReached(f"the run reached its limit of {self.limits.max_calls} tool calls")

    def next_number(self) -> int:
        """Return the number of the next call."""
        return max(self.observations, default=0) + 1

    def _shortage(self, written: int, most: int, left: int) -> str:
        """Return which limit cut off an answer of `written` tokens."""
        if written < min(most, left):
            return f"the model's context has no room for more than {written} new tokens"
        if left <= most:
            return f"the run reached its limit of {self.limits.max_tokens} tokens"
        return f"the model reached its limit of {most} tokens for one request"

    def _without_answer(self, reason: str) -> str:
        if partial := self.partial():
            return f"{partial.strip()} [The answer is not complete: {reason}.]"
        results = sum(each.status == "done" for each in self.observations.values())
        return f"No answer: {reason}. {results} of {self._calls} tool calls have a result."


def _encodable(message: Message) -> Message:
    """Return `message` as text that can be sent: tools return, and models write, halves of surrogate pairs, too."""
    calls = [
        ToolCall(FunctionCall(call.function.name, _encodable_value(call.function.arguments)), call.id, call.type)
        for call in message.tool_calls or ()
    ]
    content = None if message.content is None else encodable(message.content)
    return msgspec.structs.replace(message, content=content, tool_calls=calls or message.tool_calls)


def _encodable_value(value: Any) -> Any:
    match value:
        case str():
            return encodable(value)
        case list():
            return [_encodable_value(each) for each in value]
        case dict():
            return {encodable(key): _encodable_value(each) for key, each in value.items()}
    return value


async def read_end(pieces: AsyncGenerator[object, None]) -> None:
    """Read a few more pieces of an answer whose part that counts is there, and end it.

    A model that writes nothing after that part reports its usage there. Any other is cut off.
    """
    with contextlib.suppress(CutOff, ModelError, TimeoutError):
        async with asyncio.timeout(TAIL_SECONDS):
            for _ in range(TAIL):
                if await anext(pieces, None) is None:
                    break
    await pieces.aclose()
