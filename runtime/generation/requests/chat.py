"""Render a conversation to a prompt with the chat template of the tokenizer.

A template is a program written by the authors of the checkpoint. It runs in jinja2's sandbox, on plain text only, and
in a process with limits (`template_process`): it can neither modify its input, nor access the machine, nor block it.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, UsageError, one_line
from intaglio.files.input_files import read_text
from intaglio.processes.children import Child, ChildEndedError
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.generation.requests.system_messages import RejectedError, is_plain, rendered
from intaglio.runtime.generation.text.template_process import MAX_BYTES, MAX_CHARACTERS, RESERVED, SHOWN
from intaglio.runtime.text.tokenizer_config import (
    CONFIGURATION,
    SPECIAL_TOKENS,
    read_object,
    read_small,
    special_tokens,
)

TEMPLATE = "chat_template.jinja"
PROCESSOR = "chat_template.json"  # the file of models with a processor
MAX_SECONDS = 5  # CPU time for one prompt, or for compiling
MAX_WAIT = 60  # seconds to wait for an answer: the machine may be busy


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation to answer, with the tools that the model may call, and options of the chat template."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()  # {"type": "function", "function": {"name", "description", "parameters"}}
    options: Mapping[str, Any] = field(default_factory=dict)  # JSON values, such as {"enable_thinking": False}


def read_messages(path: Path, option: str) -> list[Message]:
    """Read the messages of a JSON file, [{"role": ..., "content": ...}, ...]; `option` is the option that named it.

    Raises `UsageError`.
    """
    return parse_messages(read_text(path, option), f"{option} {path}")


def parse_messages(text: str, where: str) -> list[Message]:
    """The messages of a JSON list, at least one; `where` names it in the `UsageError`."""
    try:
        messages = msgspec.json.decode(text, type=list[Message])
    except (msgspec.DecodeError, RecursionError) as error:
        expected = 'a JSON list of {"role": "user", "content": "..."}'
        raise UsageError(f"{where}: expected {expected} ({one_line(error)}). Fix it.") from error
    if not messages:
        raise UsageError(f"{where}: contains no messages, expected at least one. Add a message.")
    for number, message in enumerate(messages, 1):
        try:
            message.as_variable()
        except UsageError as error:
            raise UsageError(f"{where}: message {number}: {error}") from error
    return messages


class ChatTemplate:
    """The chat template of a bundle, compiled in a separate process; `render` makes prompts with it."""

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str],
        where: str,
        tool_source: str | None = None,
        in_parts: bool = False,
    ):
        """Compile `source`, a jinja2 template. `tokens`: special tokens ("bos_token" -> "<s>"); `where`: for errors.

        `tool_source`: the template for prompts with tools, where that is another. `in_parts`: a message's content is a
        list of texts and images. Raises `BundleError` for a template that does not compile.
        """
        self.source = source
        self.tool_source = tool_source or source
        self._tokens = dict(tokens)
        self._where, self._in_parts = where, in_parts
        self._reads_system: set[bool] = set()  # with tools, without: where a single system message is output
        self._process = self._start()

    @classmethod
    def open(cls, bundle: Bundle) -> ChatTemplate:
        """Open the template of `bundle`. Raises `BundleError` when it has none, or one that does not compile."""
        configuration = {**read_object(bundle, CONFIGURATION), **read_object(bundle, PROCESSOR)}
        source: object = configuration.get("chat_template")
        tool_source: object = None
        if isinstance(source, list):  # several templates by name
            named = {str(each.get("name")): each.get("template") for each in source if isinstance(each, dict)}
            source, tool_source = named.get("default"), named.get("tool_use")
        where = bundle.path / CONFIGURATION
        if TEMPLATE in bundle.manifest.files:
            where = bundle.path / TEMPLATE
            source, tool_source = read_small(where), None
        if not isinstance(source, str):
            raise BundleError(
                f"bundle {bundle.path}: has no chat template; its model was not trained on conversations. "
                "Use a plain prompt, or a bundle that has one."
            )
        tokens = special_tokens({**read_object(bundle, SPECIAL_TOKENS), **configuration})
        in_parts = bundle.manifest.image_encoder is not None
        return cls(source, tokens, str(where), tool_source if isinstance(tool_source, str) else None, in_parts)

    @property
    def knows_tools(self) -> bool:
        """Whether prompts can have tools."""
        return re.search(r"\btools\b", self.tool_source) is not None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt for the next message, with special tokens as text.

        Of several system messages none is lost (`system_messages.rendered`); those of a developer are system messages,
        unless the template knows that role. `tools` and `options`: as in `ChatPrompt`. Raises `UsageError` for messages
        or tools that the template rejects or does not know, and for options that would replace its other variables.
        """
        if tools and not self.knows_tools:
            raise UsageError(
                f"{self._where}: the chat template of this bundle does not support tools. Leave the tools out."
            )
        if tools and self.tool_source != self.source:
            return self._for_tools.render(messages, tools, options)
        reserved = {"messages", "tools", *self._tokens, *RESERVED}
        if taken := reserved.intersection(options or ()):
            raise UsageError(f"chat template option {min(taken)!r}: the name is reserved. Leave the option out.")

        def render(conversation: Sequence[Message]) -> str:
            return self._output(conversation, {**(options or {}), **self._tokens, "tools": list(tools or ()) or None})

        if not re.search(r"""["']developer["']""", self.source):
            messages = [
                msgspec.structs.replace(each, role="system") if each.role == "developer" else each for each in messages
            ]
        text = rendered(render, messages, self._where, bool(tools) in self._reads_system)
        if is_plain(messages):
            self._reads_system.add(bool(tools))
        return text

    def _output(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        """Run the template on messages that it may reject."""
        calls = [call.function for message in messages for call in message.tool_calls or ()]
        shown = [message.as_variable() for message in messages]
        for each in shown if self._in_parts else ():
            if isinstance(each["content"], str):
                each["content"] = [{"type": "text", "text": each["content"]}]
        return self.fill({**variables, "messages": shown}, [call.as_text() for call in calls])

    def fill(self, variables: Mapping[str, Any], arguments: Sequence[str] = ()) -> str:
        """The template's text for `variables` of JSON values, which are given to it unchanged.

        `arguments`: the JSON texts of the arguments of the tool calls in "messages". "add_generation_prompt" is true
        unless it is given. Raises `UsageError` if the template rejects them.
        """
        if not self._process.runs():
            self._process = self._start()
        answer = _asked(self._process, {"variables": variables, "arguments": arguments})
        if "text" in answer:
            return answer["text"]
        if "refused" in answer:
            raise RejectedError(self._where, f"{answer['refused']!r:.{SHOWN}}")
        raise UsageError(f"{self._where}: the chat template {_beyond(answer)}. Fix it.")

    @cached_property
    def _for_tools(self) -> ChatTemplate:
        return ChatTemplate(self.tool_source, self._tokens, self._where, in_parts=self._in_parts)

    def _start(self) -> Child:
        process = Child("intaglio.runtime.generation.text.template_process")
        answer = _asked(process, {"template": self.source})
        if answer:
            reason = answer.get("refused") or f"it {_beyond(answer)}"
            raise BundleError(f"{self._where}: the chat template does not compile ({reason}). Fix it.")
        return process


def _asked(process: Child, request: Mapping[str, object]) -> dict[str, str]:
    """Return the answer to a request; {"limit": ...} if the process ended instead of answering."""
    try:
        answer: dict[str, str] = json.loads(process.ask(json.dumps({**request, "seconds": MAX_SECONDS}), MAX_WAIT))
    except ChildEndedError as ended:
        return {"limit": "time" if ended.code in (-signal.SIGXCPU, -signal.SIGKILL) else "process"}
    return answer


def _beyond(answer: Mapping[str, str]) -> str:
    """Describe which limit the template exceeded."""
    return {
        "characters": f"outputs more than {MAX_CHARACTERS} characters",
        "memory": f"uses more than {MAX_BYTES >> 20} MiB of memory",
        "time": f"takes more than {MAX_SECONDS} seconds",
    }.get(answer["limit"], "crashes the process it runs in")
