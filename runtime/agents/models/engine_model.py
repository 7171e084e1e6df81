"""A bundle as the model of an agent: requests share the rows of one batch, and the caches of their prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Self

from intaglio.errors import IntaglioError, UsageError, one_line
from intaglio.runtime.agents.models.model import End, ModelError, ModelPiece, ModelRequest, Usage
from intaglio.runtime.generation.answer import Answer, PartialCall
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.parts import parts_of
from intaglio.runtime.generation.requests.chat import ChatPrompt
from intaglio.runtime.generation.requests.message import FunctionCall, ToolCall
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.tool_calls.calling import ToolCalling, tool_calling
from intaglio.runtime.generation.tool_calls.events import CallEnded, ContentPiece, ToolEvent
from intaglio.runtime.generation.worker import DecoderWorker, GenerationStream
from intaglio.runtime.sampling.grammar import GrammarConstraint
from intaglio.runtime.sampling.grammar_cache import compiled
from intaglio.runtime.sampling.sampler import Sampling


class EngineModel:
    """A `Model` that runs `generator`, with its strategy, in a thread of its own. An async context manager.

    with TextGenerator("qwen3", batch=2, draft="small-qwen3") as generator:
        async with EngineModel(generator) as model, model.stream(ModelRequest(messages, 100)) as pieces:
            async for piece in pieces:
                ...

    The generator runs as many requests at a time as its batch, the others wait; a shared prefix of prompts is not
    prefilled again. Nothing else may use the generator meanwhile, but through `worker`. Afterwards, another
    `EngineModel` may.
    """

    constrained = True

    def __init__(self, generator: TextGenerator, name: str = "engine", worker: DecoderWorker | None = None):
        """`worker`: one that runs `generator` in this event loop already, for others too; by default one of its own.

        Raises `BundleError` for a model without a chat template.
        """
        _ = generator.template
        self.name = name
        self._generator, self._shared = generator, worker
        self._worker: DecoderWorker | None = None

    async def __aenter__(self) -> Self:
        self._worker = self._shared or DecoderWorker(self._generator)
        if self._shared is None:
            self._worker.start(asyncio.get_running_loop())
        return self

    async def __aexit__(self, *_: object) -> None:
        worker, self._worker = self._worker, None
        if worker is not None and self._shared is None:
            await asyncio.to_thread(worker.stop)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPiece]]:
        """See `Model`. Raises `UsageError`, too, for a grammar that cannot be used, or that is given with tools."""
        if self._worker is None:
            raise ModelError(f"model {self.name!r} is not open. Send requests within `async with`.")
        try:
            wanted, calling = await asyncio.to_thread(self._prepared, request)
            stream = await self._worker.submit([wanted])
        except Exception as error:
            raise self._as_model_error(error) from error
        async with stream, aclosing(self._pieces(stream, calling)) as pieces:
            yield pieces

    def _prepared(self, request: ModelRequest) -> tuple[GenerationRequest, ToolCalling | None]:
        """Return the request for the scheduler, and how its tool calls are read; called in a thread of its own."""
        if request.grammar is not None and request.tools:
            raise UsageError("a request has a grammar and tools, whose calls have another one. Leave one of them out.")
        generator, calling, source = self._generator, None, request.grammar
        if request.tools:
            functions = [tool.as_function() for tool in request.tools]
            calling = tool_calling(generator.template.tool_source, generator.tokenizer, functions, request.tool_choice)
            source = calling.grammar
        grammar = None if source is None else compiled("lark", source, generator.tokenizer)
        wanted = GenerationRequest(
            ChatPrompt(request.messages, calling.prompt_tools if calling is not None else ()),
            Sampling(temperature=request.temperature),
            request.stop,
            request.max_tokens,
            request.seed,
            generator.method,
            ignore_eos=True,
            end_tokens=generator.ends,
            constraint=None if grammar is None else GrammarConstraint(grammar, generator.ends),
            keep_special=calling.keep_special if calling is not None else frozenset(),
        )
        return wanted, calling

    async def _pieces(self, stream: GenerationStream, calling: ToolCalling | None) -> AsyncGenerator[ModelPiece, None]:
        answer = Answer(calling.parser() if calling is not None else None)
        try:
            while events := await stream.next():
                for part in parts_of(events):
                    for piece in _pieces_of(answer.take(part), answer.calls):
                        yield piece
        except Exception as error:
            raise self._as_model_error(error) from error
        result = answer.result
        assert result is not None, "a text without an error has a result"
        yield End(Usage(result.prompt_tokens, result.reused_tokens, len(result.tokens), 1), answer.finish_reason)

    def _as_model_error(self, error: Exception) -> IntaglioError:
        """Return an error of the request unchanged, and any other as a `ModelError`."""
        if isinstance(error, UsageError | ModelError):
            return error
        cause = one_line(error) or repr(error)
        if not isinstance(error, IntaglioError):
            cause = f"a bug in intaglio: {type(error).__name__}: {cause}"
        return ModelError(f"model {self.name!r}: {cause}")


def _pieces_of(events: Sequence[ToolEvent], calls: Sequence[PartialCall]) -> list[ModelPiece]:
    """Return the text of `events`, and the calls that are complete with them; `calls`: those so far."""
    pieces: list[ModelPiece] = []
    for event in events:
        if isinstance(event, ContentPiece):
            pieces.append(event.text)
        elif isinstance(event, CallEnded):
            call = calls[event.index]
            pieces.append(ToolCall(FunctionCall(call.name, call.arguments), call.id, "function"))
    return pieces
