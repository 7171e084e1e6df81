"""A written application on a real cluster of Ray: texts equal those of `generate`, also when a replica is killed."""

from __future__ import annotations

import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from lora_adapters import save_adapter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from ray_server import RayServer, ray_server

from intaglio.deploy import deploy_ray
from intaglio.runtime.generation.generate import generate
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.text.run_texts import run
from intaglio.serve.options import ServerOptions

pytest.importorskip("ray.serve", reason="Ray is not installed: make ray-test")

pytestmark = [
    pytest.mark.proof,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Ray's own files and processes
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

PORT = 18123
KEY = "a-key"
PROMPTS = ["The function returns", "If the", "import os, sys; é", "class", "A module", "def add(a, b):"]
MESSAGES = [{"role": "user", "content": "What does the function return?"}]
CLIENTS = 32
LONG = {"model": "chat", "temperature": 0, "ignore_eos": True}
CLOSE = 1e-5  # of the numbers of an embedding of length 1, which padding sums in another order


@pytest.fixture(scope="module")
def adapter(language_models: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random adapter of the decoder."""
    options: dict[str, Any] = {"target_modules": ["c_attn"], "fan_in_fan_out": True}
    folder = tmp_path_factory.mktemp("adapter") / "sql"
    return f"sql={save_adapter(language_models / 'large', folder, 'GPT2LMHeadModel', **options)}"


@pytest.fixture(scope="module")
def server(
    chat_models: tuple[Path, Path], adapter: str, minilm_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RayServer]:
    """Two replicas of a decoder with its draft model and an adapter, and two of an encoder."""
    folder = tmp_path_factory.mktemp("ray")
    draft, target = chat_models
    (folder / "keys.txt").write_text(KEY)
    deploy_ray(
        [f"chat={target}", f"minilm={minilm_bundle}"], folder / "app.yaml", min_replicas=2, draft=draft,
        adapter=[adapter], strategy="speculative", port=PORT, api_key_file=folder / "keys.txt",
        options=ServerOptions(max_body_bytes=100_000, grace=60),
    )  # fmt: skip
    with ray_server(folder / "app.yaml", PORT, key=KEY) as running:
        yield running


def completion(server: RayServer, prompt: str, tokens: int, stream: bool) -> str:
    """The text, and a check that it ended as it should."""
    body = {"model": "chat", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    if stream:
        return "".join(event["choices"][0]["text"] for event in server.events("/v1/completions", body))
    status, found = server.ask("/v1/completions", body)
    assert status == 200, found
    return str(found["choices"][0]["text"])


@pytest.mark.parametrize("stream", [False, True])
def test_texts_equal_those_of_generate(server: RayServer, chat_models: tuple[Path, Path], stream: bool) -> None:
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        found = list(threads.map(lambda prompt: completion(server, prompt, 30, stream), PROMPTS))
    assert found == [result.text for result in generate(chat_models[1], PROMPTS, max_new_tokens=30)]


def test_adapter_is_a_model_with_its_own_texts(server: RayServer, chat_models: tuple[Path, Path], adapter: str) -> None:
    """It is chosen by its name or by llama.cpp's field."""
    expected = [result.text for result in generate(chat_models[1], PROMPTS, max_new_tokens=20, adapter=[adapter])]
    assert expected != [result.text for result in generate(chat_models[1], PROMPTS, max_new_tokens=20)]
    body = {"max_tokens": 20, "temperature": 0}
    for chosen in ({"model": "chat:sql"}, {"model": "chat", "lora": [{"id": 0, "scale": 1}]}):
        replies = [server.ask("/v1/completions", {"prompt": prompt, **body, **chosen}) for prompt in PROMPTS]
        assert [found["choices"][0]["text"] for _, found in replies] == expected
        assert {found["model"] for _, found in replies} == {chosen["model"]}


def test_conversations_equal_those_of_generate(server: RayServer, chat_models: tuple[Path, Path]) -> None:
    conversation = [Message(**each) for each in MESSAGES]
    (expected,) = generate(chat_models[1], [conversation], max_new_tokens=30)
    asked = {"model": "chat", "temperature": 0}
    body = {**asked, "messages": MESSAGES, "max_tokens": 30}
    _, whole = server.ask("/v1/chat/completions", body)
    assert whole["choices"][0]["message"]["content"] == expected.text
    deltas = [event["choices"][0]["delta"].get("content") for event in server.events("/v1/chat/completions", body)]
    assert "".join(each or "" for each in deltas) == expected.text
    body = {**asked, "input": MESSAGES, "max_output_tokens": 30}
    events = list(server.events("/v1/responses", body))
    assert "".join(event["delta"] for event in events if event["type"].endswith("text.delta")) == expected.text


def test_embeddings_equal_those_of_run(server: RayServer, minilm_bundle: Path) -> None:
    status, found = server.ask("/v1/embeddings", {"model": "minilm", "input": PROMPTS})
    assert status == 200
    expected = [result.embedding for result in run(minilm_bundle, PROMPTS)]
    np.testing.assert_allclose([each["embedding"] for each in found["data"]], np.array(expected), atol=CLOSE)


def test_all_deployments_are_listed_as_models(server: RayServer) -> None:
    _, found = server.ask("/v1/models")
    assert [(each["id"], each["max_model_len"]) for each in found["data"]] == [
        ("chat", 256), ("minilm", 256), ("chat:sql", 256),
    ]  # fmt: skip
    assert server.ask("/v1/models/chat") == (200, found["data"][0])


BODY = {"model": "chat", "prompt": "The", "max_tokens": 1}


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "words"),
    [
        ("/v1/completions", BODY, {"Authorization": "Bearer other"}, 401, "no valid API key"),
        ("/v1/completions", BODY | {"model": "other"}, {}, 404, "This server has: chat, minilm, chat:sql."),
        ("/v1/completions", BODY | {"tokens": 1}, {}, 400, "'tokens' is not supported"),
        ("/v1/completions", BODY | {"prompt": "a " * 400}, {}, 400, "tokens"),
        ("/v1/completions", BODY | {"prompt": "a" * 100_000}, {}, 413, "more than 100000 bytes"),
        ("/v1/completions", b"{", {}, 400, "not valid JSON"),
        ("/v1/completions", BODY, {"Content-Type": "text/plain"}, 415, "expected application/json"),
        ("/v1/embeddings", {"model": "chat", "input": "a"}, {}, 400, "it computes no embeddings"),
        ("/v1/audio/transcriptions", BODY, {}, 404, "no model of this server transcribes"),
        ("/v1/models/other", None, {}, 404, "This server has: chat, minilm, chat:sql."),
        ("/v1/other", BODY, {}, 404, "does not exist"),
    ],
)
def test_invalid_requests_get_the_errors_of_serve(
    server: RayServer, path: str, body: Any, headers: Mapping[str, str], status: int, words: str
) -> None:
    code, found = server.ask(path, body, **headers)
    assert (code, words in found["error"]["message"]) == (status, True), found


