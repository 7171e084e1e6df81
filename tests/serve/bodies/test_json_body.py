"""Fields of a request are used, or rejected by name, at any depth; used fields have their effect."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pydantic
import pytest
from served import Served

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
QUESTION = {"role": "user", "content": "Hi"}
PLACE = {
    "type": "object",
    "properties": {"place": {"enum": ["Ulm", "Rome"]}},
    "required": ["place"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "parameters": PLACE, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
NAMED = {"type": "function", "function": {"name": "weather"}}
NAMED_FLAT = {"type": "function", "name": "weather"}
CALL = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
SCHEMA = {"name": "place", "schema": PLACE}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "lm", "messages": [QUESTION], "max_tokens": 2},
    COMPLETIONS: {"model": "lm", "prompt": "The import statement", "max_tokens": 24, "temperature": 0},
    RESPONSES: {"model": "lm", "input": "Hi", "max_output_tokens": 2},
}


def called(call: dict[str, Any]) -> list[dict[str, Any]]:
    return [QUESTION, {"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}]},
            "messages[0].content[0].cache_control",
        ),
        (CHAT, {"messages": called({**CALL, "cache_control": {}})}, "messages[1].tool_calls[0].cache_control"),
        (
            CHAT,
            {"messages": called({**CALL, "function": {"name": "a", "arguments": "{}", "odd": 1}})},
            "messages[1].tool_calls[0].function.odd",
        ),
        (CHAT, {"messages": [{**QUESTION, "odd": 1}]}, "messages[0].odd"),
        (CHAT, {"tools": [{**TOOL, "cache_control": {}}]}, "tools"),
        (CHAT, {"tools": [{**TOOL, "function": {**FUNCTION, "odd": 1}}]}, "tools"),
        (CHAT, {"tools": [TOOL], "tool_choice": {**NAMED, "odd": 1}}, "tool_choice"),
        (CHAT, {"tools": [TOOL], "tool_choice": {**NAMED, "function": {"name": "weather", "odd": 1}}}, "tool_choice"),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {**SCHEMA, "odd": 1}}},
            "response_format.json_schema.odd",
        ),
        (CHAT, {"response_format": {"type": "text", "json_schema": SCHEMA}}, "response_format.json_schema"),
        (CHAT, {"max_completion_tokens": 3}, "max_tokens"),
        (CHAT, {"stream": True, "stream_options": {"odd": 1}}, "stream_options.odd"),
        (CHAT, {"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "odd": 1}]}]},
            "input[0].content[0].odd",
        ),
        (RESPONSES, {"input": [{**QUESTION, "arguments": "{}"}]}, "input[0].arguments"),
        (RESPONSES, {"tools": [{"type": "function", **FUNCTION, "odd": 1}]}, "tools[0].odd"),
        (
            RESPONSES,
            {"tools": [{"type": "function", **FUNCTION}], "tool_choice": {**NAMED_FLAT, "odd": 1}},
            "tool_choice",
        ),
        (RESPONSES, {"text": {"format": {"type": "text", "schema": PLACE}}}, "text.format.schema"),
        (RESPONSES, {"stream_options": {"include_obfuscation": False}}, "stream_options"),
        (RESPONSES, {"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        (COMPLETIONS, {"echo": True}, "echo"),
        (COMPLETIONS, {"best_of": 2}, "best_of"),
        (COMPLETIONS, {"suffix": "end"}, "suffix"),
    ],
)
def test_unsupported_fields_are_rejected_by_name(server: Served, path: str, fields: dict[str, Any], param: str) -> None:
    status, error = server.post(path, {**BODIES[path], **fields})
    assert (status, error["error"]["param"]) == (400, param), error
    assert "a bug in intaglio" not in error["error"]["message"]


def test_both_maximum_fields_may_have_one_value(server: Served) -> None:
    status, found = server.post(CHAT, {**BODIES[CHAT], "max_completion_tokens": 2, "seed": 1})
    assert (status, found["usage"]["completion_tokens"]) == (200, 2)


def test_empty_schema_allows_any_value(server: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "any", "schema": {}}}
    fields = {"response_format": form, "temperature": 2, "n": 16, "max_tokens": 4, "seed": 1}
    status, found = server.post(CHAT, {**BODIES[CHAT], **fields})
    assert status == 200
    texts = [choice["message"]["content"].strip() for choice in found["choices"]]
    assert any(text and not text.startswith("{") for text in texts), texts


class Place(pydantic.BaseModel):
    """What the client's `parse` reads."""

    place: Literal["Ulm", "Rome"]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of the client, for what it has parsed itself
