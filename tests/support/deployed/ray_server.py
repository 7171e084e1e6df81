"""A cluster of Ray on this machine that serves a written application, as `serve run` starts it.

`make ray-test` makes an environment with Ray, and runs the tests with its Python.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

READY = 240  # seconds
STORE = 200 << 20  # bytes of the object store


class RayServer(NamedTuple):
    """A running application."""

    address: str  # http://host:port
    log: Path

    def replicas(self, model: str) -> list[int]:
        """The processes of the replicas of a model."""
        name = f"ray::ServeReplica:intaglio:{model}"
        return [
            each.pid
            for each in psutil.process_iter(["cmdline"])
            if (words := each.info["cmdline"]) and words[0].startswith(name) and words[0][len(name) :][:1] in ("", ".")
        ]

    def wait_for_replicas(self, model: str, number: int, others: tuple[int, ...] = ()) -> float:
        """Seconds until `number` replicas besides `others` answer."""
        began = time.monotonic()
        while time.monotonic() < began + READY:
            found = set(self.replicas(model)) - set(others)
            if len(found) == number and self.samples("process_start_time_seconds", "replica", model) >= number:
                return time.monotonic() - began
            time.sleep(0.5)
        raise AssertionError(f"{model} has no {number} replicas:\n{self.log.read_text()[-5000:]}")


def cluster(processors: int) -> Any:
    """A cluster of one node."""
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # where the workers find this code
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    head = {"num_cpus": processors, "object_store_memory": STORE, "include_dashboard": False}
    return Cluster(initialize_head=True, head_node_args=head)


@contextmanager
def ray_server(application: Path, port: int, processors: int = 4) -> Iterator[RayServer]:
    """Serve a written application until the end; it answers when this yields."""
    started = cluster(processors)
    log = application.with_suffix(".log")
    serve = Path(sys.executable).with_name("serve")
    command = [sys.executable, str(serve), "run", "--address", started.address, str(application)]
    try:
        with log.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log)
            yield RayServer(f"http://127.0.0.1:{port}", log)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    finally:
        started.shutdown()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + READY
    while time.monotonic() < until:
        if process.poll() is not None:
            raise AssertionError(f"the application ended:\n{log.read_text()[-5000:]}")
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the application is not ready after {READY} s:\n{log.read_text()[-5000:]}")