def test_response_has_one_identifier_that_both_logs_have(server: RayServer) -> None:
    request = server.request("/v1/completions", BODY, **{"X-Request-Id": "mine-1"})
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.headers.get_all("x-request-id") == ["mine-1"]
    until = time.monotonic() + 30  # Ray collects the logs of its processes
    while time.monotonic() < until:
        found = re.findall(
            r"ServeReplica:intaglio:([\w-]+) .*POST /v1/completions 200 .*request_id=mine-1$", log_of(server), re.M
        )
        if len(found) == 2:
            break
        time.sleep(0.5)
    assert sorted(found) == ["chat", "front-door"]


def test_metrics_of_all_replicas_are_shown(server: RayServer) -> None:
    assert len(server.samples("vllm:prompt_tokens_total", model_name="chat")) == 2
    before = sum(server.samples("vllm:generation_tokens_total", model_name="chat").values())
    requests = {"route": "/v1/completions", "status": "200"}
    counted = server.samples("intaglio:http_requests_total", **requests)
    completion(server, "The", 5, stream=False)
    assert sum(server.samples("vllm:generation_tokens_total", model_name="chat").values()) == before + 5
    assert server.samples("intaglio:http_requests_total", **requests) == {"front-door": counted["front-door"] + 1}
    request = server.request("/metrics", Accept="application/openmetrics-text")
    with urllib.request.urlopen(request, timeout=60) as response:
        assert any(family.name == "vllm:prompt_tokens" for family in open_metrics(response.read().decode()))


def test_disconnected_client_frees_its_row(server: RayServer) -> None:
    aborted = {"model_name": "chat", "finished_reason": "abort"}
    before = sum(server.samples("vllm:request_success_total", **aborted).values())
    events = server.events("/v1/completions", LONG | {"prompt": "The", "max_tokens": 250})
    next(events)
    events.close()  # type: ignore[attr-defined]
    until = time.monotonic() + 30
    while sum(server.samples("vllm:request_success_total", **aborted).values()) == before:
        assert time.monotonic() < until, server.messages()
        time.sleep(0.2)
    assert not any(server.samples("vllm:num_requests_running", model_name="chat").values())


