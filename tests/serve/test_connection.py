"""Timeouts for clients that send nothing, half a request, or read nothing."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, served

RUNNING, ENDED = "vllm:num_requests_running", "vllm:request_success_total"
ABORTED = 'vllm:request_success_total{finished_reason="abort",model_name="lm"}'
CANCELLED = "intaglio:requests_cancelled_total"
SEND_TIMEOUT = 1  # seconds
MOST = 3  # one row and two places in the queue


@pytest.fixture(scope="module")
def limited(chat_models: tuple[Path, Path]) -> Iterator[Served]:
    """A server with one row that does not wait long for its clients."""
    limits = ("--rows", 1, "--body-timeout", 2, "--send-timeout", SEND_TIMEOUT)
    with served(f"lm={chat_models[1]}", *limits) as running:
        yield running


def head(path: str, length: int) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json", f"Content-Length: {length}")
    return "\r\n".join((*lines, "", "")).encode()


def seconds_until_closed(connection: socket.socket) -> float:
    began = time.monotonic()
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - began


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"POST /v1/comp", b"GET /health HTTP/1.1\r\nHost: test\r\nX-Long: a"])
def test_client_without_complete_headers_is_disconnected(limited: Served, sent: bytes) -> None:
    with limited.connect() as connection:
        connection.sendall(sent)
        assert 1 < seconds_until_closed(connection) < 30


def ask_for_health(connection: socket.socket) -> None:
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n")
    received = b""
    while not received.endswith(b"}"):
        received += (part := connection.recv(1 << 16))
        assert part, "it was disconnected"
    assert received.startswith(b"HTTP/1.1 200")


def test_partial_header_does_not_keep_the_connection_open(limited: Served) -> None:
    with limited.connect() as connection:
        ask_for_health(connection)
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        assert 3 < seconds_until_closed(connection) < 40


def test_occasionally_used_connection_is_kept(limited: Served) -> None:
    with limited.connect() as connection:
        for _ in range(4):
            ask_for_health(connection)
            time.sleep(1)  # together longer than the time for headers


def test_number_of_incomplete_bodies_is_limited(chat_models: tuple[Path, Path]) -> None:
    body = {"model": "lm", "prompt": "a", "max_tokens": 1}
    with served(f"lm={chat_models[1]}", "--rows", 1, "--max-waiting", 2, "--body-timeout", 60) as running:
        stopped = [running.connect() for _ in range(MOST)]
        for connection in stopped:
            connection.sendall(head("/v1/completions", 100) + b'{"model"')
        _, error = _until(running, body, 429)
        assert error["error"]["message"] == f"{MOST} requests are arriving, the maximum. Try again later."
        with running.connect() as connection:
            connection.sendall(head("/v1/completions", 100))
            assert b"retry-after: 1" in connection.recv(1 << 16).lower()
        assert running.get("/health/ready")[0] == 200
        for connection in stopped:
            connection.close()
        assert _until(running, body, 200)[0] == 200


def _until(running: Served, body: dict[str, Any], status: int) -> tuple[int, Any]:
    """Send requests until one is answered with `status`; connections are noticed a moment after they change."""
    until = time.monotonic() + 30
    while (found := running.post("/v1/completions", body))[0] != status:
        assert time.monotonic() < until, found
        time.sleep(0.05)
    return found


@pytest.mark.parametrize(("stream", "texts"), [(True, 32), (False, 2)])
def test_stalled_client_is_disconnected_and_its_texts_are_cancelled(limited: Served, stream: bool, texts: int) -> None:
    fields = {"model": "lm", "prompt": "a", "max_tokens": 200, "n": texts, "logprobs": 20, "ignore_eos": True}
    sent = json.dumps({**fields, "stream": stream}).encode()
    aborted, ended, cancelled = limited.metric(ABORTED), limited.metric(ENDED), limited.metric(CANCELLED)
    with limited.connect_with_small_buffers() as connection:
        connection.sendall(head("/v1/completions", len(sent)) + sent)
        limited.wait_for(ENDED, ended + texts, 120)
        limited.wait_for(RUNNING, 0)
        if stream:
            limited.wait_for(CANCELLED, cancelled + 1)
            assert limited.metric(ABORTED) > aborted  # the last of them needed a row for longer than the timeout
        else:
            time.sleep(2 * SEND_TIMEOUT)
        received = _all(connection)
    assert received.startswith(b"HTTP/1.1 200")
    first, _, rest = received.partition(b"\r\n\r\n")
    assert b"[DONE]" not in rest if stream else len(rest) < _length(first), "it was sent completely"
    assert limited.post("/v1/completions", {**fields, "n": 1, "max_tokens": 1})[0] == 200


def test_slow_client_gets_the_full_response(limited: Served) -> None:
    fields = {"model": "lm", "prompt": "a", "max_tokens": 200, "n": 2, "logprobs": 20, "ignore_eos": True}
    sent = json.dumps(fields).encode()
    with limited.connect_with_small_buffers() as connection:
        connection.sendall(head("/v1/completions", len(sent)) + sent)
        received = connection.recv(1)
        for number in range(1, 7):  # longer than the timeout, which each read extends
            time.sleep(SEND_TIMEOUT / 4)
            while len(received) < 20_000 * number:
                received += connection.recv(20_000)
        first, _, body = received.partition(b"\r\n\r\n")
        length = _length(first)
        while len(body) < length and (part := connection.recv(1 << 16)):
            body += part
    assert length > 200_000, "it would fit into the buffers"
    assert len(json.loads(body)["choices"]) == 2


def _length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length: ")[2].split()[0])


def _all(connection: socket.socket) -> bytes:
    received = b""
    try:
        while part := connection.recv(1 << 16):
            received += part
    except ConnectionResetError:
        pass
    return received


def test_huge_prompt_is_rejected_without_blocking_streams(limited: Served) -> None:
    body = json.dumps({"model": "lm", "prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
    with limited.connect() as connection:
        connection.sendall(head("/v1/completions", len(body)) + body)
        received = connection.recv(1 << 16)
        status, error = limited.post("/v1/completions", {"model": "lm", "prompt": "word, " * 1_200_000})
        while b"[DONE]" not in received:
            received += connection.recv(1 << 16)
    assert status == 400
    assert error["error"]["type"] == "invalid_request_error"
    assert "prompt of 6000000 characters without spaces: the model takes at most" in error["error"]["message"]
    assert b'"finish_reason":"length"' in received
