"""From a conversation to a prompt, by the chat template that travels with the tokenizer.

A template is a program by whoever made the checkpoint. It runs in jinja2's sandbox, on plain text alone: it can neither
change what it sees nor reach the machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from intaglio.bundle import Bundle
from intaglio.errors import BundleError, UsageError, one_line
from intaglio.files import read_text
from intaglio.runtime.tokenizer_config import CONFIGURATION, SPECIAL_TOKENS, read_object, special_tokens

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = "chat_template.jinja"
PROCESSOR = "chat_template.json"  # where models with a processor keep it
MAX_CHARACTERS = 16 << 20  # of a prompt; a template that writes more is broken or hostile
SHOWN = 200  # characters of a template's own error message


class Message(msgspec.Struct):
    """One message of a conversation."""

    role: str  # "system", "user" or "assistant"; what else there is, the template knows
    content: str


def read_messages(path: Path, option: str) -> list[Message]:
    """The messages of a JSON file, [{"role": ..., "content": ...}, ...]; `option` is what the user gave it by.

    Raises `UsageError`.
    """
    try:
        messages = msgspec.json.decode(read_text(path, option), type=list[Message])
    except (msgspec.DecodeError, RecursionError) as error:
        expected = 'a JSON list of {"role": "user", "content": "..."}'
        raise UsageError(f"{option} {path}: expected {expected} ({one_line(error)}). Mend it.") from error
    if not messages:
        raise UsageError(f"{option} {path}: holds no message. Give at least one.")
    return messages


class ChatTemplate:
    """The chat template of a bundle, compiled; `render` makes prompts with it."""

    def __init__(self, source: str, tokens: Mapping[str, str], where: str):
        """`source` in jinja2's language, the special tokens it may name ("bos_token" -> "<s>"), and its place."""
        self._tokens = dict(tokens)
        self._where = where
        self._template = _compile(source, where)

    @classmethod
    def open(cls, bundle: Bundle) -> ChatTemplate:
        """The template of `bundle`. Raises `BundleError` when it has none, or none that compiles."""
        configuration = {**read_object(bundle, CONFIGURATION), **read_object(bundle, PROCESSOR)}
        source: object = configuration.get("chat_template")
        if isinstance(source, list):  # several, by name
            named = {str(each.get("name")): each.get("template") for each in source if isinstance(each, dict)}
            source = named.get("default")
        where = bundle.path / CONFIGURATION
        if TEMPLATE in bundle.manifest.files:
            where = bundle.path / TEMPLATE
            source = where.read_text(encoding="utf-8", errors="replace")
        if not isinstance(source, str):
            raise BundleError(
                f"bundle {bundle.path}: has no chat template, as its model was not trained on conversations. "
                "Give a plain prompt instead."
            )
        return cls(source, special_tokens({**read_object(bundle, SPECIAL_TOKENS), **configuration}), str(where))

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that asks for the next message, special tokens written out. Raises `UsageError`."""
        plain = [{"role": message.role, "content": message.content} for message in messages]
        pieces, length = [], 0
        try:
            for piece in self._template.generate(**self._tokens, messages=plain, add_generation_prompt=True):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_CHARACTERS:
                    break
        except Exception as error:  # whatever a template's program can come to
            said = f"{one_line(error)!r:.{SHOWN}}"
            raise UsageError(f"{self._where}: the chat template refuses the messages: {said}. Change them.") from error
        if length > MAX_CHARACTERS:
            raise UsageError(f"{self._where}: the chat template writes more than {MAX_CHARACTERS} characters. Mend it.")
        return "".join(pieces)


def _compile(source: str, where: str) -> Template:
    """The template with what `transformers` offers to templates: loop controls, `tojson`, two functions."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Reads over the tags that mark the assistant's words, which only training has a use for."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[Node]:
            """The statements between the tags."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    try:
        return environment.from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        reason = one_line(error, SHOWN)
        raise BundleError(f"{where}: the chat template does not compile ({reason}). Mend it.") from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise UsageError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
