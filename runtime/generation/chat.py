"""Render a conversation to a prompt with the chat template of the tokenizer.

A template is a program written by the authors of the checkpoint. It runs in jinja2's sandbox, on plain text only, and
in a process with limits (`template_process`): it can neither modify its input, nor access the machine, nor block it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from intaglio import child_process
from intaglio.bundle import Bundle
from intaglio.errors import BundleError, UsageError, one_line
from intaglio.files import read_text
from intaglio.runtime.tokenizer_config import CONFIGURATION, SPECIAL_TOKENS, read_object, special_tokens
from intaglio.template_process import MAX_BYTES, MAX_CHARACTERS, SHOWN

TEMPLATE = "chat_template.jinja"
PROCESSOR = "chat_template.json"  # the file of models with a processor
MAX_SECONDS = 5  # CPU time for one prompt, or for compiling
MAX_WAIT = 60  # seconds to wait for an answer: the machine may be busy


class Message(msgspec.Struct):
    """One message of a conversation."""

    role: str  # "system", "user", "assistant", or another role that the template knows
    content: str


def read_messages(path: Path, option: str) -> list[Message]:
    """Read the messages of a JSON file, [{"role": ..., "content": ...}, ...]; `option` is the option that named it.

    Raises `UsageError`.
    """
    try:
        messages = msgspec.json.decode(read_text(path, option), type=list[Message])
    except (msgspec.DecodeError, RecursionError) as error:
        expected = 'a JSON list of {"role": "user", "content": "..."}'
        raise UsageError(f"{option} {path}: expected {expected} ({one_line(error)}). Fix the file.") from error
    if not messages:
        raise UsageError(f"{option} {path}: contains no messages, expected at least one. Add a message.")
    return messages


class ChatTemplate:
    """The chat template of a bundle, compiled in a separate process; `render` makes prompts with it."""

    def __init__(self, source: str, tokens: Mapping[str, str], where: str):
        """Compile `source`, a jinja2 template. `tokens`: special tokens ("bos_token" -> "<s>"); `where`: for errors.

        Raises `BundleError` for a template that does not compile.
        """
        self._source = source
        self._tokens = dict(tokens)
        self._where = where
        self._process = self._start()

    @classmethod
    def open(cls, bundle: Bundle) -> ChatTemplate:
        """Open the template of `bundle`. Raises `BundleError` when it has none, or one that does not compile."""
        configuration = {**read_object(bundle, CONFIGURATION), **read_object(bundle, PROCESSOR)}
        source: object = configuration.get("chat_template")
        if isinstance(source, list):  # several templates by name
            named = {str(each.get("name")): each.get("template") for each in source if isinstance(each, dict)}
            source = named.get("default")
        where = bundle.path / CONFIGURATION
        if TEMPLATE in bundle.manifest.files:
            where = bundle.path / TEMPLATE
            source = _text(where)
        if not isinstance(source, str):
            raise BundleError(
                f"bundle {bundle.path}: has no chat template; its model was not trained on conversations. "
                "Use a plain prompt instead."
            )
        return cls(source, special_tokens({**read_object(bundle, SPECIAL_TOKENS), **configuration}), str(where))

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt for the next message, with special tokens as text. Raises `UsageError`."""
        if not self._process.runs():
            self._process = self._start()
        plain = [{"role": message.role, "content": message.content} for message in messages]
        answer = self._process.ask({"tokens": self._tokens, "messages": plain})
        if "text" in answer:
            return answer["text"]
        if "refused" in answer:
            said = f"{answer['refused']!r:.{SHOWN}}"
            raise UsageError(f"{self._where}: the chat template rejects the messages: {said}. Change them.")
        raise UsageError(f"{self._where}: the chat template {_beyond(answer)}. Fix it.")

    def _start(self) -> _Process:
        process = _Process()
        answer = process.ask({"template": self._source})
        if answer:
            reason = answer.get("refused") or f"it {_beyond(answer)}"
            raise BundleError(f"{self._where}: the chat template does not compile ({reason}). Fix it.")
        return process


class _Process:
    """A running `template_process`; it ends when this object is deleted."""

    def __init__(self) -> None:
        command = child_process.command("intaglio.template_process")
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
        )
        self.end = weakref.finalize(self, _end, self._child)

    def runs(self) -> bool:
        """Whether the process can take requests."""
        return self.end.alive and self._child.poll() is None

    def ask(self, request: Mapping[str, object]) -> dict[str, str]:
        """Send a request and return the answer; {"limit": ...} if the process ended instead of answering."""
        assert self._child.stdin is not None and self._child.stdout is not None
        timer = threading.Timer(MAX_WAIT, self._child.kill)
        timer.start()
        try:
            with suppress(BrokenPipeError):
                self._child.stdin.write(json.dumps({**request, "seconds": MAX_SECONDS}) + "\n")
                self._child.stdin.flush()
            line = self._child.stdout.readline()
        finally:
            timer.cancel()
        if line.endswith("\n"):
            answer: dict[str, str] = json.loads(line)
            return answer
        self._child.wait()
        ended = self._child.returncode
        self.end()
        return {"limit": "time" if ended in (-signal.SIGXCPU, -signal.SIGKILL) else "process"}


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    with suppress(BrokenPipeError):
        child.communicate()


def _beyond(answer: Mapping[str, str]) -> str:
    """Describe which limit the template exceeded."""
    return {
        "characters": f"outputs more than {MAX_CHARACTERS} characters",
        "memory": f"uses more than {MAX_BYTES >> 20} MiB of memory",
        "time": f"takes more than {MAX_SECONDS} seconds",
    }.get(answer["limit"], "crashes the process it runs in")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: not UTF-8 text (byte {error.start}). Re-export the bundle.") from error
