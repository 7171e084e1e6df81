"""Tool calls as a model of each format writes them, and what is read from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from intaglio.runtime.generation.tool_calls.events import (
    ArgumentsPiece,
    CallEnded,
    CallStarted,
    ContentPiece,
    ToolEvent,
)
from intaglio.runtime.generation.tool_calls.json_calls import JsonCalls
from intaglio.runtime.generation.tool_calls.parser import ToolCallParser
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"type": ["string", "null"]}},
    },
    "now": {},
}
NAMES = st.from_regex(r"[a-z_$.-]{1,4}", fullmatch=True)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=5,
)


def written_call(style: ToolCallFormat, name: str, arguments: Mapping[str, Any]) -> str:
    """One call, without the markers around it."""
    if isinstance(style.syntax, JsonCalls):
        return f'{{"name": "{name}", "{style.syntax.key}": {_dumped(arguments)}}}'
    before, after = style.syntax.frame(name)
    if style.name == "pythonic":
        return before + ", ".join(f"{key}={_python(value)}" for key, value in arguments.items()) + after
    texts = {key: value if isinstance(value, str) else _dumped(value) for key, value in arguments.items()}
    return before + "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items()) + after


def written_calls(style: ToolCallFormat, *calls: tuple[str, Mapping[str, Any]], opening: bool = True) -> str:
    """Calls with the text around them; `opening`: with the marker."""
    bodies = (style.between or "\n").join(written_call(style, name, arguments) for name, arguments in calls)
    return f"{style.opening * opening}{style.before}{bodies}{style.after}"


def _python(value: Any) -> str:
    """A literal of Python, with strings as in JSON."""
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_dumped(key)}: {_python(each)}' for key, each in value.items())}}}"
    return _dumped(value) if isinstance(value, str) else repr(value)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def calls_in(parser: ToolCallParser, *pieces: str) -> list[tuple[str, str]]:
    """The names and arguments of the calls; all are complete, and there is no content."""
    events: list[ToolEvent] = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    calls: list[tuple[str, str]] = []
    for event in events:
        match event:
            case CallStarted(_, _, name):
                calls.append((name, ""))
            case ArgumentsPiece(index, text):
                calls[index] = (calls[index][0], calls[index][1] + text)
            case _:
                assert isinstance(event, CallEnded), event
    assert sum(isinstance(event, CallEnded) for event in events) == len(calls)
    return calls


def arguments_in(style: ToolCallFormat, text: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of the one call in a text."""
    ((_, arguments),) = calls_in(ToolCallParser(style, {"t": schema or {}}), text)
    found = json.loads(arguments)
    assert isinstance(found, dict)
    return found


Parsed = tuple[str, list[tuple[str, str, bool]]]  # content; name, arguments, whether it ended


def parsed(style: ToolCallFormat, pieces: list[str], cut: bool = False, following: str = "") -> Parsed:
    """What the events add up to; each call's events are in order, and between no others."""
    parser = ToolCallParser(style, TOOLS)
    content, calls = "", list[tuple[str, str, bool]]()
    ids = set()
    for event in [event for piece in pieces for event in parser.feed(piece)] + parser.finish(cut, following):
        match event:
            case ContentPiece(text):
                assert text
                content += text
            case CallStarted(index, call, name):
                assert index == len(calls)
                ids.add(call)
                calls.append((name, "", False))
            case ArgumentsPiece(index, text):
                assert index == len(calls) - 1 and not calls[index][2]
                calls[index] = (calls[index][0], calls[index][1] + text, False)
            case CallEnded(index):
                assert index == len(calls) - 1 and not calls[index][2]
                calls[index] = (*calls[index][:2], True)
    assert len(ids) == len(calls)
    return content, calls
