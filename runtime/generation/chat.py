"""From a conversation to a prompt, by the chat template that travels with the tokenizer.

A template is a program by whoever made the checkpoint. It runs in jinja2's sandbox, on plain text alone, and in a
process with limits (`template_process`): it can neither change what it sees nor reach the machine, nor hold it up.
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
PROCESSOR = "chat_template.json"  # where models with a processor keep it
MAX_SECONDS = 5  # of processor time for one prompt, or for compiling
MAX_WAIT = 60  # seconds for an answer: the machine may have other work


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
    """The chat template of a bundle, compiled in a process of its own; `render` makes prompts with it."""

    def __init__(self, source: str, tokens: Mapping[str, str], where: str):
        """`source` in jinja2's language, the special tokens it may name ("bos_token" -> "<s>"), and its place.

        Raises `BundleError` for a template that does not compile.
        """
        self._source = source
        self._tokens = dict(tokens)
        self._where = where
        self._process = self._start()

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
            source = _text(where)
        if not isinstance(source, str):
            raise BundleError(
                f"bundle {bundle.path}: has no chat template, as its model was not trained on conversations. "
                "Give a plain prompt instead."
            )
        return cls(source, special_tokens({**read_object(bundle, SPECIAL_TOKENS), **configuration}), str(where))

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that asks for the next message, special tokens written out. Raises `UsageError`."""
        if not self._process.runs():
            self._process = self._start()
        plain = [{"role": message.role, "content": message.content} for message in messages]
        answer = self._process.ask({"tokens": self._tokens, "messages": plain})
        if "text" in answer:
            return answer["text"]
        if "refused" in answer:
            said = f"{answer['refused']!r:.{SHOWN}}"
            raise UsageError(f"{self._where}: the chat template refuses the messages: {said}. Change them.")
        raise UsageError(f"{self._where}: the chat template {_beyond(answer)}. Fix it.")

    def _start(self) -> _Process:
        process = _Process()
        answer = process.ask({"template": self._source})
        if answer:
            reason = answer.get("refused") or f"it {_beyond(answer)}"
            raise BundleError(f"{self._where}: the chat template does not compile ({reason}). Fix it.")
        return process


class _Process:
    """A running `template_process`, which ends with this object."""

    def __init__(self) -> None:
        command = child_process.command("intaglio.template_process")
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
        )
        self.end = weakref.finalize(self, _end, self._child)

    def runs(self) -> bool:
        """Whether it can still be asked."""
        return self.end.alive and self._child.poll() is None

    def ask(self, request: Mapping[str, object]) -> dict[str, str]:
        """The answer to a request; {"limit": ...} where there is none, and the process has ended then."""
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
    """What a template does that goes beyond a limit."""
    return {
        "characters": f"writes more than {MAX_CHARACTERS} characters",
        "memory": f"takes more than {MAX_BYTES >> 20} MiB of memory",
        "time": f"takes more than {MAX_SECONDS} seconds",
    }.get(answer["limit"], "ends the process that it runs in")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: not UTF-8 text (byte {error.start}). Re-export the bundle.") from error
