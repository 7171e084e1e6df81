"""A real Ray cluster of two nodes gives the bytes of one process, also when a worker, a node or the driver is killed.

Ray is not in the development environment: `pip install ray`, then `pytest -m proof tests/intaglio/executors`.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import worker_tasks as tasks

from intaglio.compression import compress
from intaglio.errors import GraphError, UsageError, WorkerError
from intaglio.executors.executor import INLINE
from intaglio.executors.ray_cluster import RayCluster
from intaglio.exporters import export
from intaglio.processes.threads import bounded
from intaglio.validation import validate

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
psutil = pytest.importorskip("psutil")

pytestmark = [
    pytest.mark.proof,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Ray's own files and processes
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

MODELS = Path(__file__).parents[3] / "examples" / "language_models"
CLIENT_PORT = 10123
STORE = 200 << 20  # bytes of a node's object store


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # nodes find this code, and the functions of this test
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    head = {"num_cpus": 1, "object_store_memory": STORE, "ray_client_server_port": CLIENT_PORT}
    started = Cluster(initialize_head=True, head_node_args=head)
    started.add_node(num_cpus=1, object_store_memory=STORE)
    os.environ["RAY_ADDRESS"] = started.address
    yield started
    del os.environ["RAY_ADDRESS"]
    started.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = tmp_path_factory.mktemp("model") / "small"
    export(MODELS / "small", bundle, check=False)
    (bundle.parent / "text.txt").write_text((MODELS / "calibration.txt").read_text()[:40_000])
    return bundle


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, str]:
    """The hash of the bundle of each recipe, made in this process."""
    return {recipe: made(model, recipe, "inline") for recipe in ("gptq", "lut-sparse")}


def made(model: Path, recipe: str, executor: str, **options: Any) -> str:
    """Compress by `recipe`; return the hash of the bundle's files."""
    output = model.with_name(f"{recipe}-{len(list(model.parent.iterdir()))}")
    compress(model, output, recipe, calibration=model.with_name("text.txt"), executor=executor, **options)
    return digest(output)


def digest(bundle: Path) -> str:
    return hashlib.sha256((bundle / "model.onnx").read_bytes() + (bundle / "bundle.json").read_bytes()).hexdigest()


def workers() -> list[int]:
    """The processes of Ray that run tasks of this package."""
    names = ("run_batch", "products_of", "fitted_lut", "round", "compensated_rows", "score_in_worker")
    return [
        each.pid
        for each in psutil.process_iter(["cmdline"])
        if (words := each.info["cmdline"]) and words[0].startswith("ray::") and words[0][5:] in names
    ]


def once(
    found: Callable[[], list[int]], killed: list[int], more: Callable[[], object] = lambda: None
) -> threading.Thread:
    """Kill the first process that is found, in the background."""

    def watch() -> None:
        end = time.monotonic() + 120
        while not killed and time.monotonic() < end:
            for process in found()[:1]:
                os.kill(process, signal.SIGKILL)
                killed.append(process)
            time.sleep(0.05)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_order_errors_and_shared_arrays(cluster: Any) -> None:
    right = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
    with RayCluster() as executor, bounded(1):
        assert list(executor.map(tasks.slow_first, ((number,) for number in range(6)))) == list(range(6))
        shared = executor.share(right)
        found = list(executor.map(tasks.product, ((right[part:], shared) for part in (0, 200)), small=True))
        for part, got in zip((0, 200), found, strict=True):
            np.testing.assert_array_equal(got, next(INLINE.map(tasks.product, [(right[part:], right)])))
        with pytest.raises(GraphError, match=r"^layer 3: not supported\.$"):
            list(executor.map(tasks.refuse, [(3,)]))
        with pytest.raises(np.linalg.LinAlgError):
            list(executor.map(tasks.singular, [(0,)]))


