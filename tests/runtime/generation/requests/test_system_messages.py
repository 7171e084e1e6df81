"""System messages and arguments of calls are kept by every kind of template."""

from __future__ import annotations

from typing import Any

import pytest

from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.chat import ChatTemplate
from intaglio.runtime.generation.requests.message import FunctionCall, Message, ToolCall

USERS = "{% if m.role == 'user' %}<u>{{ m.content }}{% elif m.role == 'assistant' %}<a>{{ m.content }}{% endif %}"
# As ChatML, Qwen2.5 and Llama 3 write them: each message is a turn.
ALL = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}"
# As Zephyr and Phi: the first message may be one, others are left out.
FIRST = (
    "{% if messages[0].role == 'system' %}<s>{{ messages[0].content }}{% endif %}"
    f"{{% for m in messages %}}{USERS}{{% endfor %}}"
)
# As DeepSeek R1: the last one is printed first.
LAST = (
    "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content %}"
    f"{{% endif %}}{{% endfor %}}<s>{{{{ ns.s }}}}{{% for m in messages %}}{USERS}{{% endfor %}}"
)
# As Mistral and Llama 2: one, then users and assistants alternate.
STRICT = (
    "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.first and s %}<s>{{ s | tojson }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
# As Gemma 2.
REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
NONE = f"{{% for m in messages %}}{USERS}{{% endfor %}}"
DEVELOPER = (
    "{% for m in messages %}{% if m.role == 'developer' %}<dev>{{ m.content }}{% else %}<{{ m.role }}>{{ m.content }}"
    "{% endif %}{% endfor %}"
)
SYSTEM, MORE, USER = Message("system", "Be brief."), Message("system", "Be kind."), Message("user", "Hi")
ONE, TWO, LATER = [SYSTEM, USER], [SYSTEM, MORE, USER], [SYSTEM, USER, MORE]
AFTER = [USER, SYSTEM]
MERGED = "Be brief.\n\nBe kind."


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {}, "the template")


@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        (ALL, ONE, "<system>Be brief.<user>Hi"),
        (ALL, TWO, "<system>Be brief.<system>Be kind.<user>Hi"),
        (ALL, LATER, "<system>Be brief.<user>Hi<system>Be kind."),
        (FIRST, ONE, "<s>Be brief.<u>Hi"),
        (FIRST, TWO, f"<s>{MERGED}<u>Hi"),
        (FIRST, LATER, f"<s>{MERGED}<u>Hi"),
        (FIRST, AFTER, "<s>Be brief.<u>Hi"),
        (LAST, ONE, "<s>Be brief.<u>Hi"),
        (LAST, TWO, f"<s>{MERGED}<u>Hi"),
        (STRICT, ONE, '<s>"Be brief."<user>Hi'),
        (STRICT, TWO, '<s>"Be brief.\\n\\nBe kind."<user>Hi'),
        (STRICT, [USER, Message("assistant", "Yes?"), MORE, USER], '<s>"Be kind."<user>Hi<assistant>Yes?<user>Hi'),
        (REFUSES, [USER], "<user>Hi"),
        (NONE, [USER], "<u>Hi"),
    ],
)
def test_no_system_message_is_lost(source: str, messages: list[Message], expected: str) -> None:
    opened = template(source)
    assert opened.render(messages) == expected
    assert opened.render(messages) == expected, "what is known of a template changes nothing"


@pytest.mark.parametrize("messages", [ONE, TWO, LATER, AFTER])
@pytest.mark.parametrize(
    ("source", "expected_error"),
    [(REFUSES, "rejects system messages: 'System role not"), (NONE, "leaves out system messages")],
)
def test_error_names_system_messages_if_the_template_rejects_them(
    source: str, expected_error: str, messages: list[Message]
) -> None:
    with pytest.raises(UsageError, match=expected_error) as refused:
        template(source).render(messages)
    assert "Put their text into the first message of the user." in str(refused.value)
    assert "\n" not in str(refused.value)


