"""A cluster of Ray on this machine that serves a written application, as `serve run` starts it.

`make ray-test` makes an environment with Ray, and runs the tests with its Python.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

READY = 240  # seconds
STORE = 200 << 20  # bytes of the object store


class RayServer:
    """A running application."""

    def __init__(self, process: subprocess.Popen[bytes], command: list[str], port: int, log: Path, key: str):
        """`command`: without the file of the application."""
        self.process, self.url, self.log = process, f"http://127.0.0.1:{port}", log
        self._command = command
        self.headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

    def request(self, path: str, body: object = None, **headers: str) -> urllib.request.Request:
        """A request with the server's key; GET without a body, a `body` of bytes is sent unchanged."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return urllib.request.Request(self.url + path, data, {**self.headers, **headers})

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON body."""
        try:
            with urllib.request.urlopen(self.request(path, body, **headers), timeout=READY) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def events(self, path: str, body: Mapping[str, object], **headers: str) -> Iterator[Any]:
        """The events of a stream, decoded, without the sign of its end."""
        with urllib.request.urlopen(self.request(path, {**body, "stream": True}, **headers), timeout=READY) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line.removeprefix(b"data: "))

    def samples(self, name: str, **labels: str) -> dict[str, float]:
        """The values of a metric with these labels: replica -> value."""
        with urllib.request.urlopen(self.request("/metrics"), timeout=60) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return {each.labels["replica"]: each.value for each in samples if labels.items() <= each.labels.items()}

    def processes(self, model: str) -> list[int]:
        """The processes of the replicas of a model, of the cluster that this program has started."""
        found = []
        for each in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                words = each.cmdline() or [""]
                if words[0].partition(".")[0] == f"ray::ServeReplica:intaglio:{model}":
                    found.append(each.pid)
        return found

    def wait_for_replicas(self, model: str, number: int) -> float:
        """Seconds until `number` replicas answer."""
        began = time.monotonic()
        while len(self.samples("vllm:num_requests_running", model_name=model)) != number:
            assert time.monotonic() < began + READY, self.messages()
            time.sleep(0.5)
        return time.monotonic() - began

    def update(self, application: Path) -> None:
        """Deploy another file in the place of the one that runs; it takes effect later."""
        command = [*self._command, "--non-blocking", str(application)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout + found.stderr

    def messages(self) -> str:
        """The end of the log."""
        return self.log.read_text()[-5000:]


@contextmanager
def ray_server(application: Path, port: int, processors: int = 4, key: str = "") -> Iterator[RayServer]:
    """Serve a written application until the end; it answers when this yields."""
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # where the workers find this code
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    head = {"num_cpus": processors, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    log = application.with_suffix(".log")
    serve = Path(sys.executable).with_name("serve")
    command = [sys.executable, str(serve), "run", "--address", cluster.address]
    try:
        with log.open("w") as file:
            variables = {**os.environ, "RAY_DEDUP_LOGS": "0"}
            process = subprocess.Popen([*command, str(application)], stdout=file, stderr=file, env=variables)
        server = RayServer(process, command, port, log, key)
        try:
            _wait(server)
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:  # it ignores the signal, as what a shell starts in the background does
                process.kill()
                process.wait()
    finally:
        cluster.shutdown()


def _wait(server: RayServer) -> None:
    until = time.monotonic() + READY
    while time.monotonic() < until and server.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the application is not ready:\n{server.messages()}")