def test_deaths_of_workers_are_retried_up_to_a_limit(cluster: Any, tmp_path: Path) -> None:
    with RayCluster() as executor:
        found = executor.map(tasks.die_until, ((str(tmp_path), number, int(number == 1)) for number in range(4)))
        assert list(found) == list(range(4))
        with pytest.raises(WorkerError, match="a task has no result after 3 retries"):
            list(executor.map(tasks.die_until, [(str(tmp_path), 9, 100)]))


def test_handlers_of_signals_stay_those_of_the_program(cluster: Any) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with RayCluster():
        assert {number: signal.getsignal(number) for number in before} == before


def test_program_outside_the_cluster_is_a_client(cluster: Any) -> None:
    pytest.importorskip("grpc", reason="Ray's client is not installed: pip install 'ray[client]'")
    host = cluster.address.rpartition(":")[0]
    end = time.monotonic() + 60
    while True:
        try:  # the client's server starts after the cluster
            socket.create_connection((host, CLIENT_PORT), 1).close()
            break
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.5)
    client = [sys.executable, tasks.__file__, f"ray://{host}:{CLIENT_PORT}"]
    for _ in range(3):  # Ray gives the client's server 30 s to start, which a busy machine may exceed
        ran = subprocess.run(client, capture_output=True, text=True, check=False)
        if "cannot connect" not in ran.stderr:
            break
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["equal"]), ran.stderr


def test_no_cluster_at_the_address_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"--executor ray://127\.0\.0\.1:1: nothing answers"):
        RayCluster("ray://127.0.0.1:1").__enter__()


@pytest.mark.parametrize("recipe", ["gptq", "lut-sparse"])
def test_two_nodes_give_the_bytes_of_one_process(
    recipe: str, cluster: Any, model: Path, expected: dict[str, str]
) -> None:
    assert made(model, recipe, "processes:2") == expected[recipe]
    assert made(model, recipe, "ray") == expected[recipe]


def test_killed_worker_changes_no_byte(cluster: Any, model: Path, expected: dict[str, str]) -> None:
    killed: list[int] = []
    thread = once(workers, killed)
    assert made(model, "gptq", "ray") == expected["gptq"]
    thread.join()
    assert killed


def test_perplexity_has_the_same_bits_also_after_a_worker_was_killed(
    cluster: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress(model, model.with_name("other"), "int8-weights")
    monkeypatch.chdir(model.parent)  # workers have another working directory
    options: dict[str, Any] = {"perplexity": "text.txt", "context": 128, "report": tmp_path}
    expected = validate(model.name, "other", **options)
    killed: list[int] = []
    thread = once(workers, killed)
    assert validate(model.name, "other", **options, executor="ray") == expected
    thread.join()
    assert killed and expected.kl_divergence


def test_killed_driver_resumes_to_the_same_bytes(cluster: Any, model: Path, expected: dict[str, str]) -> None:
    output = model.with_name("resumed")
    command = [sys.executable, "-m", "intaglio", "compress", str(model), "-o", str(output), "--recipe", "gptq"]
    command += ["--calibration", str(model.with_name("text.txt")), "--executor", "ray", "--resume"]
    driver = subprocess.Popen(command)
    kept = output.with_name(f".{output.name}.intaglio-resume")
    while driver.poll() is None and len(list(kept.glob("*.npz"))) < 3:
        time.sleep(0.02)
    assert driver.poll() is None, "the driver has ended before it was killed"
    driver.kill()
    driver.wait()
    assert not output.exists()
    assert subprocess.run(command, check=False).returncode == 0
    assert digest(output) == expected["gptq"]
    assert not kept.exists()


def test_killed_node_changes_no_byte(cluster: Any, model: Path, expected: dict[str, str]) -> None:
    """The last test: the cluster has one node less after it."""
    (node,) = cluster.worker_nodes
    raylet = node.all_processes["raylet"][0].process.pid
    killed: list[int] = []
    thread = once(lambda: [raylet] if workers() else [], killed)
    assert made(model, "gptq", "ray") == expected["gptq"]
    thread.join()
    assert killed == [raylet]
