"""Agents as models of the server, through the official client: answers, streams, limits, disconnects."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from scripted_server import SILENCE, STREAM, ScriptedServer, Step, chunk, scripted_in_a_thread, stream
from served import Served, served
from time_limit import time_limit
from tiny_decoders import CHAT

from intaglio.errors import UsageError
from intaglio.serve.models.agent_description import AgentDescription, read_description
from intaglio.serve.models.agent_opening import check_descriptions

PLAN = 'Thought: count\n1. calculate("6 * 7")\n2. calculate("$1 + 1")\n3. join()\n'
ANSWERED = [stream(chunk(PLAN, "stop")), stream(chunk("Answer: It is"), chunk(" 43."), chunk(reason="stop"))]
QUESTION: list[Any] = [{"role": "user", "content": "How much?"}]


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with time_limit(120):
        yield


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedServer]:
    with scripted_in_a_thread() as running:
        yield running


@pytest.fixture(scope="module")
def offering(
    model: ScriptedServer, make_decoder: Callable[..., tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A server of a random LLaMA, an agent with that model, and one with the scripted model."""
    decoder = make_decoder("llama", chat=CHAT, max_position_embeddings=4096)[1]
    folder = tmp_path_factory.mktemp("agents")
    own = {"name": "own", "model": "lm", "tools": ["calculate"], "limits": {"request_tokens": 40, "replans": 0}}
    (folder / "own.json").write_text(json.dumps(own))
    (folder / "helper.toml").write_text(
        f'name = "helper"\nmodel = "{model.url}"\nmodel_name = "any"\ntools = ["calculate"]\nruns = 2\n'
        "[limits]\nreplans = 0\n"
    )
    options = ("--rows", 3, "--agent", folder / "own.json", "--agent", folder / "helper.toml", "--grace", 1)
    with served(f"lm={decoder}", *options, "--log-format", "json") as running:
        yield running


