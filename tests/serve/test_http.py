"""HTTP: endless headers, half-closed connections, compressed bodies, pipelines, and invalid HTTP."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from served import Served

PATH = "/v1/completions"
FIELDS: dict[str, Any] = {"model": "lm", "prompt": "The import", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n"
CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)
UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"


def request(fields: dict[str, Any], headers: str = "", path: str = PATH) -> bytes:
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def received(connection: socket.socket) -> bytes:
    """All that arrives until the connection ends."""
    data = b""
    try:
        while part := connection.recv(1 << 16):
            data += part
    except ConnectionResetError:
        pass
    return data


def after_half_close(server: Served, sent: bytes) -> bytes:
    with server.connect() as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        return received(connection)


def refused(data: bytes) -> tuple[int, str]:
    """The status and the message of a response."""
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["message"]


def parts(data: bytes, size: int = 1000) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


MANY = b"".join(b"X-%d: a\r\n" % number for number in range(150))
LONG = b"X: " + b"a" * 80_000


@pytest.mark.parametrize("trickled", [False, True])
@pytest.mark.parametrize(
    "sent",
    [
        HEALTH + LONG,
        HEALTH + (b"X: " + b"a" * 8000 + b"\r\n") * 10,
        HEALTH + b"a" * 80_000,
        HEALTH + MANY,
        b"GET /" + b"a" * 80_000,
        CHUNKED + b"1\r\n{\r\n0\r\n" + MANY,
        CHUNKED + b"1\r\n{\r\n0\r\n" + LONG,
        CHUNKED + b"1;" + b"a" * 80_000,
        b"\r\n" * 40_000,
    ],
    ids=["value", "bytes", "name", "count", "path", "trailers", "trailer", "extension", "lines"],
)
def test_endless_headers_are_rejected_while_they_arrive(server: Served, sent: bytes, trickled: bool) -> None:
    with server.connect() as connection:
        for part in parts(sent) if trickled else [sent]:
            connection.sendall(part)
        data = received(connection)
    status, message = refused(data)
    assert status == 431
    assert "65536 bytes or 100 headers" in message


def test_endless_header_sender_is_disconnected(server: Served) -> None:
    line, sent = b"X: " + b"a" * 8000 + b"\r\n", 0
    with server.connect() as connection:
        connection.sendall(HEALTH)
        try:
            while sent < 200_000_000:
                connection.sendall(line)
                sent += len(line)
        except OSError:
            pass
        assert sent < 50_000_000  # the kernels' buffers included
        assert received(connection).startswith(b"HTTP/1.1 431")


def test_long_headers_within_the_limit_are_accepted(server: Served) -> None:
    data = after_half_close(server, HEALTH + b"X: " + b"a" * 60_000 + b"\r\n\r\n")
    assert data.startswith(b"HTTP/1.1 200")
    assert after_half_close(server, HEALTH + MANY[: MANY.index(b"X-90:")] + b"\r\n").startswith(b"HTTP/1.1 200")


def test_trailers_are_not_headers(server: Served) -> None:
    body = json.dumps({**FIELDS, "max_tokens": 1}).encode()
    sent = CHUNKED + b"%x\r\n%s\r\n0\r\nContent-Encoding: gzip\r\nX-Request-Id: trailer\r\n\r\n" % (len(body), body)
    data = after_half_close(server, sent)
    assert data.startswith(b"HTTP/1.1 200")
    assert b"trailer" not in data


@pytest.mark.parametrize("stream", [False, True])
def test_half_closed_connection_gets_the_full_response(server: Served, stream: bool) -> None:
    sent = request({**FIELDS, "stream": stream})
    found = after_half_close(server, sent)
    with server.connect() as connection:
        connection.sendall(sent.replace(b"Host: a", b"Host: a\r\nConnection: close"))
        expected = received(connection)
    assert _texts(found) == _texts(expected)
    assert not stream or found.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_stream_continues_after_a_half_close(server: Served) -> None:
    with server.connect() as connection:
        connection.sendall(request({**FIELDS, "stream": True, "max_tokens": 100}))
        data = connection.recv(1 << 16)
        connection.shutdown(socket.SHUT_WR)
        data += received(connection)
    assert b"[DONE]" in data
    sizes, rest = [], data.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        sizes.append(int(size, 16))
        rest = rest[sizes[-1] + 2 :]
    assert sizes[-1] == 0 and all(sizes[:-1])


def _texts(data: bytes) -> str:
    bodies = [line.removeprefix(b"data: ") for line in data.splitlines() if b'"choices"' in line]
    return "".join(choice["text"] for body in bodies for choice in json.loads(body)["choices"])


def test_pipelined_requests_are_answered_after_a_half_close(server: Served) -> None:
    data = after_half_close(server, request(FIELDS) + request({**FIELDS, "stream": True}) + HEALTH + b"\r\n")
    assert data.count(b"HTTP/1.1 200 OK\r\n") == 3
    assert b"[DONE]" in data
    assert data.endswith(b'{"status":"ok"}')


def test_disconnect_is_detected_without_a_response(server: Served) -> None:
    cancelled = server.metric("intaglio:requests_cancelled_total")
    with server.connect() as connection:
        connection.sendall(request({**FIELDS, "max_tokens": 200, "n": 32}))
        server.wait_for("vllm:num_requests_running", 4)
    server.wait_for("intaglio:requests_cancelled_total", cancelled + 1, 5)
    server.wait_for("vllm:num_requests_running", 0, 5)


def test_truncated_body_is_rejected(server: Served) -> None:
    status, message = refused(after_half_close(server, request(FIELDS)[:-5]))
    assert (status, message) == (400, "the body ended early. Send as many bytes as its header says.")


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"2\r\nabc\r\n",
        request(FIELDS).replace(b"Host: a", b"Host: a\r\nContent-Length: 3"),
        request(FIELDS).replace(b"Host: a", b"Host: a\r\nTransfer-Encoding: chunked"),
    ],
)
def test_invalid_http_gets_a_json_error(server: Served, sent: bytes) -> None:
    assert refused(after_half_close(server, sent)) == (400, "this is not valid HTTP. Send an HTTP/1.1 request.")


@pytest.mark.parametrize("stream", [False, True])
def test_running_response_finishes_before_garbage_is_rejected(server: Served, stream: bool) -> None:
    with server.connect() as connection:
        connection.sendall(request({**FIELDS, "stream": stream}) + b"\x00garbage\r\n\r\n")
        data = received(connection)
    assert data.startswith(b"HTTP/1.1 200")
    assert data.count(b"HTTP/1.1") == 1
    assert data.endswith(b"[DONE]\n\n\r\n0\r\n\r\n" if stream else b"}")


def test_http_2_upgrade_is_ignored_and_the_body_is_read(server: Served) -> None:
    sent = request(FIELDS, UPGRADE)
    data = after_half_close(server, sent + request({**FIELDS, "stream": True}, UPGRADE) + HEALTH + b"\r\n")
    assert data.count(b"HTTP/1.1 200 OK\r\n") == 3
    with server.connect() as connection:
        for part in parts(sent, 7):
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        assert _texts(received(connection)) == _texts(after_half_close(server, request(FIELDS)))


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "identity, gzip", "made-up"])
def test_compressed_body_is_rejected_with_its_encoding(server: Served, encoding: str) -> None:
    status, error = server.post(PATH, b"\x1f\x8b\x08\x00", **{"Content-Encoding": encoding})
    assert status == 415
    assert repr(encoding) in error["error"]["message"]
    assert "Send the body uncompressed" in error["error"]["message"]


def test_encoding_identity_is_accepted(server: Served) -> None:
    assert server.post(PATH, {**FIELDS, "max_tokens": 1}, **{"Content-Encoding": "identity"})[0] == 200


def test_compressed_body_without_header_is_detected(server: Served) -> None:
    status, error = server.post(PATH, b"\x1f\x8b\x08\x00")
    assert (status, "it begins like gzip" in error["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model": "lm", "prompt": "a", "max_tokens": 1, "max_tokens": 2}', "max_tokens"),
        (b'{"model": "lm", "prompt": "a", "max_tokens": 1, "max_\\u0074okens": 2}', "max_tokens"),
        (b'{"model": "lm", "prompt": "a", "logit_bias": {"1": 1, "1": 2}}', "1"),
    ],
)
def test_duplicate_keys_are_rejected(server: Served, body: bytes, param: str) -> None:
    status, error = server.post(PATH, body)
    assert (status, error["error"]["param"]) == (400, param)
    assert "is twice in one object" in error["error"]["message"]


def test_byte_order_mark_is_ignored(server: Served) -> None:
    body = json.dumps({**FIELDS, "max_tokens": 1}).encode()
    assert server.post(PATH, b"\xef\xbb\xbf" + body)[0] == 200


@pytest.mark.parametrize("depth", [50, 900, 5000, 60_000])
def test_deeply_nested_json_gets_a_one_line_error(server: Served, depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    status, error = server.post(PATH, b'{"model": "lm", "prompt": "a", "x": %s}' % nested)
    assert status == 400
    assert "bug" not in error["error"]["message"]
    assert server.get("/health")[0] == 200


def test_trickling_headers_do_not_block_the_server(server: Served) -> None:
    began = time.monotonic()
    connections = [server.connect() for _ in range(50)]
    for connection in connections:
        connection.sendall(HEALTH + b"X: a")
    assert server.get("/health")[0] == 200
    for connection in connections:
        connection.settimeout(20)
        try:
            while connection.sendall(b"a") is None and time.monotonic() - began < 10:
                if not connection.recv(1):
                    break
        except OSError:
            pass
        connection.close()
    assert time.monotonic() - began < 10, "each has as long as --body-timeout, at most"


def test_log_names_the_opened_models(server: Served) -> None:
    log = "".join(server.log)
    assert re.search(r"opening lm: generate, \d+\.\d MB\n", log)
    assert re.search(r"opened lm in \d+\.\d s: at most 240 tokens, 4 rows\n", log)
    assert re.search(r"opening encoder: embed, \d+\.\d MB\n", log)
    assert re.search(r"opened encoder in \d+\.\d s: at most 256 tokens\n", log)
