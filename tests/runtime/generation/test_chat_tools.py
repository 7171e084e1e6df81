"""Conversations with tools: rendered as by `transformers`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from chat_bundles import TEMPLATE

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.chat import ChatTemplate
from intaglio.runtime.generation.requests.message import FunctionCall, Message, ToolCall
from intaglio.runtime.generation.tool_calls.events import ContentPiece

# As the templates of Qwen2.5 and Hermes list tools, calls and answers.
HERMES = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n<tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <args-json-object>}\\n</tool_call>" }}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
        {{- message.tool_call_id ~ message.name }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
"""
# As Llama 3.1 asks whether there are tools.
LLAMA = """
{%- if tools is not none %}{% for tool in tools %}{{ tool | tojson(indent=4) }}{{ "\\n\\n" }}{% endfor %}{% endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("only single tool-calls at once!") }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}
    {%- else %}{{- message['role'] + message['content'] }}{%- endif %}
{%- endfor %}
"""
# As Mistral's checks roles and ids.
MISTRAL = """
{%- set questions = messages | selectattr("role", "equalto", "user") | list %}
{%- for message in messages | rejectattr("role", "equalto", "tool") | selectattr("tool_calls", "undefined") %}
    {%- if message["role"] != "user" %}{{- raise_exception("only users have messages without calls") }}{%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == questions[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- for key, value in tool.function.items() %}{{- key + ": " + value | tojson }}{%- endfor %}
            {%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- elif message.tool_calls is defined %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception("ids have length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}{{- ", " if not loop.last else "]" }}
        {%- endfor %}
    {%- else %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}' }}
    {%- endif %}
{%- endfor %}
"""
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Wëather of a <city>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "123456789", "type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Ulm?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny", "tool_call_id": "123456789", "name": "weather"},
    {"role": "user", "content": "And now?"},
]


def template(source: str, tool_source: str | None = None) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, "the template", tool_source)


def messages(arguments: str | dict[str, Any]) -> list[Message]:
    calls = [ToolCall(FunctionCall("weather", arguments), "123456789", "function")]
    return [
        Message("user", "Weather in Ulm?"),
        Message("assistant", None, tool_calls=calls),
        Message("tool", "sunny", tool_call_id="123456789", name="weather"),
        Message("user", "And now?"),
    ]


@pytest.mark.covering(2)
@pytest.mark.parametrize("source", [HERMES, LLAMA, MISTRAL], ids=["hermes", "llama", "mistral"])
@pytest.mark.parametrize("tools", [None, [WEATHER], [WEATHER, WEATHER]])
@pytest.mark.parametrize("arguments", ['{"city": "Ulm"}', {"city": "Ulm"}], ids=["text", "object"])
@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}])
def test_prompts_with_tools_equal_transformers(
    source: str, tools: list[dict[str, Any]] | None, arguments: str | dict[str, Any], options: dict[str, Any]
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    variables: dict[str, Any] = {"add_generation_prompt": True, "bos_token": "<s>", **options}
    expected = render_jinja_template([TALK], tools=tools, chat_template=source, **variables)
    rendered = template(source).render(messages(arguments), tools, options)
    assert rendered == expected[0][0]
    assert '"city": "Ulm"' in rendered
    assert ("<city>" in rendered) == (tools is not None)


def test_tool_template_is_used_with_tools() -> None:
    both = template("plain", "tools {{ tools[0].function.name }} {{ bos_token }}")
    assert both.render(messages({}), [WEATHER]) == "tools weather <s>"
    assert both.render(messages({})) == both.render(messages({}), []) == "plain"
    assert both.knows_tools


def test_tools_ignored_by_the_template_are_rejected() -> None:
    plain = template("{{ messages[0].content }}")
    assert not plain.knows_tools
    with pytest.raises(UsageError, match="the chat template of this bundle does not support tools"):
        plain.render(messages({}), [WEATHER])


@pytest.mark.parametrize("arguments", ["{", "[1]", "null", '"x"', "[" * 100_000])
def test_arguments_must_be_a_json_object(arguments: str) -> None:
    with pytest.raises(UsageError, match="tool call of 'weather': the arguments are not a JSON object") as refused:
        template(HERMES).render(messages(arguments))
    assert "\n" not in str(refused.value)


def test_message_needs_content_or_tool_calls() -> None:
    for message in Message("user"), Message("assistant", tool_calls=[]):
        with pytest.raises(UsageError, match=f"a message of role '{message.role}' has no content"):
            template(HERMES).render([message])


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "add_generation_prompt", "raise_exception"])
def test_options_do_not_replace_the_variables_of_the_template(name: str) -> None:
    with pytest.raises(UsageError, match=f"chat template option '{name}': the name is reserved"):
        template(HERMES).render(messages({}), None, {name: []})


def test_option_may_be_named_self() -> None:
    assert template("{{ messages[0].content }}").render(messages({}), None, {"self": 1}) == "Weather in Ulm?"


def test_api_messages_are_parsed_with_tool_calls() -> None:
    import msgspec

    sent = [*TALK]
    sent[1] = {**TALK[1], "tool_calls": [{**CALL, "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}]}
    read = msgspec.json.decode(json.dumps(sent), type=list[Message])
    assert [message.as_variable() for message in read] == TALK


def test_call_without_arguments_has_an_empty_object() -> None:
    assert '"arguments": {}' in template(HERMES).render(messages(""))


def test_block_of_the_page_runs(tiny_decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "tool_calls.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    shutil.copytree(tiny_decoder, tmp_path / "qwen3")
    Bundle.open(tmp_path / "qwen3").add_files({"chat_template.jinja": TEMPLATE.encode()})
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(f"{code}    state = generator.scheduler.submit(request)\n    generator.scheduler.step()\n", names)  # noqa: S102
    assert "tool weather\nuser: Weather in Ulm?" in names["state"].prompt.text and names["calling"].grammar
    assert names["parser"].feed("Sunny") == [ContentPiece("Sunny")]