def test_turns_of_a_conversation_reach_the_replica_that_has_its_beginning(server: RayServer) -> None:
    text = "def count(words):\n    found = {}\n    for word in words:\n        found[word] = found.get(word, 0) + 1\n"
    cached = []
    for turn in range(8):
        _, found = server.ask("/v1/completions", BODY | {"prompt": text + f"# turn {turn}", "max_tokens": 2})
        cached.append(found["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] < 10 and min(cached[1:]) > 20


class Reply(NamedTuple):
    """What a client got of one request."""

    text: str
    error: str | None


def one_of_many(server: RayServer, number: int, started: list[int], run: str) -> Reply:
    """Request `number`: every fourth one is not streamed, every fourth one a stream of the Responses API."""
    prompt = f"{PROMPTS[number % len(PROMPTS)]} {number}"
    headers = {"X-Request-Id": f"{run}-{number}"}
    if number % 4 == 3:
        body = LONG | {"input": prompt, "max_output_tokens": 150}
        del body["ignore_eos"]
        return reply(server.events("/v1/responses", body, **headers), number, started)
    body = LONG | {"prompt": prompt, "max_tokens": 200}
    if number % 4:
        return reply(server.events("/v1/completions", body, **headers), number, started)
    status, found = server.ask("/v1/completions", body, **headers)
    return Reply(found["choices"][0]["text"], None) if status == 200 else Reply("", found["error"]["message"])


def reply(events: Iterator[Any], number: int, started: list[int]) -> Reply:
    """Read a stream to its end; its number is in `started` as soon as it has a text."""
    text = ""
    for event in events:
        if "error" in event or event.get("type") == "error":
            return Reply(text, event.get("error", event)["message"])
        if "choices" in event:
            text += event["choices"][0]["text"]
        elif event["type"] == "response.output_text.delta":
            text += event["delta"]
        if text and number not in started:
            started.append(number)
    return Reply(text, None)


def all_of_them(server: RayServer, started: list[int], run: str) -> list[Reply]:
    with ThreadPoolExecutor(CLIENTS) as threads:
        return list(threads.map(lambda number: one_of_many(server, number, started, run), range(CLIENTS)))


def test_killed_replica_costs_its_running_streams_alone(server: RayServer) -> None:
    server.wait_for_replicas("chat", 2)
    expected = all_of_them(server, [], "whole")
    assert all(each.error is None and each.text for each in expected)
    victim, survivor = server.processes("chat")
    started: list[int] = []

    def kill() -> float:
        while len(started) < 4:
            time.sleep(0.001)
        os.kill(victim, signal.SIGKILL)
        return server.wait_for_replicas("chat", 2)

    with ThreadPoolExecutor(1) as thread:
        killed = thread.submit(kill)
        found = all_of_them(server, started, "killed")
        seconds = killed.result()
    failed = [number for number, each in enumerate(found) if each.error is not None]
    assert failed and all(number % 4 for number in failed)  # responses that had not begun were repeated
    assert {found[number].error for number in failed} == {
        "the replica of the model has died, or none is there. Send the request again."
    }
    assert all(expected[number].text.startswith(found[number].text) for number in failed)
    whole = [number for number in range(CLIENTS) if number not in failed]
    assert [found[number] for number in whole] == [expected[number] for number in whole]
    streamed = {number for number in whole if number % 4}
    deadline = time.monotonic() + 30  # Ray passes lines of the log on later
    while not streamed <= (finished := finished_by(server, survivor)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert streamed <= finished and not finished & set(failed)
    assert sorted(server.processes("chat")) != sorted([victim, survivor]) and survivor in server.processes("chat")
    print(f"{len(failed)} of {CLIENTS} requests failed, two replicas again after {seconds:.0f} s")  # noqa: T201
    assert all_of_them(server, [], "after") == expected


def finished_by(server: RayServer, process: int) -> set[int]:
    """The numbers of the requests that a replica has logged as finished, of those while another one was killed."""
    logged = re.findall(rf"chat pid={process}\).*request_id=killed-(\d+)$", log_of(server), re.M)
    return {int(each) for each in logged}


def log_of(server: RayServer) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", server.log.read_text())


def test_killed_front_door_is_started_again(server: RayServer) -> None:
    (process,) = server.processes("front-door")
    os.kill(process, signal.SIGKILL)
    assert completion(server, "The", 5, stream=False)  # waits for the next one
    assert server.processes("front-door") != [process]


@pytest.mark.parametrize("change", ["fewer replicas", "other limits"])
def test_update_lets_running_requests_finish(server: RayServer, change: str) -> None:
    """The last test: there are fewer replicas after it. Other limits replace the front door and all replicas."""
    expected = all_of_them(server, [], "before")
    file = server.log.with_suffix(".yaml")
    content = yaml.safe_load(file.read_text())
    (application,) = content["applications"]
    if change == "fewer replicas":
        next(each for each in application["deployments"] if each["name"] == "chat")["num_replicas"] = 1
    else:
        application["args"]["limits"]["max_choices"] = 1
    file.write_text(yaml.safe_dump(content))
    names = ["chat"] if change == "fewer replicas" else ["chat", "front-door"]
    before = {process for name in names for process in server.processes(name)}
    left = 1 if change == "fewer replicas" else 0
    with ThreadPoolExecutor(1) as thread:
        updated = thread.submit(server.update, file)
        rounds = 0
        while len(before & {process for name in names for process in server.processes(name)}) > left:
            assert all_of_them(server, [], f"{change} {rounds}") == expected
            rounds += 1
            assert rounds < 50, server.messages()
        updated.result()
    server.wait_for_replicas("chat", 1)
    assert all_of_them(server, [], "after") == expected
    if change == "other limits":
        assert server.ask("/v1/completions", BODY | {"n": 2})[0] == 400
