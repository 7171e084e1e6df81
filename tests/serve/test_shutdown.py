"""Shutdown of a server by SIGTERM, from the clients' view."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from served import Served, served

LONG = {"model": "lm", "prompt": "The import", "max_tokens": 200, "ignore_eos": True, "stream": True}
TEXTS = ["a " * 250] * 2000


def refuses(running: Served) -> bool:
    try:
        running.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def test_sigterm_finishes_running_texts_and_closes_connections(
    chat_models: tuple[Path, Path],
) -> None:
    body = json.dumps(LONG).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with served(f"lm={chat_models[1]}", "--rows", 1) as running:
        with running.connect() as idle, running.connect() as busy:
            idle.sendall(b"GET /health/ready HTTP/1.1\r\nHost: a\r\n\r\n")
            ready = b""
            while not ready.endswith(b'"ok"}'):
                ready += (part := idle.recv(1 << 16))
                assert part, ready
            busy.sendall(f"{head}\r\n\r\n".encode() + body)
            text = busy.recv(1 << 16)
            running.process.send_signal(signal.SIGTERM)
            assert idle.recv(1 << 16) == b""  # closed, without an answer
            until = time.monotonic() + 10
            while not refuses(running):
                assert time.monotonic() < until
            while part := busy.recv(1 << 16):
                text += part
            assert b"data: [DONE]" in text
        assert running.process.wait(60) == 0


@pytest.mark.proof
def test_embeddings_beyond_the_grace_period_get_503(tiny_bundle: Path) -> None:
    limits = ("--grace", 0, "--threads", 1, "--max-waiting-tokens", 1 << 24)
    answers: list[tuple[int, Any]] = []
    with served(f"encoder={tiny_bundle}", *limits) as running:
        body = {"model": "encoder", "input": TEXTS}
        asking = threading.Thread(target=lambda: answers.append(running.post("/v1/embeddings", body)))
        asking.start()
        until = time.monotonic() + 60
        while running.metric("vllm:num_requests_running") == 0:
            assert time.monotonic() < until
        running.process.send_signal(signal.SIGTERM)
        asking.join()
        assert running.process.wait(60) == 0
    log = "".join(running.log)
    assert "Traceback" not in log
    ((status, error),) = answers
    assert (status, error["error"]["type"]) == (503, "server_error")
    assert "the server is shutting down. Send the request again." in error["error"]["message"]
    counted = re.search(r"no new requests; running texts: (\d+)", log)
    assert counted is not None
    assert int(counted[1]) > 0
    left = re.search(r"(\d+) texts were not finished within the grace period", log)
    assert left is not None
    assert 0 < int(left[1]) <= len(TEXTS)


def test_default_host_is_local(server: Served) -> None:
    assert server.host == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):  # an address of this machine as well
        socket.create_connection(("127.0.0.2", server.port), timeout=10)
