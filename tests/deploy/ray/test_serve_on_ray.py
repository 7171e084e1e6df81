"""`intaglio serve --ray` serves by Ray until a signal, and refuses by name what Ray does not have."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from triton_server import free_ports

from intaglio.runtime.generation.generate import generate

Run = Callable[..., tuple[int, str, str]]
RAY = importlib.util.find_spec("ray") is not None
READY = 240  # seconds

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of Ray's own modules
needs_ray = pytest.mark.skipif(not RAY, reason="Ray is not installed: make ray-test")


def test_numbers_of_replicas_need_ray(intaglio: Run, tiny_bundle: Path) -> None:
    code, _, err = intaglio("serve", tiny_bundle, "--max-replicas", 2)
    assert code == 2 and "--max-replicas: this server is one process. Add --ray." in err and err.count("\n") == 1


@pytest.mark.skipif(RAY, reason="Ray is installed")
def test_missing_ray_names_the_extra(intaglio: Run, tiny_bundle: Path) -> None:
    code, _, err = intaglio("serve", tiny_bundle, "--ray")
    assert code == 2 and "pip install 'intaglio[ray]'" in err and err.count("\n") == 1


@needs_ray
@pytest.mark.parametrize("given", [("--agent", "helper.yaml"), ("--trace", "t.json"), ("--window", 3), ("--beam", 2)])
def test_options_that_ray_does_not_have_are_refused(intaglio: Run, tiny_bundle: Path, given: tuple[Any, ...]) -> None:
    code, _, err = intaglio("serve", tiny_bundle, "--ray", *given)
    assert code == 2 and f"{given[0]}: not with --ray" in err and err.count("\n") == 1


@needs_ray
@pytest.mark.proof
def test_answers_until_it_is_asked_to_end(chat_models: tuple[Path, Path], tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-c", "from intaglio.cli import main; main()", "serve", f"chat={chat_models[1]}",
               "--ray", "--port", str(port)]  # fmt: skip
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_USAGE_STATS_ENABLED": "0"}
    variables.pop("RAY_ADDRESS", None)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
    body = {"model": "chat", "prompt": "The function returns", "max_tokens": 20, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        until = time.monotonic() + READY
        while True:
            assert process.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()[-3000:]
            try:
                with urllib.request.urlopen(request, timeout=READY) as response:
                    found = json.loads(response.read())
                break
            except OSError:
                time.sleep(0.5)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
    (expected,) = generate(chat_models[1], [body["prompt"]], max_new_tokens=20)
    assert found["choices"][0]["text"] == expected.text
    assert len(children) > 2
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
