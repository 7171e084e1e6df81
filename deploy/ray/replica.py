"""A replica of a model: the application of `intaglio serve`, called by the front door instead of clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from ray import serve
from sse_starlette.sse import AppStatus
from starlette.types import Message, Scope

from intaglio.deploy.ray.settings import RaySettings
from intaglio.errors import EngineError
from intaglio.serve.application import Api
from intaglio.serve.models.model import ModelCard, card_of
from intaglio.serve.monitoring.logs import configure
from intaglio.serve.opening import open_models


@dataclass(frozen=True)
class Forwarded:
    """A request that the front door has read and checked."""

    path: str
    identifier: bytes
    body: bytes
    prompt: bytes = b""  # for the router, which chooses a replica by it

    def __reduce__(self) -> tuple[Any, ...]:
        """The prompt stays with the router, as the body has it too."""
        return Forwarded, (self.path, self.identifier, self.body)

    @property
    def scope(self) -> Scope:
        """The ASGI scope of the request."""
        headers = [(b"content-type", b"application/json"), (b"x-request-id", self.identifier)]
        return {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": self.path, "raw_path": self.path.encode(), "root_path": "", "query_string": b"",
            "headers": headers, "client": None, "server": None,
        }  # fmt: skip


class Replica:
    """Opens one model, and its draft model if it has one."""

    async def __init__(self, name: str, settings: RaySettings):  # type: ignore[misc]  # Ray awaits it
        configure("text")
        AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]  # running streams are ours
        model, options = settings.models[name], settings.options()
        model.bundle.open()  # checks that it is the one that was deployed
        draft = None if model.draft is None else model.draft.open().path
        self._models = open_models(
            [f"{name}={model.bundle.path}"],
            options,
            strategy=model.strategy,
            cache_bits=model.cache_bits,
            draft=draft,
            adapter=tuple(f"{each}={adapter.check()}" for each, adapter in model.adapters.items()),
            prompt_name=model.prompt_name,
            target=settings.target,
            threads=settings.threads,
        )
        for each in self._models.decoders:
            each.worker.start(asyncio.get_running_loop())
        self._api = Api(self._models, options)
        metrics = self._api.metrics
        for counted in (metrics.requests, metrics.request_seconds, metrics.rejections, metrics.cancellations):
            metrics.registry.unregister(counted)  # the front door reports them
        self._application = self._api.application()

    async def answer(self, request: Forwarded) -> AsyncIterator[list[Message]]:
        """Yield the ASGI messages of the response, as many at a time as there are. Closing it ends the request."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        body: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> Message:
            if not body:
                await asyncio.Event().wait()  # if the client disconnects, the task is cancelled
            return body.pop()

        async def send(message: Message) -> None:
            messages.put_nowait(message)

        task = asyncio.create_task(self._application(request.scope, receive, send))
        task.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            ended = False
            while not ended:
                found = [await messages.get()]
                while not messages.empty():
                    found.append(messages.get_nowait())
                ended = found[-1] is None
                if ready := [message for message in found if message is not None]:
                    yield ready
            await task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def card(self) -> ModelCard:
        """What /v1/models says of the model."""
        (model,) = self._models.by_name.values()
        return card_of(model)

    async def metrics(self) -> tuple[str, str]:
        """The name of this replica, and its metrics in Prometheus' format."""
        text, _ = self._api.metrics.render("")
        return serve.get_replica_context().replica_id.unique_id, text.decode()

    async def check_health(self) -> None:
        """Raise an error if the model has stopped: Ray then replaces this replica."""
        if not self._models.alive:
            raise EngineError("a model has stopped, a bug in intaglio. See the log of this replica.")

    def __del__(self) -> None:
        """Ray calls this when a replica that has finished its requests is stopped."""
        if hasattr(self, "_models"):
            self._models.close()
