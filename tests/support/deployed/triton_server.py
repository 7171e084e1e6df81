"""A real Triton server on a model repository, and its official client, both from an environment of their own.

`make triton-test` makes the environment: nvidia-pytriton (the server with its Python backend, and tritonclient), which
needs other versions of NumPy and protobuf than the tests. The environment variable INTAGLIO_TRITON names its folder.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

VARIABLE = "INTAGLIO_TRITON"
HERE = Path(__file__).parent
READY = 120  # seconds
MISSING = f"no Triton server: make triton-test installs one, or {VARIABLE} names the folder of its environment"


def environment() -> Path:
    """The folder of the environment; the test is skipped without one."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        pytest.skip(MISSING)
    return Path(folder).resolve()


def client(script: str, *arguments: object) -> Any:
    """What a script of this folder, run by the environment's Python with tritonclient, prints as JSON."""
    command = [environment() / "bin" / "python", HERE / script, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


class TritonServer(NamedTuple):
    """A running server."""

    http: str  # host:port
    grpc: str
    log: Path


@contextmanager
def triton_server(repository: Path, folder: Path) -> Iterator[TritonServer]:
    """Start a server on `repository`, which is ready then; `folder`: for its log and its backend."""
    packages = next((environment() / "lib").glob("python3.*")) / "site-packages"
    server = packages / "pytriton" / "tritonserver"
    backend = folder / "backends" / "python"
    shutil.copytree(server / "backends" / "python", backend)
    # The stub is the program that runs model.py, linked with the libpython of one version.
    version = packages.parent.name.removeprefix("python")
    shutil.copy(server / "python_backend_stubs" / version / "triton_python_backend_stub", backend)
    http, grpc = free_ports(2)
    log = folder / "log.txt"
    command: Sequence[object] = (
        server / "bin" / "tritonserver", "--model-repository", repository, "--backend-directory", folder / "backends",
        "--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1", "--http-port", http, "--grpc-port", grpc,
        "--allow-metrics", "false", "--disable-auto-complete-config", "--exit-timeout-secs", 5,
    )  # fmt: skip
    variables = {
        **os.environ,
        "PATH": f"{environment() / 'bin'}:{os.environ['PATH']}",  # its Python finds the packages beside it
        "LD_LIBRARY_PATH": str(packages / "nvidia_pytriton.libs"),
    }
    with log.open("w") as file:
        process = subprocess.Popen([*map(str, command)], stdout=file, stderr=file, env=variables)
    try:
        _wait(process, http, log)
        yield TritonServer(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", log)
    finally:
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + READY
    while time.monotonic() < until:
        if process.poll() is not None:
            raise AssertionError(f"the server ended:\n{messages(log)}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"the server is not ready after {READY} s:\n{messages(log)}")


def messages(log: Path) -> str:
    """The log without its tables and its reports of what went well."""
    return "\n".join(line for line in log.read_text().splitlines() if not line.startswith(("|", "+", "I")))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