def test_template_may_keep_part_of_a_system_message() -> None:
    source = ALL.replace("m.content | trim", "m.content.split('. ') | first")
    assert template(source).render([Message("system", "Plan. Use few calls."), USER]) == "<system>Plan<user>Hi"


def test_other_template_errors_are_reported_unchanged() -> None:
    with pytest.raises(UsageError, match="rejects the messages: 'roles must alternate'"):
        template(STRICT).render([SYSTEM, MORE, USER, USER])


def test_developer_message_becomes_a_system_message() -> None:
    messages = [Message("developer", "Be brief."), USER]
    assert template(ALL).render(messages) == "<system>Be brief.<user>Hi"
    assert template(STRICT).render([SYSTEM, Message("developer", "Be kind."), USER]) == (
        '<s>"Be brief.\\n\\nBe kind."<user>Hi'
    )
    assert template(DEVELOPER).render(messages) == "<dev>Be brief.<user>Hi"
    with pytest.raises(UsageError, match="leaves out system messages"):
        template(NONE).render(messages)


CALL = (
    "{% for m in messages %}{% for call in m.tool_calls or [] %}{% set f = call.function %}%s{% endfor %}{% endfor %}"
)
TEXT = '{"city":"Ülm",  "n": 1.0}'  # as a model wrote it
PLAIN = '{"city": "Ülm", "n": 1.0}'  # as `tojson` writes it


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("{{ f.arguments | tojson }}", PLAIN),
        ("{{ f | tojson }}", f'{{"name": "weather", "arguments": {PLAIN}}}'),
        ("{{ {'a': f.arguments} | tojson }}", f'{{"a": {PLAIN}}}'),
        ("{% if f.arguments is mapping %}{{ f.arguments | tojson }}{% endif %}", PLAIN),
        ("{{ f.arguments if f.arguments is string else f.arguments | tojson }}", PLAIN),
        ("{% for k, v in f.arguments.items() %}{{ k }}={{ v }};{% endfor %}", "city=Ülm;n=1.0;"),
        ("{% for k, v in f.arguments | items %}{{ k }}={{ v }};{% endfor %}", "city=Ülm;n=1.0;"),
        ("{% for k in f.arguments %}{{ k }}={{ f.arguments[k] }};{% endfor %}", "city=Ülm;n=1.0;"),
        ("{{ '```json\n' + f.arguments + '\n```' }}", f"```json\n{TEXT}\n```"),
        ("{{ f.name ~ f.arguments ~ '.' }}", f"weather{TEXT}."),
        ("{{ f.arguments }}", TEXT),
        ("{{ f.arguments | string }}", TEXT),
        ("{{ f.arguments | trim }}", TEXT),
        ("{{ f.arguments.strip() }}", TEXT),
        ("{{ '%s' | format(f.arguments) }}", TEXT),
    ],
)
def test_arguments_are_object_or_text_by_template(expression: str, expected: str) -> None:
    opened = template(CALL.replace("%s", expression))
    for arguments in (TEXT, {"city": "Ülm", "n": 1.0}):
        call = ToolCall(FunctionCall("weather", arguments), "1", "function")
        known = expected.replace(TEXT, PLAIN) if isinstance(arguments, dict) else expected
        assert opened.render([USER, Message("assistant", None, tool_calls=[call])]) == known


def test_each_call_keeps_its_own_arguments() -> None:
    opened = template(CALL.replace("%s", "{{ '' + f.arguments }}"))
    calls: list[Any] = [ToolCall(FunctionCall("f", text)) for text in ('{"a": 1}', "", '{"b": 2}')]
    messages = [Message("assistant", None, tool_calls=calls[:2]), USER, Message("assistant", "x", tool_calls=calls[2:])]
    assert opened.render(messages) == '{"a": 1}{}{"b": 2}'


def test_template_rejection_is_not_retried_with_other_arguments() -> None:
    opened = template(CALL.replace("%s", "{{ f.arguments if f.arguments is string else raise_exception('objects') }}"))
    with pytest.raises(UsageError, match="rejects the messages: 'objects'"):
        opened.render([Message("assistant", None, tool_calls=[ToolCall(FunctionCall("f", "{}"))])])
