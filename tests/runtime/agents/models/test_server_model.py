"""Servers with OpenAI's API as the model of an agent: `intaglio serve` itself, and servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from asking import QUESTION, Answer, ask
from scripted_server import CUT, END, SILENCE, STREAM, ScriptedServer, chunk, error, event, scripted, status, stream
from served import Served, served

from intaglio.errors import UsageError
from intaglio.runtime.agents.models.model import End, ModelError, ModelRequest, Usage
from intaglio.runtime.agents.models.server_model import ServerModel
from intaglio.runtime.agents.tools.tool import Tool
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.message import FunctionCall, Message, ToolCall

SECONDS = 60  # of any one test's loop
KEY = "sk-a-secret-of-the-tests"
DIGITS = "start: /[0-9]{3}-[0-9]{4}/"
PLACE = {
    "type": "object",
    "properties": {"place": {"enum": ["Ulm", "Rome"]}},
    "required": ["place"],
    "additionalProperties": False,
}
TOOLS = [
    Tool("weather", "Forecast.", PLACE, print),
    Tool("now", "The time.", {"type": "object", "properties": {}}, print),
]
DONE = [chunk("Hello"), chunk(" you", "stop")]


@pytest.fixture(scope="module")
def server(chat_models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`intaglio serve` with the trained language model in two rows, and a key."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"{KEY}\n")
    with served(f"lm={chat_models[1]}", "--rows", 2, "--api-key-file", keys) as running:
        running.key = KEY
        yield running


async def nothing_is_left(running: ScriptedServer) -> None:
    """Wait until the client has no connection and no task; what it left to the garbage collector takes some turns."""
    for _ in range(100):
        if running.open == 0 and asyncio.all_tasks() == {asyncio.current_task()}:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{running.open} connections, {asyncio.all_tasks()}")


def asked(server: Served, messages: Sequence[Message] = QUESTION, constrained: bool = False, **options: Any) -> Answer:
    """The answer of the real server."""

    async def main() -> Answer:
        async with asyncio.timeout(SECONDS), ServerModel(server.url, "lm", KEY, constrained=constrained) as model:
            return await ask(model, messages, **options)

    return asyncio.run(main())


def answered(*answers: Sequence[bytes | float], **options: Any) -> tuple[Answer, ScriptedServer]:
    """The answer of a scripted server; `options` of the model, and of the request. Nothing is left of the client."""

    async def main() -> tuple[Answer, ScriptedServer]:
        own = {name: options.pop(name) for name in ("timeout", "retries", "api_key", "constrained") if name in options}
        async with asyncio.timeout(SECONDS), scripted(*answers) as running:
            try:
                async with ServerModel(running.url, "m", **{"retries": 0, "timeout": 10.0, **own}) as model:
                    found = await ask(model, **options)
            finally:
                await nothing_is_left(running)
        return found, running

    return asyncio.run(main())


def test_text_and_usage_equal_generate(server: Served, chat_models: tuple[Path, Path]) -> None:
    with TextGenerator(chat_models[1], max_new_tokens=12) as generator:
        expected = generator.write(QUESTION).whole()
    text, calls, end = asked(server)
    assert (text, calls) == (expected.text, [])
    assert end == End(Usage(expected.prompt_tokens, end.usage.cached, 12, 1), "length")
    assert asked(server)[2].usage.cached == expected.prompt_tokens - 1  # the same prompt again


def test_grammar_is_enforced_if_supported_and_ignored_otherwise(server: Served) -> None:
    text, _, end = asked(server, constrained=True, most=60, grammar=DIGITS)
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", text)
    assert end.finish_reason == "stop"
    assert asked(server, grammar=DIGITS)[0] == asked(server)[0]


def test_required_calls_of_the_server_are_complete(server: Served) -> None:
    text, calls, end = asked(server, most=200, tools=TOOLS[:1], tool_choice="required", temperature=1.0, seed=2)
    assert calls or end.finish_reason == "length"
    assert text == "" or end.finish_reason == "length"
    assert all(call.id and json.loads(call.function.arguments).keys() == {"place"} for call in calls)


def test_conversation_with_calls_is_sent_in_api_format(server: Served) -> None:
    call = ToolCall(FunctionCall("weather", {"place": "Ulm"}), "call_1")
    messages = [*QUESTION, Message("assistant", tool_calls=[call]), Message("tool", "sunny", tool_call_id="call_1")]
    text, _, end = asked(server, messages, tools=TOOLS, tool_choice="none")
    assert text
    assert end.usage.prompt > asked(server)[2].usage.prompt


def test_client_runs_two_streams_concurrently(server: Served) -> None:
    async def main() -> Any:
        async with asyncio.timeout(SECONDS), ServerModel(server.url, "lm", KEY) as model:
            other = [Message("user", "And a class?")]
            both = await asyncio.gather(ask(model, most=40), ask(model, other, most=40))
            return [text for text, *_ in both], [(await ask(model, each, most=40))[0] for each in (QUESTION, other)]

    together, alone = asyncio.run(main())
    assert together == alone


def test_leaving_the_context_aborts_the_request_on_the_server(server: Served) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS), ServerModel(server.url, "lm", KEY, constrained=True) as model:
            async with model.stream(ModelRequest(QUESTION, 200, "start: /[0-9]{400}/")) as pieces:
                await anext(pieces)
            await asyncio.to_thread(server.wait_for, "vllm:num_requests_running", 0, 10)

    before = server.metric("vllm:generation_tokens_total")
    asyncio.run(main())
    assert server.metric("vllm:generation_tokens_total") - before < 200


def test_cancelling_an_unanswered_request_closes_its_connection() -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS), scripted([SILENCE]) as running, ServerModel(running.url, "m") as model:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await ask(model)
            assert len(running.bodies) == 1
            await nothing_is_left(running)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("model", "key", "messages", "kind", "expected_error"),
    [
        ("lm", "sk-wrong", QUESTION, ModelError, r"refuses the API key \(401: .*\)\. Set OPENAI_API_KEY, or give"),
        ("other", KEY, QUESTION, UsageError, r"has no model 'other' \(404: model 'other' does not exist"),
        ("lm", KEY, [Message("user", "word " * 400)], UsageError, r"refuses the request \(400: prompt of \d+ tokens"),
        ("lm", KEY, [], UsageError, r"refuses the request \(400: messages: the list is empty"),
    ],
)
def test_server_rejection_is_one_line_without_the_key(
    server: Served, model: str, key: str, messages: Sequence[Message], kind: type[Exception], expected_error: str
) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS), ServerModel(server.url, model, key) as opened:
            await ask(opened, messages)

    with pytest.raises(kind, match=rf"^model server {server.url}/v1: {expected_error}") as raised:
        asyncio.run(main())
    assert key not in str(raised.value)
    assert "\n" not in str(raised.value)


def call(index: int | None, name: str | None, arguments: object, identifier: str | None = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    given = {"index": index, "id": identifier, "function": function}
    return {key: value for key, value in given.items() if value is not None}


ULM, ROME = '{"place": "Ulm"}', '{"place": "Rome"}'


@pytest.mark.parametrize(
    "parts",
    [
        [  # in OpenAI's format
            [call(0, "weather", "", "a")], [call(0, None, '{"place"')], [call(0, None, ': "Ulm"}')],
            [call(1, "weather", "", "b")], [call(1, None, ROME)],
        ],
        [[call(0, "weather", ULM, "a"), call(1, "weather", ROME, "b")]],  # whole
        [[call(0, "weather", ULM, "a")], [call(0, "weather", ROME, "b")]],  # whole, with one index
        [[call(None, "weather", ULM, "a")], [call(None, "weather", ROME, "b")]],  # without an index
        [[call(None, "weather", '{"place"', "a")], [call(None, None, ': "Ulm"}')], [call(None, "weather", ROME, "b")]],
        [[call(0, "weather", {"place": "Ulm"}, "a")], [call(1, "weather", {"place": "Rome"}, "b")]],  # objects
        [  # mixed
            [call(0, "weather", "", "a"), call(1, "weather", "", "b")],
            [call(1, None, '{"place"')], [call(0, None, ULM)], [call(1, None, ': "Rome"}')],
        ],
        [[call(0, "weather", ULM, "a")], [call(0, None, "", "a")], [call(1, "weather", ROME, "b")]],  # id repeated
    ],
)  # fmt: skip
def test_calls_are_assembled_from_any_deltas(parts: list[list[dict[str, Any]]]) -> None:
    chunks = [chunk(tool_calls=each) for each in parts]
    (text, calls, end), _ = answered(stream(*chunks, chunk(reason="tool_calls")), tools=TOOLS)
    assert [(each.id, each.function.name, json.loads(str(each.function.arguments))) for each in calls] == [
        ("a", "weather", {"place": "Ulm"}),
        ("b", "weather", {"place": "Rome"}),
    ]
    assert (text, end.finish_reason) == ("", "tool_calls")


def test_call_is_complete_when_the_next_one_begins() -> None:
    async def main() -> Any:
        sent = [STREAM, chunk(tool_calls=[call(0, "now", "{}", "a")]), chunk(tool_calls=[call(1, "now", "", "b")])]
        async with asyncio.timeout(SECONDS), scripted([*sent, SILENCE]) as running:
            model = ServerModel(running.url, "m")
            async with model, model.stream(ModelRequest(QUESTION, 9)) as pieces:
                first = await anext(pieces)
            await nothing_is_left(running)
            return first

    assert asyncio.run(main()) == ToolCall(FunctionCall("now", "{}"), "a", "function")


def test_truncated_call_is_dropped_and_missing_id_is_generated() -> None:
    parts = [chunk("Let me see."), chunk(tool_calls=[call(0, "now", "{}"), call(1, "weather", '{"pl')])]
    (text, calls, end), _ = answered(stream(*parts, chunk(reason="length")), tools=TOOLS)
    assert (text, [each.function.name for each in calls], end.finish_reason) == ("Let me see.", ["now"], "length")
    assert calls[0].id


def test_usage_is_the_servers_or_one_token_per_piece() -> None:
    counts = {"prompt_tokens": 30, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 20}}
    (_, _, end), running = answered(stream(*DONE, event({"choices": [], "usage": counts})))
    assert end == End(Usage(30, 20, 5, 1), "stop")
    assert running.bodies[0]["stream_options"] == {"include_usage": True}
    (_, _, end), _ = answered(stream(*DONE))
    assert end == End(Usage(0, 0, 2, 1), "stop")
    (_, _, end), _ = answered(stream(*DONE, event({"choices": [], "usage": {**counts, "prompt_tokens_details": None}})))
    assert end.usage == Usage(30, 0, 5, 1)


def test_fields_rejected_by_a_server_are_dropped_or_renamed() -> None:
    refused = [
        error(400, "Unrecognized request argument supplied: stream_options"),
        error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
    ]
    (text, _, _), running = answered(*refused, stream(*DONE))
    assert text == "Hello you"
    assert "stream_options" not in running.bodies[-1]
    assert (running.bodies[-1].get("max_tokens"), running.bodies[-1]["max_completion_tokens"]) == (None, 12)


def test_busy_or_failing_server_is_retried() -> None:
    soon = "retry-after-ms: 20"
    (text, _, _), running = answered(error(429, "busy", soon), error(500, "broke", soon), stream(*DONE), retries=2)
    assert (text, len(running.bodies)) == ("Hello you", 3)


GONE = r"the connection failed \(.+\)\. Check the address"


@pytest.mark.parametrize(
    ("answer", "expected_error"),
    [
        (error(401, f"wrong key {KEY}"), r"refuses the API key \(401: wrong key \*\*\*\)\. Set OPENAI_API_KEY"),
        (error(429, "busy"), r"takes no more requests \(429: busy\)\. Try again later\.$"),
        (error(500, "it\nbroke."), r"failed \(500: it broke\)\. See the server's log\.$"),
        ([STREAM, chunk("a"), CUT], GONE),
        ([CUT], GONE),
        ([b"nonsense\r\n\r\n", CUT], GONE),
        ([STREAM, chunk("a"), END], "the stream ended before the answer did"),
        (stream(chunk("a")), "the stream ended before the answer did"),
        (status(200, {"choices": []}), "the stream ended before the answer did"),
        ([STREAM, chunk("a"), event(b"{not JSON"), END], "the stream has a part that is not JSON"),
        ([STREAM, chunk("a"), event(b'{"a": "\xff"}'), END], "the stream has a part that is not JSON"),
        ([STREAM, event(7), END], "sent a malformed chunk"),
        ([STREAM, event(None), END], "sent a malformed chunk"),
        ([STREAM, event([1]), END], "sent a malformed chunk"),
        ([STREAM, event({"choices": 7}), END], "sent a malformed chunk"),
        ([STREAM, event({"choices": [{"delta": {"content": 5}}]}), END], "sent a malformed chunk"),
        ([STREAM, event({"choices": [{"delta": {"tool_calls": [[]]}}]}), END], "sent a malformed chunk"),
        (stream(*DONE, event({"choices": [], "usage": {"prompt_tokens": "many"}})), "sent a malformed chunk"),
        (stream(chunk(tool_calls=[call(0, None, ULM, "a")]), chunk(reason="stop")), "a tool call has no name"),
        (
            stream(*(chunk(tool_calls=[call(i, "now", "{}", str(i))]) for i in (0, 1, 0)), chunk(reason="stop")),
            "tool call 'now' continues after its end",
        ),
        (stream(chunk("a", "content_filter")), r"the answer was ended by the server \(finish_reason 'content_filter'"),
        ([STREAM, chunk("a"), event({"error": {"message": "no memory"}}), END], r"failed during the answer \(no mem"),
        ([SILENCE], r"no answer within 0\.3 seconds\. Check the server, or allow more time\.$"),
        ([STREAM, chunk("a"), SILENCE], r"no answer within 0\.3 seconds"),
    ],
)
def test_server_failure_is_one_line(answer: Sequence[bytes | float], expected_error: str) -> None:
    with pytest.raises(ModelError, match=rf"^model server http://127\.0\.0\.1:\d+/v1: {expected_error}") as raised:
        answered(answer, timeout=0.3 if SILENCE in answer else SECONDS, api_key=KEY)  # a busy machine is slow
    assert KEY not in str(raised.value)
    assert "\n" not in str(raised.value)


REASONING = {"index": 0, "delta": {"reasoning_content": "so "}, "finish_reason": None}


@pytest.mark.parametrize("sent", [chunk("word "), chunk("x" * 3000), event({"id": "c", "choices": [REASONING]})])
def test_stream_beyond_max_tokens_is_cut_off(sent: bytes) -> None:
    (text, _, end), _ = answered([STREAM, *[sent] * 5000, SILENCE], most=50)
    assert len(text) <= 51 * len("word ") or text == "x" * 3000
    assert (end.finish_reason, end.usage.completion >= 50) == ("length", True)


def test_answer_is_complete_if_the_server_disconnects_after_it() -> None:
    (text, _, end), _ = answered([STREAM, *DONE, CUT])
    assert (text, end.finish_reason) == ("Hello you", "stop")


def test_unreachable_server_is_named_without_its_password() -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS), scripted([CUT]) as running:
            url = running.url
        async with ServerModel(url.replace("//", "//me:hidden@"), "m", retries=0) as model:
            await ask(model)

    with pytest.raises(ModelError, match=rf"^model server http://127.0.0.1:\d+/v1: {GONE}") as raised:
        asyncio.run(main())
    assert "hidden" not in str(raised.value)


def test_closed_model_raises() -> None:
    with pytest.raises(ModelError, match="is not open"):
        asyncio.run(ask(ServerModel("http://127.0.0.1:9", "m")))


def test_key_option_precedes_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(key: str | None) -> str:
        head = answered(stream(*DONE), api_key=key)[1].heads[0].lower()
        return next(line.partition(": ")[2] for line in head.split("\r\n") if line.startswith("authorization"))

    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment\n")
    assert sent(None) == "bearer sk-environment"
    assert sent("sk-option") == "bearer sk-option"
    monkeypatch.delenv("OPENAI_API_KEY")
    assert sent(None) == "bearer none"


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "http://[::1", "host:8000"])
def test_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(UsageError, match=r"^the URL of the model is invalid"):
        ServerModel(url, "m")


def test_invalid_key_is_rejected_and_not_shown() -> None:
    with pytest.raises(UsageError, match=r"^the API key: has spaces") as raised:
        ServerModel("http://host", "m", "sk-é x")
    assert "sk-" not in str(raised.value)


def test_url_with_a_path_is_unchanged() -> None:
    async def main() -> str:
        async with asyncio.timeout(SECONDS), scripted(stream(*DONE)) as running:
            async with ServerModel(f"{running.url}/openai/v2/", "m") as model:
                await ask(model)
            return running.heads[0]

    assert asyncio.run(main()).startswith("POST /openai/v2/chat/completions ")