@pytest.fixture(scope="module")
def client(offering: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{offering.url}/v1", api_key="any", max_retries=0, timeout=60) as opened:
        yield opened


def ask(client: openai.OpenAI, model: ScriptedServer, answers: Sequence[Sequence[Step]], **options: Any) -> Any:
    model.answers[:] = answers
    return client.chat.completions.create(**{"model": "helper", "messages": QUESTION, **options})


def wait_until(reached: Any, seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_agents_are_listed_as_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["lm", "own", "helper"]
    assert client.models.retrieve("helper").id == "helper"


def test_agent_answers_with_the_usage_of_all_its_requests(
    client: openai.OpenAI, model: ScriptedServer, offering: Served
) -> None:
    before = len(offering.log)
    found = ask(client, model, ANSWERED)
    (choice,) = found.choices
    assert (choice.message.content, choice.finish_reason, found.model) == ("It is 43.", "stop", "helper")
    assert found.usage.completion_tokens == 3
    assert model.bodies[-1]["messages"][1]["content"] == "Question: How much?"
    assert "$2 = 43" in model.bodies[-1]["messages"][-1]["content"]
    assert offering.metric("intaglio:agent_tool_calls_total") >= 2
    wait_until(lambda: any('"model":"helper"' in line for line in offering.log[before:]))
    line = json.loads(next(line for line in offering.log[before:] if '"model":"helper"' in line))
    assert (line["status"], line["finish_reason"], line["completion_tokens"]) == (200, "stop", 3)
    assert "How much" not in "".join(offering.log) and "It is" not in "".join(offering.log)


def test_answer_is_streamed_after_the_progress(client: openai.OpenAI, model: ScriptedServer) -> None:
    joined: list[Step] = [
        STREAM,
        chunk("Thought: so\nAns"),
        chunk("wer: It is"),
        1.0,
        *stream(chunk(" 43.", "stop"))[1:],
    ]
    answers = [ANSWERED[0], joined]
    began, times, content, reasoning, reasons = time.monotonic(), [], [], "", []
    options = {"stream": True, "stream_options": {"include_usage": True}}
    usage = None
    for each in ask(client, model, answers, **options):
        usage = each.usage or usage
        for choice in each.choices:
            reasons.append(choice.finish_reason)
            reasoning += (choice.delta.model_extra or {}).get("reasoning_content", "")
            if choice.delta.content:
                content.append(choice.delta.content)
                times.append(time.monotonic() - began)
    assert content == ["It is", " 43."]
    assert times[1] - times[0] > 0.7
    assert reasons[-1] == "stop"
    assert reasoning.splitlines() == [
        "count",
        '1. calculate("6 * 7")',
        '2. calculate("$1 + 1")',
        "$1 = 42",
        "$2 = 43",
    ]
    assert usage is not None and usage.completion_tokens == 4


def test_lone_surrogates_are_no_error(client: openai.OpenAI, model: ScriptedServer) -> None:
    answers = [ANSWERED[0], stream(chunk("Answer: a \ud800 b", "stop"))]
    assert ask(client, model, answers).choices[0].message.content == "a ? b"
    chunks = list(ask(client, model, answers, stream=True))
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == "a ? b"


def test_run_without_answer_states_the_reason_and_ends_with_length(
    client: openai.OpenAI, model: ScriptedServer
) -> None:
    answers = [ANSWERED[0], stream(chunk("Replan: no", "stop"))]
    choice = ask(client, model, answers).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.content.startswith("No answer: the run reached its limit of 0 replans")
    chunks = list(ask(client, model, answers, stream=True))
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == choice.message.content
    assert chunks[-1].choices[0].finish_reason == "length"


def test_earlier_messages_are_part_of_the_question(client: openai.OpenAI, model: ScriptedServer) -> None:
    messages = [
        {"role": "user", "content": "What is 6 * 7?"},
        {"role": "assistant", "content": "42"},
        {"role": "user", "content": [{"type": "text", "text": "And 1 more?"}]},
    ]
    ask(client, model, ANSWERED, messages=messages)
    assert model.bodies[-1]["messages"][1]["content"] == (
        "Question: And 1 more?\n\nThe conversation before this question:\nuser: What is 6 * 7?\nassistant: 42"
    )


@pytest.mark.parametrize(
    ("options", "expected_error"),
    [
        ({"messages": [*QUESTION, {"role": "assistant", "content": "42"}]}, "answers a message of the user"),
        ({"temperature": 0.7}, "temperature: an agent has its own"),
        ({"max_tokens": 5}, "max_tokens: an agent has its own"),
        ({"n": 2}, "n: an agent has its own"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}]}, "tools: an agent has its own"),
        ({"stream_options": {"include_usage": True}}, "only for a stream"),
    ],
)
def test_fields_unsupported_by_agents_are_rejected(
    client: openai.OpenAI, model: ScriptedServer, options: dict[str, Any], expected_error: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=expected_error):
        ask(client, model, ANSWERED, **options)


def test_defaults_and_temperature_0_are_accepted(client: openai.OpenAI, model: ScriptedServer) -> None:
    found = ask(client, model, ANSWERED, temperature=0, n=1, top_p=1, user="me")
    assert found.choices[0].message.content == "It is 43."


def test_other_endpoints_name_the_supported_one(client: openai.OpenAI) -> None:
    with pytest.raises(
        openai.BadRequestError, match=r"'helper' is an agent\. Send the request to /v1/chat/completions"
    ):
        client.completions.create(model="helper", prompt="a")
    with pytest.raises(openai.BadRequestError, match="is an agent"):
        client.embeddings.create(model="own", input="a")


@pytest.mark.parametrize("streams", [True, False])
def test_client_disconnect_ends_the_run(
    client: openai.OpenAI, model: ScriptedServer, offering: Served, streams: bool
) -> None:
    before, requests = offering.metric("intaglio:requests_cancelled_total"), len(model.bodies)
    silent: list[Step] = [STREAM, chunk('1. calculate("6 * 7")\n'), SILENCE]
    if streams:
        answer = ask(client, model, [silent], stream=True)
        assert next(iter(answer)).choices[0].delta.role == "assistant"
        wait_until(lambda: len(model.bodies) > requests)
        answer.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            ask(client.with_options(timeout=1), model, [silent])
    wait_until(lambda: model.open == 0)
    offering.wait_for("intaglio:requests_cancelled_total", before + 1)


def test_runs_beyond_the_limit_get_429(client: openai.OpenAI, model: ScriptedServer) -> None:
    silent: list[Step] = [STREAM, chunk("1."), SILENCE]
    running = [ask(client, model, [silent], stream=True) for _ in range(2)]
    try:
        with pytest.raises(openai.RateLimitError, match="2 runs at a time are its maximum"):
            ask(client, model, [silent])
    finally:
        for each in running:
            each.close()
    wait_until(lambda: model.open == 0)
    assert ask(client, model, ANSWERED).choices[0].message.content == "It is 43."


