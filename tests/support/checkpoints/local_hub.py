"""A hub on this machine: the endpoints of the hub's API that a download uses."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSED = {
    "gated": (403, "GatedRepo"),
    "private": (401, "RepoNotFound"),
    "closed": (403, ""),
    "broken": (500, ""),
    "unknown": (404, "RepoNotFound"),
}


class LocalHub:
    """The address, the folders of models by their ids, and the downloaded files."""

    def __init__(self) -> None:
        self.address = ""
        self.models: dict[str, Path] = {}
        self.downloaded: list[str] = []


class Handler(BaseHTTPRequestHandler):
    """Request handler of one hub."""

    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/api/models/([\w-]+/[\w-]+)(/revision/(\w+)|/tree/\w+)?", path):
            self._describe(found[1], found[2] or "", found[3])
        elif found := re.fullmatch(r"/([\w-]+/[\w-]+)/resolve/\w+/(.+)", path):
            file = self.hub.models[found[1]] / found[2]
            if body:
                self.hub.downloaded.append(found[2])
            self._send(200, file.read_bytes(), body)
        else:
            self._send(404, b"")

    def _describe(self, model: str, what: str, revision: str | None) -> None:
        organisation = model.partition("/")[0]
        if organisation in REFUSED:
            status, code = REFUSED[organisation]
            self._send(status, b"{}", code=code)
            return
        if revision not in (None, "main", COMMIT):
            self._send(404, b"{}", code="RevisionNotFound")
            return
        folder = self.hub.models[model]
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        names = [file.relative_to(folder).as_posix() for file in files]
        tree = [
            {
                "type": "file",
                "path": name,
                "size": file.stat().st_size,
                "oid": hashlib.sha256(name.encode()).hexdigest(),
            }
            for name, file in zip(names, files, strict=True)
        ]
        info = {"id": model, "modelId": model, "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
        self._send(200, json.dumps(tree if what.startswith("/tree") else info).encode())

    def _send(self, status: int, content: bytes, body: bool = True, code: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if body:
            self.wfile.write(content)


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """Serve models until the block ends; ids of the organisations in `REFUSED` fail."""
    hub = LocalHub()

    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (Handler,), {"hub": hub}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
