"""POST /v1/completions: texts that continue prompts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from intaglio.runtime.generation.answer import finish_reason
from intaglio.runtime.generation.parts import Part
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.text.logprobs import TokenLogprobs
from intaglio.runtime.sampling.token_bytes import TokenBytes
from intaglio.serve.models.model import DecoderModel
from intaglio.serve.requests.constraints import constraints_for
from intaglio.serve.requests.generation_fields import Count, GenerationFields, generation_requests
from intaglio.serve.responses.errors import invalid
from intaglio.serve.responses.formatter import Chunk, Formatter
from intaglio.serve.responses.usage import Usage, usage_of

MAX_LOGPROBS = 20


class CompletionRequest(GenerationFields, kw_only=True):
    """The body of a request."""

    prompt: str | list[str | int | list[int]]  # a text, token ids, or a list of either
    max_tokens: Count = 16
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None  # alternatives per token


class CompletionLogprobs(msgspec.Struct):
    """Log-probabilities, a list entry per token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    """One text, or in a stream its next characters."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class Completion(msgspec.Struct):
    """The response, and each event of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"


class CompletionFormatter(Formatter):
    """Formats texts as completions."""

    prompt = "prompt"

    def __init__(self, fields: CompletionRequest, model: DecoderModel, max_choices: int):
        """Raises `ApiError` for fields out of range."""
        prompts = _prompts(fields, model.vocabulary)
        count = len(prompts) * fields.n
        if count > max_choices:
            param = "n" if fields.n > 1 else "prompt"
            raise invalid(f"{param}: {count} texts requested, the maximum is {max_choices}. Reduce it.", param)
        constraints = constraints_for(fields, None, model, count)
        self.requests = generation_requests(fields, model, prompts, fields.max_tokens, fields.logprobs, constraints)
        self.streams = fields.stream
        self._usage, self._choices = fields.reports_usage, fields.n
        self._bytes_of = TokenBytes(model.worker.prompts.tokenizer)
        self._head = (f"cmpl-{uuid.uuid4().hex}", int(time.time()), model.name)
        self._results: dict[int, Generated] = {}
        self._logprobs = fields.logprobs is not None

    def take(self, part: Part) -> list[Chunk]:
        """See `Formatter`."""
        reason = None
        if part.result is not None:
            self._results[part.choice] = part.result
            reason = finish_reason(part.result)
        if not (part.text or part.logprobs or reason):
            return []
        logprobs = _logprobs(part.logprobs, self._bytes_of) if self._logprobs else None
        return [Chunk(Completion(*self._head, [CompletionChoice(part.choice, part.text, logprobs, reason)]))]

    def end(self) -> list[Chunk]:
        """See `Formatter`."""
        return [Chunk(Completion(*self._head, [], usage=self._total()))] if self._usage else []

    def response(self) -> Completion:
        """See `Formatter`."""
        choices = []
        for index, result in sorted(self._results.items()):
            logprobs = _logprobs(result.logprobs or [], self._bytes_of) if self._logprobs else None
            choices.append(CompletionChoice(index, result.text, logprobs, finish_reason(result)))
        return Completion(*self._head, choices, usage=self._total())

    def _total(self) -> Usage:
        return usage_of([result for _, result in sorted(self._results.items())], self._choices)


def _prompts(fields: CompletionRequest, vocabulary: int) -> Sequence[str | list[int]]:
    given = [fields.prompt] if isinstance(fields.prompt, str) else fields.prompt
    if not given:
        raise invalid("prompt: the list is empty. Send at least one prompt.", "prompt")
    tokens = [each for each in given if isinstance(each, int)]
    prompts: Sequence[str | list[int]] = [tokens] if tokens else [each for each in given if not isinstance(each, int)]
    if tokens and len(tokens) < len(given):
        raise invalid("prompt: token ids and texts are mixed. Send a list of one kind.", "prompt")
    for prompt in prompts:
        if isinstance(prompt, list) and not all(0 <= token < vocabulary for token in prompt):
            raise invalid(f"prompt: token ids go from 0 to {vocabulary - 1}. Send other ids, or text.", "prompt")
    return prompts


def _logprobs(tokens: Sequence[TokenLogprobs], bytes_of: TokenBytes) -> CompletionLogprobs:
    def text(token: int) -> str:
        found = bytes_of(token)
        try:
            return found.decode()
        except UnicodeDecodeError:  # a part of a character: alternatives may not all be the replacement character
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)

    return CompletionLogprobs(
        [text(each.token) for each in tokens],
        [each.logprob for each in tokens],
        [{text(token): logprob for token, logprob in each.top} for each in tokens],
        [each.text_offset for each in tokens],
    )
