"""The log: one line for each event, for any client input, without their texts."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.serve.monitoring.logs import Access, Format, JsonFormatter, TextFormatter, configure, log_access, request

NAMES = ("", "intaglio", "intaglio.access", "uvicorn", "uvicorn.error", "uvicorn.access")
EVIL = 'a\nb\r\x1b[31m\x9b2J\u2028\u202e\x7f\udcff"\\'


@pytest.fixture(autouse=True)
def kept_loggers() -> Iterator[None]:
    """Restore the loggers."""
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(each, list(each.handlers), each.level, each.propagate) for each in loggers]
    yield
    for each, handlers, level, propagate in before:
        each.handlers, each.propagate, each.disabled = handlers, propagate, False
        each.setLevel(level)


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    out, err = capsys.readouterr()
    assert out == ""
    return [json.loads(line) for line in err.splitlines()]


def access(**changed: Any) -> Access:
    fields = {"method": "POST", "path": "/v1/embeddings", "status": 200, "seconds": 0.1234567, "client": "10.0.0.1"}
    return Access(**{**fields, **changed})


def test_request_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    with request("req-1"):
        log_access(access(model="llama", prompt_tokens=5, completion_tokens=0, cached_tokens=3, finish_reason="stop"))
    (line,) = written(capsys)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "intaglio.access",
        "message": "POST /v1/embeddings 200",
        "request_id": "req-1",
        "method": "POST",
        "path": "/v1/embeddings",
        "status": 200,
        "seconds": 0.123457,
        "client": "10.0.0.1",
        "model": "llama",
        "prompt_tokens": 5,
        "completion_tokens": 0,
        "cached_tokens": 3,
        "finish_reason": "stop",
    }


def test_query_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    for style in ("json", "text"):
        configure(style)  # type: ignore[arg-type]
        log_access(access(path="/v1/models?api_key=secret"))
    assert "secret" not in capsys.readouterr().err


def test_text_format(capsys: pytest.CaptureFixture[str]) -> None:
    configure("text")
    with request("req-1"):
        log_access(access(status=503, client=None))
    line = capsys.readouterr().err
    assert line.endswith("ERROR   POST /v1/embeddings 503 seconds=0.123457 request_id=req-1\n")


def test_concurrent_requests_log_their_own_ids(capsys: pytest.CaptureFixture[str]) -> None:
    configure()

    async def serve(identifier: str) -> None:
        with request(identifier):
            await asyncio.sleep(0)
            await asyncio.to_thread(logging.getLogger("intaglio.serve").warning, "of %s", identifier)

    async def main() -> None:
        await asyncio.gather(*(serve(f"req-{number}") for number in range(5)))

    asyncio.run(main())
    logging.getLogger("intaglio.serve").warning("of nobody")
    lines = written(capsys)
    assert len(lines) == 6
    assert all(line["message"] == f"of {line.get('request_id', 'nobody')}" for line in lines)


@pytest.mark.parametrize("style", ["json", "text"])
def test_terminal_escapes_and_line_ends_in_values_are_escaped(
    style: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(style)
    with request(EVIL):
        log_access(access(path=f"/v1/{EVIL}", model=EVIL))
    line = capsys.readouterr().err
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    if style == "json":
        assert json.loads(line)["model"] == EVIL.replace("\udcff", "\\udcff")


@given(st.text(st.characters()))
def test_any_message_is_one_printable_line(message: str) -> None:
    record = logging.LogRecord("intaglio", logging.INFO, "", 0, message, None, None)
    record.fields = {"model": message}
    for formatter in (JsonFormatter(), TextFormatter()):
        line = formatter.format(record)
        assert len(line.splitlines()) == 1
        assert "\x1b" not in line
    assert json.loads(JsonFormatter().format(record))["level"] == "info"


def test_a_traceback_stays_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    for style in ("json", "text"):
        configure(style)  # type: ignore[arg-type]
        try:
            raise ValueError("\x1b[2J\nlooks like a line")
        except ValueError:
            logging.getLogger("uvicorn.error").exception("Exception in ASGI application")
        lines = capsys.readouterr().err.splitlines()
        if style == "json":
            (line,) = (json.loads(each) for each in lines)
            assert line["logger"] == "uvicorn.error"
            assert line["traceback"].endswith("looks like a line")
        else:
            assert "\x1b" not in "".join(lines)
            assert all(line.startswith("    ") for line in lines[1:]) and len(lines) > 3


def test_log_level_of_an_earlier_server_is_reset(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    configure("json")
    logging.getLogger("uvicorn.error").error("Exception in ASGI application")
    assert [line["level"] for line in written(capsys)] == ["error"]


def test_log_levels(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", logging.WARNING)
    log_access(access())
    log_access(access(status=500))
    assert [line["status"] for line in written(capsys)] == [500]


def test_uvicorns_access_log_is_off() -> None:
    """A real server, stopped after one request."""
    code = """if True:
        import threading, urllib.request, uvicorn
        from intaglio.serve.monitoring.logs import configure

        async def application(scope, receive, send):
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 200})
                await send({"type": "http.response.body"})
                raise ValueError("after the end")

        class Server(uvicorn.Server):
            async def startup(self, sockets=None):
                await super().startup(sockets)
                port = self.servers[0].sockets[0].getsockname()[1]
                threading.Thread(target=ask, args=(port,)).start()

        def ask(port):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/?key=secret").read()
            server.should_exit = True

        configure()
        server = Server(uvicorn.Config(application, port=0, lifespan="off", log_config=None))
        server.run()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    assert "secret" not in done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["logger"] for line in lines} == {"uvicorn.error"}
    (failed,) = (line for line in lines if line["level"] == "error")
    assert "after the end" in failed["traceback"]


def test_log_streams_of_other_libraries_stay_open() -> None:
    """absl's handler closes the stream that it writes to."""
    code = """if True:
        import io, logging
        from intaglio.serve.monitoring.logs import configure

        class Closing(logging.StreamHandler):
            def close(self):
                self.stream.close()

        stream = io.StringIO()
        logging.getLogger("other").addHandler(Closing(stream))
        configure()
        assert not stream.closed
    """
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
