"""A deployed model gets replicas by the number of its requests; too many get 429, and those of a hung replica 504."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from ray_server import ray_server

from intaglio.deploy import deploy_ray
from intaglio.serve.options import ServerOptions

pytest.importorskip("ray.serve", reason="Ray is not installed: make ray-test")

pytestmark = [
    pytest.mark.proof,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Ray's own files and processes
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

PORT = 18124
ROWS = 2
WAITING = 6
REQUESTS = 24
LONG = {"model": "chat", "prompt": "The", "temperature": 0, "ignore_eos": True, "max_tokens": 200}


def test_requests_start_a_replica_and_too_many_get_429(trained_pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A replica takes twice its rows; further requests wait at the front door, up to --max-waiting."""
    file = tmp_path / "app.yaml"
    limits = ServerOptions(rows=ROWS, max_waiting=WAITING)
    deploy_ray([f"chat={trained_pair[1]}"], file, max_replicas=2, port=PORT, options=limits)
    content = yaml.safe_load(file.read_text())
    scaling = content["applications"][0]["deployments"][1]["autoscaling_config"]
    assert scaling == {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": ROWS}
    scaling |= {"upscale_delay_s": 1, "metrics_interval_s": 0.5, "look_back_period_s": 2}  # seconds, not a minute
    file.write_text(yaml.safe_dump(content))
    with ray_server(file, PORT) as server, ThreadPoolExecutor(REQUESTS) as threads:
        server.wait_for_replicas("chat", 1)
        found = list(threads.map(lambda _: server.ask("/v1/completions", LONG), range(REQUESTS)))
        refused = [body for status, body in found if status == 429]
        assert {status for status, _ in found} == {200, 429} and len(refused) <= REQUESTS - 2 * ROWS
        waiting = f"{WAITING} requests to this model are waiting, the maximum. Try again later."
        arriving = f"{ROWS + WAITING} requests are arriving, the maximum. Try again later."
        assert {waiting} <= {body["error"]["message"] for body in refused} <= {waiting, arriving}
        rounds = 0
        while len(server.samples("vllm:num_requests_running", model_name="chat")) < 2:
            list(threads.map(lambda _: server.ask("/v1/completions", LONG), range(2 * ROWS + WAITING)))
            rounds += 1
            assert rounds < 100, server.messages()


def test_replica_that_hangs_costs_a_timeout(trained_pair: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    deploy_ray([f"chat={trained_pair[1]}"], file, port=PORT, options=ServerOptions(request_timeout=5))
    short = LONG | {"max_tokens": 1}
    with ray_server(file, PORT) as server:
        assert server.ask("/v1/completions", short)[0] == 200
        (replica,) = server.processes("chat")
        os.kill(replica, signal.SIGSTOP)
        try:
            status, body = server.ask("/v1/completions", short)
        finally:
            os.kill(replica, signal.SIGCONT)
        assert status == 504 and "no replica answered in time" in body["error"]["message"], body
        assert server.ask("/v1/completions", short)[0] == 200
