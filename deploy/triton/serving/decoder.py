"""A decoder on Triton's Python backend: texts are generated together in one batch, and streamed.

The model is decoupled: a request gets any number of responses. Requests are batched continuously by Intaglio's
scheduler, as they enter and leave between forward passes; Triton's own batches would start and end together. The
tokenizer belongs to it, as the characters that are final depend on the tokens to come, and a chat template on the text.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as server

from intaglio.deploy.triton.serving.requests import array_of, failure, settings_of, tensor, texts_of, version_folder
from intaglio.deploy.triton.serving.sampling_parameters import generation_request
from intaglio.deploy.triton.serving.settings import BUNDLE, DRAFT, MESSAGES, TEXT, DecoderSettings
from intaglio.errors import EngineError, UsageError
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.chat import parse_messages
from intaglio.runtime.generation.requests.prompt_encoder import Prompt
from intaglio.runtime.generation.scheduling.events import Failed, Piece
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.scheduling.scheduler_options import SchedulerOptions
from intaglio.runtime.generation.worker import DecoderWorker

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "capacity": "length", "interrupted": "abort"}


class TritonPythonModel:
    """Generates a text for each request; its pieces are sent as soon as their characters are final."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the bundle, and the draft model if there is one; start the thread that decodes."""
        given, folder = settings_of(args, DecoderSettings), version_folder(args)
        generator = TextGenerator(
            folder / BUNDLE,
            strategy=given.strategy,
            draft=folder / DRAFT if (folder / DRAFT).is_dir() else None,
            batch=given.rows,
            target=given.target,
            threads=given.threads,
            cache_bits=given.cache_bits,
            scheduling=SchedulerOptions(max_waiting=given.max_waiting),
        )
        generator.cap_source_limit(given.source_tokens)
        self._generator, self._worker = generator, DecoderWorker(generator)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="intaglio-responses", daemon=True)
        self._thread.start()
        self._worker.start(self._loop)

    def execute(self, requests: Sequence[Any]) -> None:
        """Queue the requests; their responses are sent later, from the event loop."""
        for request in requests:
            asyncio.run_coroutine_threadsafe(self._answer(request), self._loop)

    async def _answer(self, request: Any) -> None:
        sender = request.get_response_sender()
        try:
            stream, parameters = array_of(request, "stream"), array_of(request, "sampling_parameters")
            result = await self._generate(
                sender,
                _prompt(request),
                None if parameters is None else texts_of(request, "sampling_parameters")[0],
                stream is not None and bool(stream.reshape(-1)[0]),
            )
            last = result
        except Exception as error:
            last = failure(error)
        sender.send(last, flags=server.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    async def _generate(self, sender: Any, prompt: Prompt, parameters: str | None, streams: bool) -> Any:
        """Generate the text, and return its last response: the whole text, or the end of a stream."""
        wanted = generation_request(self._generator, prompt, parameters)
        async with await self._worker.submit([wanted]) as texts:
            while events := await texts.next():
                for _, event in events:
                    if isinstance(event, Failed):
                        raise event.error
                    if not isinstance(event, Piece):
                        return _response("" if streams else event.result.text, event.result)
                    if streams:
                        sender.send(_response(event.text))
                if sender.is_cancelled():  # leaving the block frees the row
                    return _response("", None, "abort")
        raise EngineError("the text ended without a result, a bug in intaglio. Please report it.")

    def finalize(self) -> None:
        """Close the models, and end the threads."""
        self._worker.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _prompt(request: Any) -> Prompt:
    """The text, or the conversation. Raises `UsageError` for both and for neither."""
    given = [name for name in (TEXT, MESSAGES) if array_of(request, name) is not None]
    if len(given) != 1:
        raise UsageError(f"got {' and '.join(given) or 'no prompt'}, expected either {TEXT} or {MESSAGES}.")
    (text,) = texts_of(request, given[0])
    return text if given[0] == TEXT else parse_messages(text, MESSAGES)


def _response(text: str, result: Generated | None = None, reason: str = "") -> Any:
    """A piece of text; with the reason if it is the last one."""
    if result is not None:
        reason = FINISH_REASONS[result.stopped]
    return server.InferenceResponse([tensor("text_output", [text]), tensor("finish_reason", [reason])])
