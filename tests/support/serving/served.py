"""A server in its own process, as users start it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STARTS_WITHIN = 120  # seconds


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], host: str, port: int, log: list[str]):
        self.process, self.host, self.port, self.log = process, host, port, log
        self.url = f"http://{host}:{port}"
        self.key: str | None = None  # for the metrics, where the server has keys

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """Status and JSON body."""
        return self._answer(urllib.request.Request(self.url + path, headers=headers))

    def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        """Status and JSON body; a `body` of bytes is sent unchanged."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        all_headers = {"Content-Type": "application/json", **headers}
        return self._answer(urllib.request.Request(self.url + path, data, all_headers))

    def _answer(self, request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def connect(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection((self.host, self.port), timeout=60)

    def connect_with_small_buffers(self) -> socket.socket:
        """A raw connection with kernel buffers of some 100 kB; the default ones hold some megabytes."""
        connection = socket.socket()
        connection.settimeout(60)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # bytes; the server's buffer depends on it
        connection.connect((self.host, self.port))
        return connection

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(f"{self.url}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read().decode()
        found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert found, f"no metric {name}"
        return sum(map(float, found))

    def wait_for(self, name: str, value: float, seconds: float = 30) -> None:
        """Wait until a metric has this value."""
        until = time.monotonic() + seconds
        while (now := self.metric(name)) != value:
            assert time.monotonic() < until, f"{name} is {now}, not {value}"
            time.sleep(0.02)

    def stop(self) -> int:
        """Stop it as an init system does; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def served(*arguments: object) -> Iterator[Served]:
    """Run `intaglio serve` on a free port."""
    command = [sys.executable, "-m", "intaglio", "serve", *map(str, arguments), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    log: list[str] = []
    ready = threading.Event()

    def read() -> None:
        for line in process.stderr:
            log.append(line)
            if "listening on" in line:
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert ready.wait(STARTS_WITHIN), "".join(log)
        found = next((found for line in log if (found := re.search(r"listening on https?://(.*?):(\d+)", line))), None)
        assert found is not None, "".join(log)
        yield Served(process, found.group(1), int(found.group(2)), log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
        reader.join()
        process.stderr.close()
