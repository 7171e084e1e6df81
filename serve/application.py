"""The HTTP application: its routes, and the steps of every request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import msgspec
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from intaglio.errors import BusyError
from intaglio.files.json_decoder import json_decoder
from intaglio.serve.bodies.arrivals import Arrivals
from intaglio.serve.bodies.json_body import Body, decode, read_body
from intaglio.serve.bodies.transcription_fields import ENDPOINTS, transcription_request, whisper_options
from intaglio.serve.bodies.uploads import Uploads
from intaglio.serve.endpoints.agent_completions import AgentFormatter
from intaglio.serve.endpoints.chat_completions import ChatFormatter, ChatRequest
from intaglio.serve.endpoints.classification import ClassificationRequest, ClassificationResponse, classify
from intaglio.serve.endpoints.completions import CompletionFormatter, CompletionRequest
from intaglio.serve.endpoints.embeddings import EmbeddingsRequest, EmbeddingsResponse, create_embeddings
from intaglio.serve.endpoints.rerank import RerankRequest, RerankResponse, rerank
from intaglio.serve.endpoints.responses import ResponseFormatter, ResponsesRequest
from intaglio.serve.endpoints.sparse import SparseRequest, SparseResponse, embed_sparse
from intaglio.serve.endpoints.transcriptions import MEDIA_TYPES, Ending, Spoken, recording_error
from intaglio.serve.middleware import CLOSED, Gate, Observed
from intaglio.serve.models.model import DecoderModel, ModelList, Models, card_of
from intaglio.serve.models.served_agent import ServedAgent
from intaglio.serve.monitoring.logs import Access
from intaglio.serve.monitoring.metrics import ServerMetrics
from intaglio.serve.monitoring.observation import KEY, Observation
from intaglio.serve.options import ServerOptions
from intaglio.serve.requests.generation_fields import GenerationFields
from intaglio.serve.responses.errors import ApiError, api_error
from intaglio.serve.responses.formatter import Formatter
from intaglio.serve.responses.generation import full_response, start, streamed
from intaglio.serve.workers.encoder_worker import EncoderWorker

SHORT_BODY = 1 << 16  # bytes
PING = 15  # seconds between comments in an idle stream, which keep proxies from closing it

Fields = TypeVar("Fields", bound=GenerationFields)
EncoderFields = TypeVar("EncoderFields", EmbeddingsRequest, ClassificationRequest, RerankRequest, SparseRequest)
EncoderResponse = TypeVar("EncoderResponse", EmbeddingsResponse, ClassificationResponse, RerankResponse, SparseResponse)
Answer = TypeVar("Answer")


class Health(msgspec.Struct):
    """Whether the server works."""

    status: str


class Api:
    """The endpoints."""

    def __init__(self, models: Models, options: ServerOptions, uploads: Uploads | None = None):
        """`uploads`: needed to transcribe recordings."""
        self.models, self.options, self._uploads = models, options, uploads
        self.metrics = ServerMetrics()
        # These may take a row or a place in a queue.
        self.arrivals = Arrivals((options.rows + options.max_waiting) * len(models.by_name))
        for model in models.by_name.values():
            self.metrics.gauges(model.name, model.worker.state)

    def application(self) -> Starlette:
        """The application with all routes."""
        routes = [
            *(Route(path, self.live, methods=["GET"]) for path in ("/health", "/health/live", "/health/ready")),
            Route("/metrics", self.show_metrics, methods=["GET"]),
            Route("/v1/models", self.list_models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.show_model, methods=["GET"]),
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in self._posts().items()),
        ]
        gate = Middleware(Gate, api_keys=self.options.api_keys, arrivals=self.arrivals)
        middleware = [Middleware(Observed, metrics=self.metrics), gate]
        if self.options.cors_origins:
            cors = Middleware(
                CORSMiddleware, allow_origins=list(self.options.cors_origins), allow_methods=["GET", "POST"],
                allow_headers=["*"], expose_headers=["X-Request-Id", "Retry-After"],
            )  # fmt: skip
            middleware.insert(1, cors)
        handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
            ApiError: _error,
            HTTPException: _http_error,
            Exception: _error,
        }
        return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)

    def _posts(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        """The endpoints that have a body, by their paths."""
        reranking = partial(self.encode, kind=RerankRequest, create=rerank)
        return {
            "/v1/completions": partial(self._generate, kind=CompletionRequest, formatter=CompletionFormatter),
            "/v1/chat/completions": self.chat_completions,
            "/v1/responses": partial(self._generate, kind=ResponsesRequest, formatter=ResponseFormatter),
            "/v1/embeddings": partial(self.encode, kind=EmbeddingsRequest, create=create_embeddings),
            "/embed_sparse": partial(self.encode, kind=SparseRequest, create=embed_sparse),
            "/v1/classify": partial(self.encode, kind=ClassificationRequest, create=classify),
            "/v1/rerank": reranking,  # Jina's
            "/v2/rerank": reranking,  # Cohere's
            **{path: partial(self.recording, task=task) for path, task in ENDPOINTS.items()},
        }

    async def live(self, request: Request) -> Response:
        """Whether the process serves its models: if not, restart it."""
        alive = self.models.alive
        return json_response(Health("ok" if alive else "a model has stopped"), 200 if alive else 503)

    async def show_metrics(self, request: Request) -> Response:
        """Metrics in Prometheus' format."""
        body, kind = self.metrics.render(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": kind})

    async def list_models(self, request: Request) -> Response:
        """All models."""
        models = [*self.models.by_name.values(), *self.models.adapted.values(), *self.models.agents.values()]
        return json_response(ModelList([card_of(model) for model in models]))

    async def show_model(self, request: Request) -> Response:
        """One model."""
        name = request.path_params["name"]
        return json_response(card_of(self.models.agents.get(name) or self.models.find(name)))

    async def _generate(
        self, request: Request, kind: type[Fields], formatter: Callable[[Fields, DecoderModel, int], Formatter]
    ) -> Response:
        return await self.generate(request, await self.fields(request, kind), formatter)

    async def chat_completions(self, request: Request) -> Response:
        """Answers to a conversation, of a model or an agent."""
        fields = await self.fields(request, ChatRequest)
        if fields.model in self.models.agents:
            return await self._ask(request, fields, self.models.agents[fields.model])
        return await self.generate(request, fields, ChatFormatter)

    async def recording(self, request: Request, task: str) -> Response:
        """The transcript of a recording, or its translation to English."""
        if self._uploads is None:  # nothing is read
            raise ApiError(404, "no model of this server transcribes recordings. See /v1/models.")
        form, upload = await self._uploads.read(request)
        record: Access = request.scope["state"][KEY]
        try:
            fields = transcription_request(form)
            model = self.models.speech(fields.model)
            record.model = model.name
            call = await model.worker.start(upload, whisper_options(fields, model.bundle, task))
        except BaseException as error:
            upload.discard()
            if isinstance(error, Exception):
                raise recording_error(error) from error
            raise
        self.arrivals.leave(record)
        seconds = self.options.request_timeout
        late = f"the response took more than {seconds:g} seconds. Send a shorter recording."
        call.expire_after(seconds, ApiError(504, late, "timeout_error"))
        spoken = Spoken(call, fields, self.metrics, record)
        if fields.stream:
            return Ending(self._events(spoken.streamed()), call.cancel)
        content = await _unless_disconnected(request, spoken.full_response())
        return Response(content, media_type=MEDIA_TYPES[fields.response_format])

    async def encode(
        self,
        request: Request,
        kind: type[EncoderFields],
        create: Callable[[EncoderFields, EncoderWorker, str], Coroutine[Any, Any, EncoderResponse]],
    ) -> Response:
        """The response of an encoder."""
        fields = await self.fields(request, kind)
        model = self.models.sparse() if fields.model is None else self.models.encoder(fields.model)
        record: Access = request.scope["state"][KEY]
        record.model = model.name
        self.arrivals.leave(record)  # the worker counts its texts before it tokenizes them
        seconds = self.options.request_timeout
        began = time.perf_counter()
        work = asyncio.wait_for(create(fields, model.worker, model.name), seconds)
        try:
            response = await _unless_disconnected(request, work)
        except TimeoutError:
            late = f"the response took more than {seconds:g} seconds. Send fewer texts."
            raise ApiError(504, late, "timeout_error") from None
        except Exception as error:
            raise api_error(error, "input") from error
        record.prompt_tokens = response.usage.prompt_tokens
        self.metrics.encoded(model.name, record.prompt_tokens, time.perf_counter() - began)
        return json_response(response.embeddings if isinstance(response, SparseResponse) else response)

    async def generate(
        self, request: Request, fields: Fields, formatter: Callable[[Fields, DecoderModel, int], Formatter]
    ) -> Response:
        """The response of a decoder."""
        model = self.models.decoder(fields.model)
        record: Access = request.scope["state"][KEY]
        record.model = model.name
        observation = Observation(self.metrics, record, model.name)
        # In a thread: a schema can take a while to compile.
        try:
            formatted = await asyncio.to_thread(formatter, fields, model, self.options.max_choices)
        except Exception as error:
            raise api_error(error) from error
        stream = await start(model.worker, formatted, self.options.request_timeout)
        self.arrivals.leave(record)
        if not formatted.streams:
            return json_response(await _unless_disconnected(request, full_response(stream, formatted, observation)))
        return self._events(streamed(stream, formatted, observation))

    async def _ask(self, request: Request, fields: ChatRequest, agent: ServedAgent) -> Response:
        record: Access = request.scope["state"][KEY]
        record.model = agent.name
        formatted = AgentFormatter(fields, agent, self.metrics, record)
        try:
            stream = agent.start(formatted.question, self.options.request_timeout)
        except BusyError as error:
            raise api_error(error) from error
        self.arrivals.leave(record)
        if not formatted.streams:
            return json_response(await _unless_disconnected(request, formatted.full_response(stream)))
        return self._events(formatted.streamed(stream))

    def _events(self, chunks: AsyncIterator[bytes]) -> Response:
        return EventSourceResponse(chunks, ping=PING, sep="\n")

    async def fields(self, request: Request, kind: type[Body]) -> Body:
        """Read and decode the body. Raises `ApiError`."""
        return await decoded(await read_body(request, self.options), kind)


async def decoded(body: bytes, kind: type[Body]) -> Body:
    """Decode a body; a long one in a thread, as it takes a while."""
    if len(body) <= SHORT_BODY:
        return decode(body, kind)
    json_decoder(kind)  # threads convert to it
    return await asyncio.to_thread(decode, body, kind)


async def _unless_disconnected(request: Request, work: Awaitable[Answer]) -> Answer:
    """Await `work`, and cancel it if the client disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(CLOSED, "the client disconnected.")  # never sent
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`body` as JSON."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def _error(request: Request, error: Exception) -> Response:
    known = api_error(error)
    return json_response(known.body, known.status, known.headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    where = f"{request.method} {request.url.path[:200]}"
    message = {404: f"{where} does not exist.", 405: f"{where}: another method is needed."}.get(error.status_code)
    known = ApiError(error.status_code, message or error.detail)
    return json_response(known.body, known.status, dict(error.headers or {}))
