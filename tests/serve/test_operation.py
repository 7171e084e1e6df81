"""Operating a server: TLS, CORS, logs, metrics, traces, health, and a draft model."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from served import Served, served

from intaglio.runtime.generation.generate import TextGenerator

BODY = {"model": "lm", "prompt": "The import statement", "max_tokens": 30, "temperature": 0}


@contextmanager
def drafting_server(chat_models: tuple[Path, Path], trace: Path) -> Iterator[Served]:
    """A server with a draft model, a trace, logs in JSON, and a web page that may call it."""
    small, large = chat_models
    options = ("--draft", small, "--strategy", "speculative", "--trace", trace, "--log-format", "json")
    with served(f"lm={large}", *options, "--cors-origin", "https://page.example", "--rows", 4) as running:
        yield running


@pytest.fixture(scope="module")
def operated(chat_models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A server, and its trace's path."""
    trace = tmp_path_factory.mktemp("trace") / "trace.json"
    with drafting_server(chat_models, trace) as running:
        yield running, trace


def test_draft_model_does_not_change_greedy_text(operated: tuple[Served, Path], chat_models: tuple[Path, Path]) -> None:
    with TextGenerator(chat_models[1], max_new_tokens=30) as generator:
        expected = generator.write(str(BODY["prompt"])).whole().text
    status, found = operated[0].post("/v1/completions", BODY)
    assert status == 200
    assert found["choices"][0]["text"] == expected
    assert operated[0].metric("vllm:spec_decode_num_draft_tokens_total") > 0


def test_request_log_has_id_and_tokens_but_no_text(operated: tuple[Served, Path]) -> None:
    server = operated[0]
    server.post("/v1/completions", BODY, **{"X-Request-Id": "mine-7"})
    server.get("/v1/models/none?key=secret", **{"X-Request-Id": "bad\tid"})
    until = time.monotonic() + 30
    while '"status":404' not in "".join(server.log):  # a line is written after the answer
        assert time.monotonic() < until
        time.sleep(0.02)
    lines = [json.loads(line) for line in server.log if line.startswith("{")]
    mine = next(line for line in lines if line.get("request_id") == "mine-7")
    assert (mine["path"], mine["status"], mine["model"]) == ("/v1/completions", 200, "lm")
    assert mine["completion_tokens"] == 30
    assert mine["finish_reason"] == "length"
    assert lines[-1]["status"] == 404
    assert lines[-1]["request_id"].startswith("req-")
    assert "import statement" not in "".join(server.log)
    assert "secret" not in "".join(server.log)


def test_response_has_the_request_id(operated: tuple[Served, Path]) -> None:
    request = urllib.request.Request(f"{operated[0].url}/health", headers={"X-Request-Id": "mine-8"})
    with urllib.request.urlopen(request) as response:
        assert response.headers["X-Request-Id"] == "mine-8"


def test_metrics_count_requests_and_tokens(operated: tuple[Served, Path]) -> None:
    server = operated[0]
    names = ["vllm:request_success_total", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count"]
    before = [server.metric(name) for name in names]
    server.post("/v1/completions", {**BODY, "n": 2})
    after = [server.metric(name) for name in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 60, 2]
    rejected = server.metric("intaglio:http_requests_total")
    assert server.post("/v1/completions", {**BODY, "n": 0})[0] == 400
    assert server.metric("intaglio:http_requests_total") > rejected


def test_only_allowed_origins_may_call(operated: tuple[Served, Path]) -> None:
    def allowed(origin: str) -> str | None:
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        request = urllib.request.Request(f"{operated[0].url}/v1/completions", headers=headers, method="OPTIONS")
        try:
            with urllib.request.urlopen(request) as response:
                found: str | None = response.headers["Access-Control-Allow-Origin"]
        except urllib.error.HTTPError as error:
            found = error.headers["Access-Control-Allow-Origin"]
            error.close()
        return found

    assert allowed("https://page.example") == "https://page.example"
    assert allowed("https://other.example") is None


def test_no_origin_is_allowed_by_default(server: Served) -> None:
    request = urllib.request.Request(f"{server.url}/v1/models", headers={"Origin": "https://page.example"})
    with urllib.request.urlopen(request) as response:
        assert response.status == 200
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


def test_prompts_beyond_max_waiting_tokens_get_429(chat_models: tuple[Path, Path]) -> None:
    body = {"model": "lm", "prompt": [5] * 30, "max_tokens": 200, "ignore_eos": True}
    with served(f"lm={chat_models[1]}", "--rows", 1, "--max-waiting-tokens", 40) as running:
        status, error = running.post("/v1/completions", {**body, "n": 9})  # far fewer than --max-waiting
        assert status == 429
        assert "prompt tokens are waiting, the maximum is 40" in error["error"]["message"]
        assert running.post("/v1/completions", {**body, "max_tokens": 1})[0] == 200


def test_trace_is_complete_after_shutdown(chat_models: tuple[Path, Path], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    with drafting_server(chat_models, trace) as server:
        server.post("/v1/completions", BODY)
        assert server.get("/health/ready") == (200, {"status": "ok"})
        assert server.stop() == 0
    events = json.loads(trace.read_text())
    passes = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in passes} >= {1, 2}  # the target model's and the draft model's
    assert all(event["dur"] > 0 for event in passes)


def test_https_uses_the_given_certificate(chat_models: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made = [*command, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    with served(f"lm={chat_models[1]}", "--tls-cert", certificate, "--tls-key", key, "--rows", 1) as running:
        trusted = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(f"https://127.0.0.1:{running.port}/v1/models", context=trusted) as response:
            assert json.loads(response.read())["data"][0]["id"] == "lm"
