"""Authentication, limits, and disconnects of clients and servers."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from served import Served, served

import intaglio as package

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
ENDED = "vllm:request_success_total"  # cancelled ones have the reason "abort"


def request(path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """An HTTP request as bytes."""
    size = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json", f"Content-Length: {size}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def completion(**options: Any) -> bytes:
    given = {"model": "lm", "prompt": "The import", "max_tokens": 200, "ignore_eos": True, **options}
    return json.dumps(given).encode()


def answer(connection: socket.socket) -> str:
    """All that arrives until the other side closes the connection, or a full response has arrived."""
    data = b""
    while True:
        part = connection.recv(1 << 16)
        data += part
        head, found, rest = data.partition(b"\r\n\r\n")
        lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        if not part or (found and lengths and len(rest) >= lengths[0]):
            return data.decode(errors="replace")


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"{", 400, "not valid JSON"),
        (b"", 400, "not valid JSON"),
        (b"\xff\xfe", 400, "not valid JSON"),
        (b"[" * 100_000, 400, "not valid JSON"),
        (b'{"model": "lm", "prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, ""),
        (b'{"model": "lm", "prompt": "a", "max_tokens": 1e999}', 400, ""),
        (b'{"model": "lm", "prompt": "a", "max_tokens": "3"}', 400, "max_tokens: expected int"),
        (b'{"model": "lm", "prompt": "a", "n": 0}', 400, "n: expected int >= 1"),
        (b'{"model": 7, "prompt": "a"}', 400, "model: expected str"),
        (b'{"model": "lm", "prompt": "\\ud800"}', 400, ""),
        (b'{"model": "lm", "prompt": [1, "a"]}', 400, "mixed"),
        (b'{"model": "lm", "prompt": [-1]}', 400, "token ids go from 0"),
        (b'{"model": "lm", "prompt": [99999999999999999999]}', 400, ""),
        (b'{"model": "lm", "prompt": []}', 400, "the list is empty"),
        (b'{"model": "lm", "prompt": "a", "\\u001b[31m": 1}', 400, "is not supported"),
    ],
)
def test_invalid_body_gets_an_error(server: Served, body: bytes, status: int, reason: str) -> None:
    found, error = server.post("/v1/completions", body)
    assert found == status
    assert reason in error["error"]["message"]
    assert "a bug in intaglio" not in error["error"]["message"]


def test_unknown_methods_create_no_metric_series(server: Served) -> None:
    with server.connect() as connection:
        connection.sendall(b"PROPFIND / HTTP/1.1\r\nHost: test\r\n\r\n")
        answer(connection)
    assert 'method="PROPFIND"' not in urllib.request.urlopen(f"{server.url}/metrics").read().decode()


def test_oversized_body_is_rejected_before_reading(server: Served) -> None:
    with server.connect() as connection:
        connection.sendall(request("/v1/completions", b"", length=10 << 20))
        assert "413" in answer(connection).split("\r\n")[0]
    with server.connect() as connection:  # the same, without a content length
        connection.sendall(request("/v1/completions", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        chunk = b"a" * 50_000
        try:
            for _ in range(200):
                connection.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        except OSError:  # it was closed before all was sent
            return
        assert "413" in answer(connection).split("\r\n")[0]


def test_incomplete_body_times_out(server: Served) -> None:
    with server.connect() as connection:
        connection.sendall(request("/v1/completions", b'{"model"', length=100))
        assert "408" in answer(connection).split("\r\n")[0]


def test_other_content_types_are_rejected(server: Served) -> None:
    status, error = server.post("/v1/completions", b"{}", **{"Content-Type": "text/plain"})
    assert status == 415
    assert "expected application/json" in error["error"]["message"]


def test_unknown_paths_and_methods_have_error_bodies(server: Served) -> None:
    assert server.get("/v1/nothing")[0] == 404
    status, error = server.get("/v1/completions")
    assert status == 405
    assert "another method is needed" in error["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_disconnected_client_frees_its_row(server: Served, stream: bool) -> None:
    server.wait_for(RUNNING, 0)
    ended = server.metric(ENDED)
    with server.connect() as connection:
        connection.sendall(request("/v1/completions", completion(stream=stream, n=4)))
        server.wait_for(RUNNING, 4)
    began = time.monotonic()
    server.wait_for(RUNNING, 0)
    assert time.monotonic() - began < 5  # all four take longer to finish only on a machine that is very slow
    server.wait_for(ENDED, ended + 4)
    assert server.metric("process_resident_memory_bytes") > 1 << 20


def test_text_is_unaffected_by_cancelled_requests(server: Served) -> None:
    body = json.loads(completion(max_tokens=150, temperature=0))
    alone = server.post("/v1/completions", body)[1]["choices"][0]["text"]
    found: list[str] = []
    asking = threading.Thread(
        target=lambda: found.append(server.post("/v1/completions", body)[1]["choices"][0]["text"])
    )
    asking.start()
    for _ in range(10):
        with server.connect() as connection:
            connection.sendall(request("/v1/completions", completion(stream=True, temperature=1.0)))
            time.sleep(0.02)
    asking.join()
    assert found == [alone]


def test_stalled_client_does_not_block_others(server: Served) -> None:
    with server.connect_with_small_buffers() as connection:
        connection.sendall(request("/v1/completions", completion(stream=True, n=3, logprobs=20)))
        assert server.post("/v1/completions", json.loads(completion(max_tokens=5)))[0] == 200
        server.wait_for(RUNNING, 0)


@pytest.fixture(scope="module")
def small(chat_models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server with one row, two slots in its queue, and keys."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("first-key\nsecond-key\n")
    limits = ("--rows", 1, "--max-waiting", 2, "--api-key-file", keys, "--request-timeout", 20)
    with served(f"lm={chat_models[1]}", *limits) as running:
        yield running


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer other"}, {"Authorization": "first-key"}, {"Authorization": "Basic first-key"}],
)
def test_requests_without_a_key_are_rejected(small: Served, headers: dict[str, str]) -> None:
    status, error = small.post("/v1/completions", json.loads(completion(max_tokens=1)), **headers)
    assert status == 401
    assert error["error"]["code"] == "invalid_api_key"
    assert small.get("/v1/models", **headers)[0] == 401
    assert small.get("/health/live", **headers)[0] == 200


def test_every_key_is_accepted(small: Served) -> None:
    for key in ("first-key", "second-key"):
        headers = {"Authorization": f"Bearer {key}"}
        assert small.post("/v1/completions", json.loads(completion(max_tokens=1)), **headers)[0] == 200


def test_full_queue_gets_429_with_retry_after(small: Served) -> None:
    key = "Authorization: Bearer first-key"
    busy = [small.connect() for _ in range(3)]
    try:
        for connection in busy:
            connection.sendall(request("/v1/completions", completion(stream=True), key))
            connection.recv(1)  # the headers come when it is admitted
        with small.connect() as connection:
            connection.sendall(request("/v1/completions", completion(), key))
            refused = answer(connection)
        assert "429" in refused.split("\r\n")[0]
        assert "retry-after: 1" in refused.lower()
        with openai.OpenAI(base_url=f"{small.url}/v1", api_key="first-key", max_retries=8) as client:  # it retries
            for connection in busy:
                connection.close()
            assert client.completions.create(model="lm", prompt="a", max_tokens=1).choices
    finally:
        for connection in busy:
            connection.close()


def test_texts_of_a_request_are_queued_atomically(small: Served) -> None:
    headers = {"Authorization": "Bearer first-key"}
    body = json.loads(completion(max_tokens=1, n=9))
    assert small.post("/v1/completions", body, **headers)[0] == 429
    assert small.post("/v1/completions", {**body, "n": 1}, **headers)[0] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_response_timeout_ends_with_an_error(chat_models: tuple[Path, Path], stream: bool) -> None:
    with served(f"lm={chat_models[1]}", "--request-timeout", 0.05, "--rows", 1) as running:
        body = json.loads(completion(stream=stream))
        if not stream:
            status, error = running.post("/v1/completions", body)
            assert status == 504
            assert error["error"]["type"] == "timeout_error"
            return
        with opened(running) as client, pytest.raises(openai.APIError, match=r"took more than 0\.05 seconds"):
            list(_stream(client))


def opened(running: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0)


def _stream(client: openai.OpenAI) -> Any:
    return client.completions.create(
        model="lm", prompt="The import", max_tokens=200, stream=True, extra_body={"ignore_eos": True}
    )


def test_running_requests_are_finished_after_sigterm(chat_models: tuple[Path, Path]) -> None:
    with served(f"lm={chat_models[1]}", "--rows", 2) as running:
        with opened(running) as client:
            stream = _stream(client)
            next(iter(stream))
            running.process.send_signal(signal.SIGTERM)
            reasons = [choice.finish_reason for chunk in stream for choice in chunk.choices]
            assert reasons[-1] == "length"
        assert running.process.wait(60) == 0
    log = "".join(running.log)
    assert "shutting down: no new requests; running texts: 1, with 30 seconds to finish" in log
    assert "Traceback" not in log


def test_requests_beyond_the_grace_period_end_with_an_error(chat_models: tuple[Path, Path]) -> None:
    with served(f"lm={chat_models[1]}", "--rows", 1, "--grace", 0) as running, opened(running) as client:
        stream = _stream(client)
        next(iter(stream))
        running.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="the server is shutting down"):
            list(stream)
        assert running.process.wait(60) == 0


@pytest.mark.proof
def test_killed_server_leaves_the_bundle_intact(chat_models: tuple[Path, Path]) -> None:
    bundle = chat_models[1]
    before = {path: path.stat().st_mtime_ns for path in bundle.rglob("*")}
    with served(f"lm={bundle}", "--rows", 1) as running, opened(running) as client:
        stream = _stream(client)
        next(iter(stream))
        running.process.kill()
        with pytest.raises((openai.APIConnectionError, httpx2.RemoteProtocolError)):
            list(stream)
    assert {path: path.stat().st_mtime_ns for path in bundle.rglob("*")} == before
    with served(f"lm={bundle}") as again:
        assert again.post("/v1/completions", json.loads(completion(max_tokens=1)))[0] == 200


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["x={bundle}", "x={bundle}"], "two bundles are named 'x'"),
        (["{bundle}", "--host", "203.0.113.7"], "cannot listen on 203.0.113.7"),
        (["{bundle}", "--tls-cert", "nothing.pem"], "--tls-cert and --tls-key belong together"),
        (["{bundle}", "--tls-cert", "nothing.pem", "--tls-key", "nothing.pem"], "Give PEM files"),
        (["{bundle}", "--rows", 0], "rows 0: expected at least 1"),
        (["{bundle}", "--api-key-file", "/dev/null"], "is a device"),
        (["{bundle}", "--api-key-file", str(Path(package.__file__).with_name("py.typed"))], "has no key"),
        (["a={bundle}", "b={bundle}", "--draft", "{bundle}"], "--draft needs exactly one decoder, got 2"),
        (["no-such-bundle"], "no-such-bundle"),
    ],
)
def test_invalid_options_give_one_line(intaglio: Any, tiny_decoder: Path, arguments: list[Any], reason: str) -> None:
    given = [str(each).replace("{bundle}", str(tiny_decoder)) for each in arguments]
    code, _, error = intaglio("serve", *given, "--port", 0)
    assert code == 2
    assert reason in error
    assert error.count("\n") == 1


def test_port_in_use_is_reported_before_opening_models(intaglio: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, error = intaglio("serve", "no-such-bundle", "--port", port)
    assert code == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in error
