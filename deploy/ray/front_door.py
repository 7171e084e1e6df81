"""The deployment that clients reach: the API of `intaglio serve`, whose requests are answered by the replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from intaglio.deploy.ray.replica import Forwarded
from intaglio.deploy.ray.replica_metrics import merged
from intaglio.deploy.ray.settings import RaySettings
from intaglio.errors import one_line
from intaglio.serve.application import Api, EncoderFields, EncoderResponse, Fields, decoded, json_response
from intaglio.serve.bodies.arrivals import Arrivals
from intaglio.serve.bodies.json_body import Body, read_body
from intaglio.serve.models.model import DecoderModel, ModelCard, ModelList, Models, unknown_model
from intaglio.serve.monitoring.logs import configure, request_id
from intaglio.serve.monitoring.metrics import exposition
from intaglio.serve.monitoring.observation import KEY
from intaglio.serve.options import ServerOptions, read_keys
from intaglio.serve.responses.errors import RETRY_AFTER, ApiError, api_error, invalid
from intaglio.serve.responses.formatter import Chunk, Formatter
from intaglio.serve.workers.encoder_worker import EncoderWorker

RETRIES = 1  # of a request whose replica died before its response began; more could kill all replicas, one by one
AFTER_TIMEOUT = 5.0  # seconds that a replica has to say itself that a response takes too long
SCRAPE_SECONDS = 5.0  # in which a replica returns its metrics
PROMPT_FIELDS = ("lora", "tools", "instructions", "messages", "input", "prompt")

log = logging.getLogger("intaglio.serve")


class StreamError(msgspec.Struct):
    """The event of an error in a stream of the Responses API."""

    code: str | None
    message: str
    param: str | None
    sequence_number: int
    type: str = "error"


class FrontDoor:
    """The deployment."""

    def __init__(self, settings: RaySettings, *handles: Any):
        """`handles`: the deployments of the models, in order."""
        configure("text")
        keys = () if settings.api_key_file is None else read_keys(Path(settings.api_key_file))
        named = dict(zip(settings.models, handles, strict=True))
        self._api = FrontDoorApi(named, settings.adapted, settings.options(keys))

    def __serve_build_asgi_app__(self) -> ASGIApp:  # Ray's name
        """The application that Ray serves."""
        application = self._api.application()

        async def one_identifier(scope: Scope, receive: Receive, send: Send) -> None:
            """Ray's proxy returns the request's id as well."""

            async def sent(message: Message) -> None:
                if message["type"] == "http.response.start":
                    headers = [header for header in message["headers"] if header[0] != b"x-request-id"]
                    message = {**message, "headers": headers}
                await send(message)

            await application(scope, receive, sent)

        return one_identifier


class FrontDoorApi(Api):
    """The endpoints: each request is authenticated, limited, read and checked here, then sent to a replica."""

    def __init__(self, handles: Mapping[str, Any], adapted: Mapping[str, str], options: ServerOptions):
        """`handles`: name of a model -> its deployment; `adapted`: of a model with an adapter -> that of the model."""
        super().__init__(Models({}), options)
        self.arrivals = Arrivals((options.rows + options.max_waiting) * len(handles))
        self._handles = handles
        self._adapted = adapted
        self._cards: dict[str, ModelCard] = {}

    async def list_models(self, request: Request) -> Response:
        """All models."""
        cards = await asyncio.gather(*map(self._card, self._handles))
        # Their replicas have been asked: Ray takes two calls of one request to a deployment for the same one.
        adapted = [await self._card(name) for name in self._adapted]
        return json_response(ModelList([*cards, *adapted]))

    async def show_model(self, request: Request) -> Response:
        """One model."""
        return json_response(await self._card(request.path_params["name"]))

    async def show_metrics(self, request: Request) -> Response:
        """The metrics of the front door and of all replicas, which the label `replica` tells apart."""
        calls = [handle.broadcast("metrics") for handle in self._handles.values()]
        waiting = [call.results_async(timeout_s=SCRAPE_SECONDS, return_exceptions=True) for call in calls]
        replies = [found for each in await asyncio.gather(*waiting, return_exceptions=True) for found in _listed(each)]
        own, _ = self.metrics.render("")
        text, kind = exposition(merged([("front-door", own.decode()), *replies]), request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": kind})

    async def fields(self, request: Request, kind: type[Body]) -> Body:
        """See `Api`; the body is kept, to be forwarded."""
        request.state.body = await read_body(request, self.options)
        return await decoded(request.state.body, kind)

    async def generate(
        self, request: Request, fields: Fields, formatter: Callable[[Fields, DecoderModel, int], Formatter]
    ) -> Response:
        """See `Api`."""
        # Keys and values depend on the adapter: a prompt has no prefix in common with those of others.
        adapted = fields.model if fields.model in self._adapted else None
        prompt = msgspec.json.encode([adapted, *(getattr(fields, name, None) for name in PROMPT_FIELDS)])
        return self._forwarded(request, fields.model, prompt)

    async def encode(
        self,
        request: Request,
        kind: type[EncoderFields],
        create: Callable[[EncoderFields, EncoderWorker, str], Coroutine[Any, Any, EncoderResponse]],
    ) -> Response:
        """See `Api`."""
        model = (await self.fields(request, kind)).model
        return self._forwarded(request, self._only() if model is None else model)

    def _forwarded(self, request: Request, model: str, prompt: bytes = b"") -> Response:
        handle = self._handle(model)
        record = request.scope["state"][KEY]
        record.model = model
        self.arrivals.leave(record)
        identifier = (request_id() or "").encode()
        forwarded = Forwarded(request.scope["path"], identifier, request.state.body, prompt)
        return Answer(handle, forwarded, self.options.request_timeout)

    def _only(self) -> str:
        """The only model, of a request that names none."""
        if len(self._handles) != 1:
            raise invalid(f"model: the application has {len(self._handles)}, expected one. Name a model.", "model")
        return next(iter(self._handles))

    def _handle(self, model: str) -> Any:
        found = self._handles.get(self._adapted.get(model, model))
        if found is None:
            raise unknown_model(model, [*self._handles, *self._adapted])
        return found

    async def _card(self, model: str) -> ModelCard:
        """Ask one replica, once: they differ only in when they opened the model. Adapters differ only in the name."""
        handle = self._handle(model)
        asked = self._adapted.get(model, model)
        if asked not in self._cards:
            try:
                async with asyncio.timeout(self.options.request_timeout):
                    found = await handle.card.remote()
            except Exception as error:
                raise response_error(error) from error
            self._cards.setdefault(asked, found)
        return msgspec.structs.replace(self._cards[asked], id=model)


class Answer(Response):
    """The response of a replica, sent on as it arrives."""

    def __init__(self, handle: Any, request: Forwarded, timeout: float):
        """`timeout`: seconds until it has to begin, in which it may wait for a replica."""
        self._answer = handle.options(method_name="answer", stream=True)
        self._request, self._timeout = request, timeout
        self._begun = False
        self._events = 0  # with a name, of the Responses API

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, or in the place of its rest an error. Raises `ApiError` if it has not begun.

        Ray cancels this, and the call of the replica, if the client disconnects.
        """
        for retries in reversed(range(RETRIES + 1)):
            try:
                await self._send_response(send)
                return
            except Exception as error:
                known = response_error(error)
                if self._begun:
                    log.error("the response ends early: %s", one_line(error, 200))
                    await send({"type": "http.response.body", "body": self._failure(known), "more_body": False})
                    return
                if not (retries and isinstance(error, RayActorError)):
                    raise known from error

    async def _send_response(self, send: Send) -> None:
        """Call a replica. Raises `TimeoutError` if none has answered in time, though replicas have the same limit."""
        messages = self._answer.remote(self._request)
        try:
            async with asyncio.timeout(self._timeout + AFTER_TIMEOUT) as limit:
                async for group in messages:
                    limit.reschedule(None)
                    for message in group:
                        self._begun = True
                        self._events += message.get("body", b"").count(b"\ndata: ")
                        await send(message)
        except TimeoutError:
            messages.cancel()
            raise

    def _failure(self, error: ApiError) -> bytes:
        """The last event of a stream. Other responses begin when they are complete."""
        if self._request.path != "/v1/responses":
            return Chunk(error.body).encode()
        details = error.body.error
        return Chunk(StreamError(details.code, details.message, details.param, self._events), "error").encode()


def response_error(error: Exception) -> ApiError:
    """The error that a client gets for an exception of a call."""
    if isinstance(error, BackPressureError):
        message = f"{error.args[1]} requests to this model are waiting, the maximum. Try again later."
        return ApiError(429, message, "rate_limit_error", code="queue_full", retry_after=RETRY_AFTER)
    if isinstance(error, RayActorError | DeploymentUnavailableError):
        message = "the replica of the model has died, or none is there. Send the request again."
        return ApiError(503, message, "server_error", code="server_error", retry_after=RETRY_AFTER)
    if isinstance(error, TimeoutError):
        return ApiError(504, "no replica answered in time. Send the request again later.", "timeout_error")
    return api_error(error)


def _listed(replies: Any) -> list[tuple[str, str]]:
    """Those of replicas that answered; the others have just died, or there are none."""
    return [] if isinstance(replies, BaseException) else [each for each in replies if isinstance(each, tuple)]
