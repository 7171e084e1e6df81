"""Tool calls through the official client: chat completions and responses, streamed and in full."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest

PLACE = {
    "type": "object",
    "properties": {"place": {"enum": ["Ulm", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["place", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Forecast.", "parameters": PLACE}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
SEED = {"seed": 4}
QUESTION = [{"role": "user", "content": "Weather?"}]
NAMED = {"type": "function", "function": {"name": "weather"}}


def ask(client: openai.OpenAI, **options: Any) -> Any:
    given = {"model": "lm", "messages": QUESTION, "tools": TOOLS, "max_tokens": 120}
    return client.chat.completions.create(**{**given, **options})


@pytest.mark.parametrize("seed", range(3))
def test_named_tool_is_called_with_valid_arguments(client: openai.OpenAI, seed: int) -> None:
    choice = ask(client, tool_choice=NAMED, temperature=1.5, seed=seed).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    jsonschema.validate(json.loads(call.function.arguments), PLACE)


def test_streamed_call_equals_the_full_one(client: openai.OpenAI) -> None:
    options = {"tool_choice": NAMED, "temperature": 1.5, "seed": 1}
    (expected,) = ask(client, **options).choices[0].message.tool_calls
    name, arguments, identifiers, reasons = "", "", [], []
    for chunk in ask(client, stream=True, **options):
        reasons.append(chunk.choices[0].finish_reason)
        for delta in chunk.choices[0].delta.tool_calls or []:
            assert delta.index == 0
            name += delta.function.name or ""
            arguments += delta.function.arguments or ""
            identifiers += [delta.id] if delta.id else []
    assert (name, arguments) == (expected.function.name, expected.function.arguments)
    assert len(identifiers) == 1
    assert reasons[-1] == "tool_calls"


def streamed_answer(client: openai.OpenAI, **options: Any) -> tuple[str, list[str], str | None]:
    """The content, the calls' arguments, and why the text ended."""
    content, arguments, reason = "", list[str](), None
    for chunk in ask(client, stream=True, **options):
        delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason or reason
        content += delta.content or ""
        for call in delta.tool_calls or []:
            arguments += [""] * (call.index + 1 - len(arguments))
            arguments[call.index] += call.function.arguments or ""
    return content, arguments, reason


# Where a call ends too early: in the marker, before the name, in the arguments, and after them.
CUTS = [
    ({"stop": "ol_call>"}, [], "stop"),
    ({"stop": '"name"'}, [], "stop"),
    ({"stop": "place"}, ['{"'], "stop"),
    ({"stop": "</tool_call>"}, None, "tool_calls"),
    ({"max_tokens": 1}, [], "length"),
    ({"max_tokens": 8}, [], "length"),
]


@pytest.mark.parametrize(("limit", "arguments", "reason"), CUTS)
def test_truncated_call_is_dropped_without_markup(
    client: openai.OpenAI, limit: dict[str, Any], arguments: list[str] | None, reason: str
) -> None:
    options = {"tool_choice": NAMED, "temperature": 1.5, "seed": 1, **limit}
    choice = ask(client, **options).choices[0]
    found = [call.function.arguments for call in choice.message.tool_calls or []]
    assert choice.finish_reason == reason
    assert not choice.message.content
    assert found == arguments if arguments is not None else json.loads(found[0])
    assert streamed_answer(client, **options) == ("", found, reason)


@pytest.mark.parametrize(("limit", "arguments", "reason"), CUTS)
def test_response_with_a_truncated_call_is_incomplete(
    client: openai.OpenAI, limit: dict[str, Any], arguments: list[str] | None, reason: str
) -> None:
    most = {"max_output_tokens": limit["max_tokens"]} if "max_tokens" in limit else {}
    options: dict[str, Any] = {"model": "lm", "input": "Weather?", "tools": FLAT, "temperature": 1.5, **most}
    options |= {"tool_choice": {"type": "function", "name": "weather"}, "extra_body": {"seed": 1, **limit}}
    options["extra_body"].pop("max_tokens", None)
    found = client.responses.create(**options)
    event = list(client.responses.create(stream=True, **options))[-1]
    expected = "completed" if reason == "tool_calls" else "incomplete"
    for response in found, event.response:
        assert response.status == expected
        assert [item.status for item in response.output] == [expected] * (arguments is None or len(arguments))
        assert response.output_text == ""
        why = response.incomplete_details and response.incomplete_details.reason
        assert why == {"stop": "stop", "length": "max_output_tokens"}.get(reason)
    assert event.type == f"response.{expected}"


