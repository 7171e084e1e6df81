"""Qwen3-Coder and Qwen3.5: tags for the function and its parameters, whose values are raw text.

<tool_call>
<function=weather>
<parameter=city>
Ulm
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from intaglio.runtime.generation.tool_calls.call_text import CallText, Characters, Found
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat
from intaglio.runtime.sampling.json_schema.document import UnsupportedError
from intaglio.runtime.sampling.json_schema.rules import Notation
from intaglio.runtime.sampling.json_schema.validator import Validator

NAME = re.compile(r"[^<>\n]")  # a character of the name of a function or parameter
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
VALUE_END = f"\n{PARAMETER_END}"
CALL_END = "</tool_call>"
CONSTANTS = {"None": "null", "False": "false", "True": "true"}  # templates may write those of Python


class TaggedCalls:
    """The syntax of calls in tags.

    A parameter that can only be a string is streamed; others are complete before their type is known. Text between
    parameters is left out; a call without its own end tag ends with the marker after it.
    """

    notation = Notation(
        names=f"{NAME.pattern}+",
        before_name=PARAMETER,
        after_name=">\n",
        after_value=f"{VALUE_END}\n",
        raw_strings=True,
    )

    def frame(self, name: str) -> tuple[str, str]:
        """See `CallSyntax`."""
        return f"{FUNCTION}{name}>\n", FUNCTION_END

    def read(self, text: CallText) -> Found:
        """See `CallSyntax`."""
        yield from text.next_visible()
        text.unread()
        if not (yield from text.literal(FUNCTION)):
            return False
        name = yield from text.word(NAME)
        if not name or not (yield from text.literal(">")) or not text.start(name):
            return False
        schema, before = text.tools.get(name, {}), "{"
        while (yield from _next_tag(text)) == PARAMETER:
            parameter = yield from text.word(NAME)
            yield from text.literal(">")
            text.arguments(f"{before}{json.dumps(parameter, ensure_ascii=False)}: ")
            before = ", "
            if is_text(schema, parameter):
                text.arguments('"')
                rest = yield from _value(text, report=True)
                text.arguments(f'{_escaped(rest)}"')
            else:
                text.arguments(as_json(schema, parameter, (yield from _value(text))))
        text.arguments("{}" if before == "{" else "}")
        text.end()
        return True


def _next_tag(text: CallText) -> Characters:
    """Read up to the next tag within a call, and return it; put back the marker after the call."""
    read = ""
    while not read.endswith((PARAMETER, FUNCTION_END, CALL_END)):
        read += yield from text.next()
    if read.endswith(CALL_END):
        text.unread(len(CALL_END))
    return PARAMETER if read.endswith(PARAMETER) else FUNCTION_END


def _value(text: CallText, report: bool = False) -> Characters:
    """Read the value of a parameter, and return it; `report` all of it but the last characters as part of a string."""
    yield from text.literal("\n")
    read = ""
    while not read.endswith(PARAMETER_END):
        read += yield from text.next()
        text.drop()
        if report:  # all but what may be the end
            certain = 0
            while not (VALUE_END.startswith(read[certain:]) or PARAMETER_END.startswith(read[certain:])):
                certain += 1
            text.arguments(_escaped(read[:certain]))
            read = read[certain:]
    return read.removesuffix(PARAMETER_END).removesuffix("\n")


def _escaped(text: str) -> str:
    """Return a part of a text as a JSON string has it."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


QWEN_CODER = ToolCallFormat(
    name="qwen_coder",
    signs=("<tool_call>\\n<function=", "<tool_call>\n<function="),  # a line end in a string of the template, or in it
    opening="<tool_call>",
    before="\n",
    between=f"\n{CALL_END}\n<tool_call>\n",
    after=f"\n{CALL_END}",
    syntax=TaggedCalls(),
    closing=CALL_END,
)


def is_text(schema: Mapping[str, Any], name: str) -> bool:
    """Whether the argument `name` can only be a string. `schema`: of all arguments."""
    validator = Validator(schema)
    values = validator.values(validator.member(name))
    return bool(values.texts) and replace(values, texts=()).empty


def as_json(schema: Mapping[str, Any], name: str, text: str) -> str:
    """Return the argument `name` as JSON: a valid value that is no string, else the text itself if it may be a string.

    An argument that cannot be a string is the JSON value, valid or not; what is not JSON is the text.
    """
    validator = Validator(schema)
    found = CONSTANTS.get(text, text)
    try:
        node = validator.member(name)
        value = json.loads(found, parse_constant=_reject)
        if (not isinstance(value, str) and validator.valid(value, node)) or not validator.values(node).texts:
            return found.strip()
    except (ValueError, RecursionError, UnsupportedError):
        pass
    return json.dumps(text, ensure_ascii=False)


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
