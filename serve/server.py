"""The verb `serve`: open the bundles, listen, and shut down without losing running requests."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from sse_starlette.sse import AppStatus

from intaglio.bundle.bundle_names import named
from intaglio.display.verbosity import Verbosity, verbosity
from intaglio.errors import UsageError, one_line
from intaglio.files.input_files import read_bytes
from intaglio.processes import async_run
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.generation.worker import DecoderWorker
from intaglio.serve.application import Api
from intaglio.serve.bodies.uploads import Uploads
from intaglio.serve.connection import connection_class
from intaglio.serve.models.agent_description import AgentDescription, read_description
from intaglio.serve.models.agent_opening import check_descriptions, open_agents
from intaglio.serve.models.served_agent import ServedAgent
from intaglio.serve.monitoring.logs import Format, configure
from intaglio.serve.monitoring.trace import TraceFile
from intaglio.serve.opening import open_models
from intaglio.serve.options import ServerOptions
from intaglio.serve.responses.errors import ApiError
from intaglio.serve.workers.encoder_worker import EncoderWorker
from intaglio.serve.workers.speech_worker import SpeechWorker

MAX_PEM = 1 << 20  # bytes of a certificate chain, or of a key
BACKLOG = 2048  # connections that the kernel holds until they are accepted
AFTER_GRACE = 5.0  # seconds for the errors of cancelled requests to be sent
SIGNALS = (signal.SIGINT, signal.SIGTERM)

Failing = DecoderWorker | EncoderWorker | SpeechWorker | ServedAgent

log = logging.getLogger("intaglio.serve")
LOG_LEVELS = {Verbosity.QUIET: logging.ERROR, Verbosity.NORMAL: logging.INFO, Verbosity.VERBOSE: logging.DEBUG}


def serve(
    bundles: Sequence[str | Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    trace: str | Path | None = None,
    log_format: Format = "text",
    options: ServerOptions | None = None,
    agents: Sequence[str | Path] = (),
    **opening: Any,
) -> None:
    """Serve `bundles` behind the OpenAI API until SIGTERM or SIGINT; see `open_models` for the remaining options.

    `agents`: files as of `read_description`, of agents that are models too. Raises `UsageError` for an address that
    cannot be listened on, for certificates that cannot be read, and for agents that cannot be opened.
    """
    options = options or ServerOptions()
    certificates = _checked_certificates(tls_cert, tls_key)
    descriptions = [read_description(Path(each)) for each in agents]
    check_descriptions(descriptions, named(bundles))
    with bound(host, port) as listening, ExitStack() as opened:
        configure(log_format, LOG_LEVELS[verbosity()])
        written = opened.enter_context(TraceFile(Path(trace))) if trace is not None else None
        models = open_models(bundles, options, **opening)
        opened.callback(models.close)
        if written is not None:
            for model in models.decoders:
                model.worker.scheduler.observer = written.scheduler(model.name)
        uploads = None
        if models.recognisers:
            uploads = Uploads(opened.enter_context(scratch_directory("uploads")), options)
        api = Api(models, options, uploads)
        config = uvicorn.Config(
            api.application(),
            http=connection_class(options),  # a stream's tokens cost a quarter of what they cost with h11
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(options.grace + AFTER_GRACE) + 1,
            **certificates,
        )
        AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]  # running streams are ours
        async_run.run(_Server(config, api).run_on(listening, descriptions))


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket on this address, so that a wrong one is reported before models are opened. Raises `UsageError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise UsageError(
            f"--host {host}: {one_line(error)}. Use an address of this machine, such as 0.0.0.0."
        ) from error
    with listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"cannot listen on {host}, port {port}: {one_line(error)}. Choose another --port."
            ) from error
        yield listening


def _checked_certificates(certificate: str | Path | None, key: str | Path | None) -> dict[str, Any]:
    """The options of uvicorn for TLS. Raises `UsageError` for files that cannot be read, or do not fit."""
    if certificate is None and key is None:
        return {}
    if certificate is None or key is None:
        raise UsageError("--tls-cert and --tls-key belong together, got one of them. Give both.")
    for option, path in (("--tls-cert", certificate), ("--tls-key", key)):
        try:
            read_bytes(Path(path), MAX_PEM, pipes=False)  # OpenSSL would wait for a pipe, and read a device to its end
        except OSError as error:
            raise UsageError(f"{option} {path}: {error.strerror}. Give PEM files.") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--tls-cert {certificate}, --tls-key {key}: {one_line(error)}. Give PEM files.") from error
    return {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}


class _Server(uvicorn.Server):
    """A server that finishes running requests before it stops, and whose exit code is 0 after a signal."""

    def __init__(self, config: uvicorn.Config, api: Api):
        super().__init__(config)
        self._api = api

    async def run_on(self, listening: socket.socket, descriptions: Sequence[AgentDescription]) -> None:
        """Open the agents, and listen until a signal arrives."""
        loop = asyncio.get_running_loop()
        for model in self._api.models.decoders:
            model.worker.start(loop)
        async with open_agents(descriptions, self._api.models) as agents:
            self._api.models.agents = agents
            listening.listen(BACKLOG)
            await self.serve([listening])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and report where."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        names = ", ".join([*self._api.models.by_name, *self._api.models.adapted, *self._api.models.agents])
        log.info("listening on %s://%s:%d with %s", "https" if self.config.ssl else "http", shown, port, names)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals, and do not raise them again afterwards."""
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal: shut down; a second one: do not wait for running requests."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, finish the running requests within the grace period, cancel the others.

        The port is closed at once, instead of answering 503: a proxy whose connection is refused knows that nothing was
        processed, and sends the request to another server, which it does not do for a POST that was answered.
        """
        grace = self._api.options.grace
        workers = [each.worker for each in self._api.models.by_name.values()]
        failing: list[Failing] = [*self._api.models.agents.values(), *workers]
        running = sum(load.running + load.waiting for load in (worker.state() for worker in workers))
        log.info("shutting down: no new requests; running texts: %d, with %g seconds to finish", running, grace)
        late = ApiError(503, "the server is shutting down. Send the request again.", "server_error", retry_after=1)
        timer = asyncio.get_running_loop().call_later(grace, _fail_all, failing, late)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
        log.info("shut down")


def _fail_all(running: Sequence[Failing], error: ApiError) -> None:
    left = sum(each.fail_all(error) for each in running)
    if left:
        log.warning("%d texts were not finished within the grace period, and end here", left)
