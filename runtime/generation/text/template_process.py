"""Chat templates in a separate process: a template is a program written by the author of the checkpoint.

jinja2's sandbox protects the machine, but does not prevent `2 ** 999999999` or `'a' * 10**9`. So templates run here,
where the kernel limits time and memory. The process imports little, so that it starts fast, and stays for the later
turns of a conversation. It reads JSON lines and answers each with one:

    {"template": "..."}   {}             or {"refused": reason} or {"limit": "memory"}
    {"variables": {...}}  {"text": ...}  or {"refused": reason} or {"limit": "memory" | "characters"}

With the variables there may be "arguments": the JSON texts of the arguments of all tool calls, in order.

Every request has a limit in "seconds" of processor time; the kernel kills a process that exceeds it.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from intaglio.errors import UsageError, one_line
from intaglio.processes.child_process import lower_limit

if TYPE_CHECKING:
    from jinja2 import Template

MAX_BYTES = 1 << 30  # of address space
MAX_CHARACTERS = 16 << 20  # of a prompt
SHOWN = 200  # characters of a template's own error message
FUNCTIONS = ("raise_exception", "strftime_now")  # of every template
RESERVED = ("add_generation_prompt", "documents", *FUNCTIONS)  # variables that this process sets


def _compile(source: str) -> Template:
    """Compile the template with the features of `transformers`: loop controls, `tojson`, two functions."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Ignores the tags that mark the assistant's messages, which only training uses."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[Node]:
            """The statements between the tags."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= dict(zip(FUNCTIONS, (_refuse, _now), strict=True))
    return environment.from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise UsageError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


class Arguments(dict[str, Any]):
    """The arguments of a tool call: an object, and its JSON text where a template prints it or joins it to text.

    Most templates write `arguments | tojson`, others `'...' + arguments`.
    """

    def __init__(self, text: str):
        super().__init__(json.loads(text))
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: str) -> str:
        return self.text + other

    def __radd__(self, other: str) -> str:
        return other + self.text


def _render(template: Template, request: dict[str, Any]) -> dict[str, str]:
    texts: list[str] = request.get("arguments", [])
    try:
        return _output(template, request["variables"], [Arguments(text) for text in texts])
    except (UsageError, MemoryError):  # the template's own refusal, or a limit
        raise
    except Exception:
        if not texts:
            raise
        return _output(template, request["variables"], texts)  # a method of text is called


def _output(template: Template, variables: dict[str, Any], arguments: Sequence[Arguments | str]) -> dict[str, str]:
    """Run the template on messages whose tool calls have these `arguments`."""
    calls = [call for message in variables.get("messages", ()) for call in message.get("tool_calls", ())]
    for call, given in zip(calls, arguments, strict=True):
        call["function"]["arguments"] = given
    pieces, length = [], 0
    for piece in template.generate({"documents": None, "add_generation_prompt": True, **variables}):
        pieces.append(piece)
        length += len(piece)
        if length > MAX_CHARACTERS:
            return {"limit": "characters"}
    return {"text": "".join(pieces)}


def _answer(template: Template | None, request: dict[str, Any]) -> tuple[Template | None, dict[str, str]]:
    """Return the compiled template, and the answer to the request."""
    try:
        if template is None:
            return _compile(request["template"]), {}
        return template, _render(template, request)
    except MemoryError:
        return template, {"limit": "memory"}
    except Exception as error:  # a template can raise anything
        return template, {"refused": one_line(error, SHOWN)}


def _grant(seconds: int) -> None:
    """Allow this process `seconds` more of processor time; then the kernel kills it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime) + seconds
    lower_limit(resource.RLIMIT_CPU, soft)


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    lower_limit(resource.RLIMIT_CORE, 0)
    lower_limit(resource.RLIMIT_AS, MAX_BYTES)
    template = None
    for line in sys.stdin:
        request = json.loads(line)
        _grant(request["seconds"])
        template, answer = _answer(template, request)
        try:
            written = json.dumps(answer)
        except MemoryError:
            written = json.dumps({"limit": "memory"})
        sys.stdout.write(written + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