def test_agent_shares_the_rows_of_the_served_model(client: openai.OpenAI, offering: Served) -> None:
    """Chats beside the agent's own requests get the same text as alone, from the same engine."""
    messages: list[Any] = [{"role": "user", "content": "Hello"}]

    def chat() -> str | None:
        given = client.chat.completions.create(model="lm", messages=messages, max_tokens=30, temperature=0)
        return given.choices[0].message.content

    alone = chat()
    with ThreadPoolExecutor(3) as pool:
        agents = [pool.submit(client.chat.completions.create, model="own", messages=QUESTION) for _ in range(2)]
        texts = [pool.submit(chat) for _ in range(2)]
        assert [text.result() for text in texts] == [alone, alone]
        answers = [agent.result() for agent in agents]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content != ""
    assert answers[0].usage.prompt_tokens > 0


def test_shutdown_ends_runs_after_the_grace_period(
    model: ScriptedServer, chat_models: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(f"name: a\nmodel: {model.url}\nmodel_name: m\ntools: [calculate]\n")
    model.answers[:] = [[STREAM, chunk("1."), SILENCE]]
    options = ("--rows", 1, "--agent", tmp_path / "a.yaml", "--grace", 0.5)
    with (
        served(f"lm={chat_models[0]}", *options) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=60) as own,
    ):
        answer = own.chat.completions.create(model="a", messages=QUESTION, stream=True)
        assert next(iter(answer)).choices[0].delta.role == "assistant"
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        with pytest.raises(openai.APIError, match="the server is shutting down"):
            list(answer)
        stopping.join(30)
        assert server.process.returncode == 0


@pytest.mark.parametrize(
    ("text", "expected_error"),
    [
        ("model: lm\ntools: [calculate]", "object missing required field name"),
        ("name: a\nmodel: lm\ntools: calculate", "tools: expected array, got str"),
        ("name: a\nmodel: lm\ntools: []", "tools: the list is empty"),
        ("name: a\nmodel: lm\ntools: [b]\nplaner: react", "unknown field planer"),
        ("name: a\nmodel: lm\ntools: [b]\nplanner: fast", "planner: .*'fast', expected one of llmcompiler, react"),
        ("name: a\nmodel: lm\ntools: [b]\nlimits: {second: 1}", "limits: got 'second', expected one of replans"),
        ("name: a\nmodel: lm\ntools: [b]\nlimits: {seconds: 0}", "seconds 0.0: expected more than 0"),
        ("name: a\nmodel: lm\ntools: [b]\nruns: 0", "runs 0: expected at least 1"),
        ("- a", "expected an object with fields"),
        ("a: &x [b]\nc: *x", "aliases are not allowed"),
        ("a: !!python/object/apply:os.system [ls]", "not YAML or JSON"),
    ],
)
def test_invalid_description_names_the_field(text: str, expected_error: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UsageError, match=rf"^--agent .*a\.yaml: .*{expected_error}"):
        read_description(tmp_path / "a.yaml")


def test_description_is_checked_before_bundles_are_opened() -> None:
    bundles = {"lm": Path("lm")}
    given = {"name": "a", "model": "lm", "tools": ["calculate"]}
    check_descriptions([AgentDescription(**given)], bundles)  # type: ignore[arg-type]
    for fields, expected_error in (
        ({"name": "lm"}, "agent 'lm': the name is taken"),
        ({"model": "ml"}, "agent 'a': model 'ml', expected one of lm, or a URL"),
        ({"model_name": "x"}, "agent 'a': model_name is for a model at a URL"),
    ):
        with pytest.raises(UsageError, match=expected_error):
            check_descriptions([AgentDescription(**{**given, **fields})], bundles)  # type: ignore[arg-type]


def test_invalid_agent_is_one_line_and_exit_code_2(
    intaglio: Any, chat_models: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text("name: a\nmodel: lm\ntools: [nonsense]")
    code, out, err = intaglio("serve", f"lm={chat_models[0]}", "--agent", tmp_path / "a.yaml", "--port", 0)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("intaglio: tools 'nonsense': expected calculate")