def test_conversation_continues_after_a_call(client: openai.OpenAI) -> None:
    message = ask(client, tool_choice="required", parallel_tool_calls=False, seed=0).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    assert len(results) == 1
    asked = [*QUESTION, message, *results]
    after = ask(client, messages=asked, tool_choice="none", max_tokens=8, extra_body={"ignore_eos": True})
    assert after.choices[0].message.tool_calls is None
    assert after.choices[0].message.content


@pytest.mark.parametrize(
    ("options", "expected_error"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "no tool is named 'other'"),
        ({"tool_choice": "sometimes"}, "expected none, auto, required"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tool 1: name 'a b'"),
        ({"tools": [{"type": "retrieval"}]}, "tool 1: expected"),
        ({"tools": [{**TOOLS[1], "function": {"name": f"f{number}"}} for number in range(129)]}, "129 tools"),
        ({"tools": [], "tool_choice": "required"}, "there are no tools"),
        ({"response_format": {"type": "json_object"}}, "the text has another format, too"),
        ({"functions": []}, "'functions' is not supported"),
    ],
)
def test_invalid_tools_are_rejected(client: openai.OpenAI, options: dict[str, Any], expected_error: str) -> None:
    with pytest.raises(openai.BadRequestError, match=expected_error):
        ask(client, **options)


def test_response_equals_the_chat_completion(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "lm", "temperature": 0}
    chat = client.chat.completions.create(messages=QUESTION, max_tokens=20, **options)  # type: ignore[arg-type]
    found = client.responses.create(input="Weather?", max_output_tokens=20, **options)
    assert found.output_text == chat.choices[0].message.content
    assert found.status == "incomplete"
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert found.usage is not None
    assert chat.usage is not None
    assert found.usage.output_tokens == chat.usage.completion_tokens


def test_response_events_add_up_to_the_response(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "lm", "input": "Weather?", "temperature": 0, "max_output_tokens": 20}
    events = list(client.responses.create(stream=True, **options))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == client.responses.create(**options).output_text  # type: ignore[union-attr]


def test_response_calls_tools_and_continues(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "lm", "tools": FLAT, "tool_choice": {"type": "function", "name": "weather"}}
    found = client.responses.create(input="Weather?", temperature=1.5, extra_body=SEED, **options)
    (call,) = found.output
    assert call.type == "function_call"
    jsonschema.validate(json.loads(call.arguments), PLACE)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    after = client.responses.create(
        input=[*QUESTION, call.to_dict(), output],  # type: ignore[list-item]
        max_output_tokens=8,
        temperature=0,  # sampled, the text could end at once
        **{**options, "tool_choice": "none"},
    )
    assert after.output
    events = list(client.responses.create(input="Weather?", temperature=1.5, stream=True, extra_body=SEED, **options))
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    jsonschema.validate(json.loads("".join(pieces)), PLACE)
    assert events[-1].type == "response.completed"


def test_response_matches_the_schema(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "name": "place", "schema": PLACE, "strict": True}
    found = client.responses.create(model="lm", input="Where?", text={"format": form}, extra_body=SEED)  # type: ignore[arg-type]
    jsonschema.validate(json.loads(found.output_text), PLACE)


@pytest.mark.parametrize(
    ("options", "expected_error"),
    [
        ({"previous_response_id": "resp_1"}, "'previous_response_id' is not supported"),
        ({"store": True}, "'store' is not supported"),
        ({"n": 2}, "n: /v1/responses returns one response"),
        ({"input": []}, "the list is empty"),
        ({"input": [{"type": "function_call", "name": "a"}]}, r"input\[0\].arguments: is missing"),
        ({"input": [{"type": "message", "content": "a"}]}, r"input\[0\].role: is missing"),
        ({"tools": [{"type": "web_search"}]}, r"tools\[0\].type"),
        ({"text": {"format": {"type": "json_schema"}}}, r"text.format.schema: is missing"),
    ],
)
def test_unsupported_response_fields_are_rejected(
    client: openai.OpenAI, options: dict[str, Any], expected_error: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=expected_error):
        client.responses.create(**{"model": "lm", "input": "a", "extra_body": {}, **_body(options)})


def _body(options: dict[str, Any]) -> dict[str, Any]:
    """Fields unknown to the client go into the body unchanged."""
    return {"extra_body": {"n": options["n"]}} if "n" in options else options
