"""POST /v1/chat/completions of an agent: its answer to the last message, and its progress as reasoning."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence

import msgspec

from intaglio.runtime.agents.loops.answer_stream import AnswerStream
from intaglio.runtime.agents.plan.surrounding_text import encodable
from intaglio.runtime.agents.reports.run_record import RunRecord
from intaglio.runtime.agents.reports.run_report import usage_of
from intaglio.runtime.agents.run.events import AnyEvent, PlanFailed, Replanned, TaskEnded, TaskPlanned
from intaglio.runtime.generation.requests.message import Message
from intaglio.serve.endpoints.chat_completions import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatRequest,
    ChunkChoice,
    Delta,
)
from intaglio.serve.models.served_agent import AgentStream, ServedAgent
from intaglio.serve.monitoring.logs import Access
from intaglio.serve.monitoring.metrics import ServerMetrics
from intaglio.serve.requests.messages import messages_of
from intaglio.serve.responses.errors import api_error, invalid
from intaglio.serve.responses.formatter import Chunk
from intaglio.serve.responses.usage import PromptTokensDetails, Usage

# Fields of a request that an agent reads, and notes of the client.
READ = {"model", "messages", "stream", "stream_options", "user", "metadata", "prompt_cache_key", "safety_identifier"}
RESULT_CHARACTERS = 1000  # of a result, in the progress
LAST = b"data: [DONE]\n\n"


class AgentFormatter:
    """Turns the events of a run into a response, or into the chunks of a stream; counts and logs the run."""

    def __init__(self, fields: ChatRequest, served: ServedAgent, metrics: ServerMetrics, record: Access):
        """Raises `ApiError` for fields that an agent does not read, and for messages without a question."""
        check_fields(fields)
        self.question = question_of(messages_of(fields.messages))
        self.streams, self._usage = fields.stream, fields.reports_usage
        self._head = (f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), served.name)
        self._metadata = fields.metadata or msgspec.UNSET
        self._answer, self._run = AnswerStream(served.description.planner), RunRecord()
        self._metrics, self._record, self._name = metrics, record, served.name

    async def full_response(self, stream: AgentStream) -> ChatCompletion:
        """Return the response after the run has ended. Raises `ApiError`."""
        async with stream:
            try:
                async for event in stream:
                    self._take(event)
            except Exception as error:
                raise api_error(error) from error
            finally:
                self._observe()
        choice = ChatChoice(0, AnswerMessage(encodable(self._run.answer or "")), None, self._reason)
        return ChatCompletion(*self._head, [choice], self._total(), self._metadata)

    async def streamed(self, stream: AgentStream) -> AsyncIterator[bytes]:
        """Yield server-sent events until the run has ended; an error is the last one of them."""
        async with stream:
            try:
                yield self._chunk(Delta("assistant", "")).encode()
                async for event in stream:
                    for delta in self._take(event):
                        yield self._chunk(delta).encode()
                yield self._chunk(Delta(), self._reason).encode()
                if self._usage:
                    yield Chunk(ChatCompletionChunk(*self._head, [], self._total())).encode()
                yield LAST
            except Exception as error:
                yield Chunk(api_error(error).body).encode()
            finally:
                self._observe()

    def _take(self, event: AnyEvent) -> list[Delta]:
        """Add an event; return what it adds to the stream."""
        self._run.add(event)
        progress, piece = encodable(_progress(event)), encodable(self._answer.take(event))
        deltas = [Delta(reasoning_content=progress)] if progress else []
        return [*deltas, Delta(content=piece)] if piece else deltas

    @property
    def _reason(self) -> str:
        return "stop" if self._run.complete else "length"

    def _chunk(self, delta: Delta, reason: str | None = None) -> Chunk:
        return Chunk(ChatCompletionChunk(*self._head, [ChunkChoice(0, delta, None, reason)]))

    def _total(self) -> Usage:
        used = usage_of(self._run)
        total = used.prompt_tokens + used.completion_tokens
        return Usage(used.prompt_tokens, used.completion_tokens, total, PromptTokensDetails(used.cached_tokens))

    def _observe(self) -> None:
        """Count and log the run, which has ended or was left."""
        reason = "abort" if self._run.answer is None else self._reason
        used, record = usage_of(self._run), self._record
        record.prompt_tokens, record.completion_tokens = used.prompt_tokens, used.completion_tokens
        record.cached_tokens, record.finish_reason = used.cached_tokens, reason
        self._metrics.answered(self._name, self._run, reason)


def check_fields(fields: ChatRequest) -> None:
    """Raise `ApiError` for a field with another value than its default that an agent does not read.

    Temperature 0 is accepted, which agents use.
    """
    for each in msgspec.structs.fields(ChatRequest):
        value = getattr(fields, each.name)
        if each.name in READ or (each.name == "temperature" and value == 0):
            continue
        if each.default is not msgspec.NODEFAULT and value != each.default:
            raise invalid(f"{each.name}: an agent has its own. Leave it out.", each.name)


def question_of(messages: Sequence[Message]) -> str:
    """Return the last message as a question, after the text of those before it. Raises `ApiError` if it is no user's.

    An agent keeps nothing between two requests: earlier messages are part of the question.
    """
    last = messages[-1]
    if last.role != "user":
        where = f"messages[{len(messages) - 1}]"
        raise invalid(f"{where}: an agent answers a message of the user, the last one has role {last.role!r}.", where)
    if len(messages) == 1:
        return last.content or ""
    before = "\n".join(f"{message.role}: {message.content or ''}" for message in messages[:-1])
    return f"{last.content}\n\nThe conversation before this question:\n{before}"


def _progress(event: AnyEvent) -> str:
    """Return the text of an event in the progress."""
    match event:
        case TaskPlanned():
            thought = f"{event.thought}\n" if event.thought else ""
            return f"{thought}{event.text}\n"
        case TaskEnded():
            result = event.result
            if len(result) > RESULT_CHARACTERS:
                result = f"{result[:RESULT_CHARACTERS]}…"
            return f"${event.number} = {'' if event.status == 'done' else f'{event.status}: '}{result}\n"
        case PlanFailed():
            return f"The plan is not valid: {event.reason}\n"
        case Replanned():
            return f"Replan: {event.reason}\n"
        case _:
            return ""