def test_client_messages_are_accepted_in_the_next_request(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "lm", "temperature": 0, "max_tokens": 60}
    messages: list[Any] = [QUESTION]
    parsed = client.chat.completions.parse(messages=messages, response_format=Place, **options).choices[0].message
    assert parsed.parsed is not None
    calling: dict[str, Any] = {**options, "tools": [TOOL], "tool_choice": NAMED}
    with client.chat.completions.stream(messages=messages, **calling) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.tool_calls
    result = {"role": "tool", "tool_call_id": streamed.tool_calls[0].id, "content": "sunny"}
    forms: list[tuple[Any, Any]] = [
        (parsed, streamed),
        (parsed.model_dump(), streamed.model_dump()),
        (parsed.to_dict(), streamed.to_dict()),
    ]
    for answer, call in forms:
        again: list[Any] = [*messages, answer, QUESTION, call, result]
        assert client.chat.completions.create(messages=again, model="lm", max_tokens=2).choices
    response = client.responses.parse(model="lm", input="Hi", text_format=Place, temperature=0)
    items: list[Any] = [*response.output, QUESTION]
    assert client.responses.create(model="lm", input=items, max_output_tokens=2).output


def tokens_of(server: Served, **fields: Any) -> list[str]:
    status, found = server.post(COMPLETIONS, {**BODIES[COMPLETIONS], "max_tokens": 80, "logprobs": 0, **fields})
    assert status == 200
    tokens: list[str] = found["choices"][0]["logprobs"]["tokens"]
    return tokens


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty"])
def test_penalties_reduce_repetition(server: Served, field: str) -> None:
    plain, penalized = tokens_of(server), tokens_of(server, **{field: 2})
    assert len(set(penalized)) > len(set(plain))


def test_max_completion_tokens_limits_the_answer(server: Served) -> None:
    body = {"model": "lm", "messages": [QUESTION], "max_completion_tokens": 5, "ignore_eos": True}
    status, found = server.post(CHAT, body)
    assert (status, found["usage"]["completion_tokens"]) == (200, 5)


def test_completion_logprobs_belong_to_its_tokens(server: Served) -> None:
    status, found = server.post(COMPLETIONS, {**BODIES[COMPLETIONS], "logprobs": 3})
    assert status == 200
    text, logprobs = found["choices"][0]["text"], found["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == text
    assert len(logprobs["tokens"]) == found["usage"]["completion_tokens"]
    rows = zip(*(logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")), strict=True)
    offset = 0
    for token, logprob, top, begin in rows:
        assert (top[token], len(top), begin) == (logprob, 3, offset)
        assert logprob == max(top.values()) <= 0  # greedy
        offset += len(token)


def test_json_object_format_returns_an_object(server: Served) -> None:
    fields = {"response_format": {"type": "json_object"}, "temperature": 1.5, "n": 8, "max_tokens": 200, "seed": 1}
    status, found = server.post(CHAT, {**BODIES[CHAT], **fields})
    assert status == 200
    texts = [(each["finish_reason"], each["message"]["content"]) for each in found["choices"]]
    assert all(text.lstrip().startswith("{") for _, text in texts)
    whole = [json.loads(text) for reason, text in texts if reason == "stop"]
    assert whole
    assert all(isinstance(each, dict) for each in whole)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_stream_ends_with_done(server: Served, path: str) -> None:
    body = json.dumps({**BODIES[path], "stream": True}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with server.connect() as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        data = b""
        while part := connection.recv(1 << 16):
            data += part
    head_sent, _, sent = data.partition(b"\r\n\r\n")
    assert b"content-type: text/event-stream" in head_sent.lower()
    events = b""
    while (size := int((line := sent.partition(b"\r\n"))[0], 16)) > 0:  # chunks: size, line end, bytes, line end
        events, sent = events + line[2][:size], line[2][size + 2 :]
    assert events.endswith(b"}\n\ndata: [DONE]\n\n")
    assert events.count(b"[DONE]") == 1
    assert all(line.startswith(b"data: ") for line in events.split(b"\n\n")[:-1])
