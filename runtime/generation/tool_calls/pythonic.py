"""Llama 3.2 and Llama 4 with a pythonic template: a list of Python calls with keyword arguments that is the whole text.

[weather(city="Ulm", days=3), now()]
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator

import msgspec

from intaglio.runtime.generation.tool_calls.call_text import CallText, Characters, Found
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat
from intaglio.runtime.sampling.json_schema.rules import Notation

NAME = re.compile(r"[\w.$-]")  # a character of the name of a function or parameter
WORD = re.compile(r"[\w.+-]")  # of a number or constant
CONSTANTS = {"None": "null", "False": "false", "True": "true"}
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|(.))", re.DOTALL)
ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0", "\n": ""}
SPACED = {",": ", ", ":": ": "}
Json = Generator[None, str, str | None]


class PythonCalls:
    """The syntax of calls as in Python: an argument is reported when it is complete; nothing is evaluated.

    A call that is damaged after its first argument never ends, and has the rest of the text.
    """

    notation = Notation(names=f"{NAME.pattern}+", separator=", ", after_name="=", constants=("None", "False", "True"))

    def frame(self, name: str) -> tuple[str, str]:
        """See `CallSyntax`."""
        return f"{name}(", ")"

    def read(self, text: CallText) -> Found:
        """See `CallSyntax`."""
        yield from text.next_visible()
        text.unread()
        name = yield from text.word(NAME)
        if not name or not (yield from text.literal("(")):
            return False
        before = "{"
        while (yield from text.next_visible()) != ")":
            text.unread()
            argument = yield from _argument(text)
            while argument is None and before != "{":
                yield from text.next()
                text.drop()
            if argument is None or (before == "{" and not text.start(name)):
                return False
            text.arguments(f"{before}{argument}")
            before = ", "
        if before == "{" and not text.start(name):
            return False
        text.arguments("{}" if before == "{" else "}")
        text.end()
        return True


def _argument(text: CallText) -> Json:
    """Read an argument and the comma after it; return the member of a JSON object, or None for something else."""
    name = yield from text.word(NAME)
    if not name or (yield from text.next_visible()) != "=":
        text.unread(1 if name else 0)
        return None
    value = yield from _value(text)
    if value is not None and (yield from text.next()) != ",":
        text.unread()
    return value and f"{json.dumps(name, ensure_ascii=False)}: {value}"


def _value(text: CallText) -> Json:
    """Read a literal up to the comma or parenthesis after it; return it as JSON, or None for something else."""
    tokens: list[str] = []
    depth = 0
    while (character := (yield from text.next_visible())) not in ",)" or depth > 0:
        if character in "\"'":
            tokens.append(json.dumps((yield from _string(text, character)), ensure_ascii=False))
        elif WORD.match(character):
            text.unread()
            word = yield from text.word(WORD)
            tokens.append(CONSTANTS.get(word, word))
        else:
            depth += (character in "[{") - (character in "]}")
            if character in "]}" and tokens[-1:] == [","]:
                tokens.pop()
            tokens.append(character)
    text.unread()
    try:
        msgspec.json.decode(" ".join(tokens), type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return "".join(SPACED.get(each, each) for each in tokens)


def _string(text: CallText, quote: str) -> Characters:
    """Read the rest of a string, and return its value; unknown escapes are kept."""
    read = ""
    while (character := (yield from text.next())) != quote:
        read += character
        if character == "\\":
            read += yield from text.next()
    value = ESCAPE.sub(_unescaped, read)
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins halves of surrogate pairs


def _unescaped(escape: re.Match[str]) -> str:
    *codes, other = escape.groups()
    code = next(filter(None, codes), None)
    if code is not None:
        return chr(int(code, 16))
    return other if other in "\\'\"" else ESCAPED.get(other, escape[0])


PYTHONIC = ToolCallFormat(
    name="pythonic",
    signs=("[func_name1(",),
    opening="<|python_start|>",
    before="[",
    between=", ",
    after="]",
    syntax=PythonCalls(),
    closing="<|python_end|>",
    bare=True,
)
