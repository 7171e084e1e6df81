"""Chat templates: rendered as by `transformers`, and harmless with untrusted content."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from covering import few
from onnx import TensorProto, helper

from intaglio.bundle.bundle import Bundle, Manifest, Source, create
from intaglio.errors import BundleError, UsageError
from intaglio.runtime.generation.requests import chat
from intaglio.runtime.generation.requests.chat import ChatTemplate, read_messages
from intaglio.runtime.generation.requests.message import Message

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message.content | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
CAREFUL = """
{% if messages[0]['role'] == 'system' %}
{% set system = messages[0]['content'] %}
{% set rest = messages[1:] %}
{% else %}
{% set rest = messages %}
{% endif %}
{{ bos_token }}
{% for message in rest %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate') }}
    {% endif %}
    {% if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
    {% else %}[INST] {{ (system ~ ' / ') if system is defined and loop.first }}{{ message | tojson }} [/INST]{% endif %}
    {% if loop.index > 8 %}{% break %}{% endif %}
{% endfor %}
"""
TALK = [
    Message("system", "Be <brief>."),
    Message("user", " Hé? "),
    Message("assistant", "Yes."),
    Message("user", "Why"),
]
Make = Callable[..., Bundle]


@pytest.fixture
def bundle_with(tmp_path: Path) -> Make:
    """A bundle that holds the given files, and a graph that does nothing."""

    def make(**files: object) -> Bundle:
        info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
        node = helper.make_node("Identity", ["x"], ["y"])
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
        with create(tmp_path / "bundle") as draft:
            onnx.save(helper.make_model(helper.make_graph([node], "g", [info], [out])), draft.model_path)
            draft.manifest = Manifest(1, "tests", Source("onnx", "by hand"), "", "", "", "float32", [], [])
            draft.manifest.inputs, draft.manifest.outputs = [_spec("x")], [_spec("y")]
            for name, content in files.items():
                text = content if isinstance(content, str) else json.dumps(content)
                (draft.path / name.replace("__", ".")).write_text(text)
        return Bundle.open(tmp_path / "bundle")

    return make


def _spec(name: str) -> Any:
    from intaglio.bundle.bundle import TensorSpec

    return TensorSpec(name, np.dtype("float32").name, (1,))


@pytest.mark.parametrize("template", [CHATML, CAREFUL])
def test_prompts_equal_transformers(template: str, bundle_with: Make) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    bundle = bundle_with(
        tokenizer_config__json={"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    )
    conversation = [{"role": message.role, "content": message.content} for message in TALK]
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    rendered = render_jinja_template([conversation], chat_template=template, add_generation_prompt=True, **tokens)
    assert ChatTemplate.open(bundle).render(TALK) == rendered[0][0]


def test_template_file_precedes_configuration(bundle_with: Make) -> None:
    bundle = bundle_with(chat_template__jinja="file", tokenizer_config__json={"chat_template": "configuration"})
    assert ChatTemplate.open(bundle).render(TALK) == "file"


def test_default_template_is_used(bundle_with: Make) -> None:
    templates = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain {{ eos_token }}"}]
    bundle = bundle_with(
        tokenizer_config__json={"chat_template": templates}, special_tokens_map__json={"eos_token": "</s>"}
    )
    assert ChatTemplate.open(bundle).render(TALK) == "plain </s>"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='user') }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include '/etc/passwd' %}",
        "{{ undefined_name.attribute }}",
        "{{ 1 / 0 }}",
        "{% for i in range(1000000) %}x{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    ],
)
def test_hostile_template_raises_one_line_error(attack: str, bundle_with: Make) -> None:
    template = ChatTemplate.open(bundle_with(chat_template__jinja=attack))
    with pytest.raises(UsageError) as refused:
        assert template.render(TALK) == ""
    assert "\n" not in str(refused.value)


EXHAUSTING = [
    "{{ 'a' * 10**9 }}",
    "{{ messages[0].content * 10**8 }}",
    "{{ 2 ** 999999999 }}",
    "{{ (messages | length) ** 999999999 }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ lipsum(n=10**9) }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{{ " + "(" * 100_000,
    "{{ " + "-" * 200_000 + "1 }}",
]


@pytest.mark.parametrize("attack", few(EXHAUSTING, EXHAUSTING[4::2]))
def test_template_exhausting_time_or_memory_raises_one_line_error(
    attack: str, bundle_with: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 1)
    bundle = bundle_with(chat_template__jinja=attack)
    start = time.monotonic()
    with pytest.raises((UsageError, BundleError)) as refused:
        ChatTemplate.open(bundle).render(TALK)
    assert time.monotonic() - start < 20
    assert "\n" not in str(refused.value)


def test_template_recovers_after_a_timeout(bundle_with: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 1)
    slow = "{% if messages|length > 4 %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    template = ChatTemplate.open(bundle_with(chat_template__jinja=slow + "{% endif %}fine"))
    assert template.render(TALK) == "fine"
    with pytest.raises(UsageError, match="the chat template takes more than 1 seconds"):
        template.render([*TALK, *TALK])
    assert template.render(TALK) == "fine"


def test_conversation_uses_one_template_process(bundle_with: Make) -> None:
    template = ChatTemplate.open(bundle_with(chat_template__jinja=CHATML))
    child = template._process.process
    for turns in range(1, 20):
        assert template.render(TALK * turns).count("<|im_start|>user") == 2 * turns
        assert template._process.process is child
    del template
    assert child.returncode is not None


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
def test_invalid_utf8_is_rejected(name: str, bundle_with: Make) -> None:
    bundle = bundle_with(chat_template__jinja="x", tokenizer_config__json={"eos_token": "x"})
    (bundle.path / name).write_bytes(b'{"chat_template": "\xff"}')
    with pytest.raises(BundleError, match=f"{name}: not UTF-8 text"):
        ChatTemplate.open(bundle)


def test_template_error_is_reported_without_control_characters(bundle_with: Make) -> None:
    template = ChatTemplate.open(bundle_with(chat_template__jinja="{{ raise_exception('no \\x1b[31m\\n chat') }}"))
    with pytest.raises(UsageError, match=r"rejects the messages: 'no \\x1b\[31m chat'"):
        template.render(TALK)


def test_uncompilable_template_is_rejected(bundle_with: Make) -> None:
    with pytest.raises(BundleError, match="does not compile"):
        ChatTemplate.open(bundle_with(chat_template__jinja="{% for %}"))


def test_bundle_without_template_raises_bundle_error(bundle_with: Make) -> None:
    with pytest.raises(BundleError, match="has no chat template"):
        ChatTemplate.open(bundle_with(tokenizer_config__json={}))


@pytest.mark.parametrize(
    ("content", "expected_error"),
    [
        ("[]", "contains no messages"),
        ("{}", "expected a JSON list"),
        ('[{"role": "user"}]', "message 1: a message of role 'user' has no content"),
        ("[" * 100_000, "expected a JSON list"),
        ("not json", "expected a JSON list"),
    ],
)
def test_invalid_messages_are_rejected(content: str, expected_error: str, tmp_path: Path) -> None:
    (tmp_path / "messages.json").write_text(content)
    with pytest.raises(UsageError, match=expected_error):
        read_messages(tmp_path / "messages.json", "--messages")


def test_messages_are_parsed(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('[{"role": "user", "content": "é", "name": "x"}]')
    assert read_messages(tmp_path / "m.json", "--messages") == [Message("user", "é", name="x")]
