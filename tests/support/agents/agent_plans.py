"""Random plans for tools with all kinds of parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hypothesis import strategies as st

from intaglio.runtime.agents.plan.plan import Call, Reference, Template, Value
from intaglio.runtime.agents.tools.tool import Tool


def made(name: str, properties: Mapping[str, Any], required: Collection[str], **keywords: Any) -> Tool:
    schema = {"type": "object", "properties": dict(properties), "required": list(required), **keywords}
    return Tool(name, f"About {name}.", schema, lambda **arguments: arguments)


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
TOOLS = {
    tool.name: tool
    for tool in [
        made("now", {}, []),
        made(
            "search",
            {
                "query": STRING,
                "limit": {**INTEGER, "minimum": 1, "maximum": 20},
                "tags": {"type": "array", "items": STRING},
            },
            ["query"],
            additionalProperties=False,
        ),
        made("calculate", {"expression": STRING, "precise": {"type": "boolean"}, "scale": NUMBER}, ["expression"]),
        made("store", {"value": {}, "key": {"anyOf": [STRING, {"type": "null"}]}}, ["value"]),
        made("weigh", {"weights": {"type": "object", "additionalProperties": NUMBER}}, ["weights"]),
        made(
            "pages.find",
            {
                "order": {"enum": ["best", "$cheap", 3, None]},
                "place": {
                    "type": "object",
                    "properties": {"city": STRING, "zip": {"type": ["integer", "null"]}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            },
            ["place"],
        ),
        made("plant", {"tree": {"$ref": "#/$defs/tree"}}, [], **{"$defs": {"tree": TREE}}),
        made("code", {"text": {**STRING, "minLength": 2, "maxLength": 9}}, ["text"]),
    ]
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("$\"'\\\n{}1290"), max_size=12)


def floats(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers whose exponents have at most two digits, as the grammar writes them."""
    return st.floats(low, high, allow_subnormal=False).filter(lambda each: each == 0 or abs(each) > 1e-99)


DEEPEST = 2  # maximum nesting of lists and objects in the grammar for a value without a schema


def depth(value: Value) -> int:
    """The nesting depth of lists and objects in a value."""
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | floats(-1e15, 1e15) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
).filter(lambda value: depth(value) <= DEEPEST)


@st.composite
def templates(draw: st.DrawFn, numbers: Collection[int]) -> Value:
    """A string that contains references."""
    parts: list[str | Reference] = []
    for part in draw(st.lists(TEXTS | st.sampled_from(sorted(numbers)).map(Reference), min_size=2, max_size=5)):
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        elif part != "":
            parts.append(part)
    if len(parts) < 2:
        return parts[0] if parts else ""
    return Template(tuple(parts))


def literals(schema: Mapping[str, Any], numbers: Collection[int]) -> st.SearchStrategy[Value]:
    """Values of `schema` without references."""
    if not schema:
        return JSON
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([values(each, numbers) for each in schema["anyOf"]])
    if "$ref" in schema:
        return st.just({}) | st.just({"children": [{}, {"children": []}]})
    if isinstance(schema["type"], list):
        return st.one_of([values({"type": each}, numbers) for each in schema["type"]])
    low, high = schema.get("minimum", -(10**15)), schema.get("maximum", 10**15)
    if schema["type"] == "string":
        bounded = st.text(st.characters(exclude_categories=["Cs"]), min_size=2, max_size=9)
        return bounded if "minLength" in schema else TEXTS | templates(numbers) if numbers else TEXTS
    simple = {"integer": st.integers(low, high), "boolean": st.booleans(), "null": st.none()}
    if schema["type"] == "number":
        return floats(low, high)
    if schema["type"] == "array":
        return st.lists(values(schema["items"], numbers), max_size=3)
    if schema["type"] == "object":
        if isinstance(extra := schema.get("additionalProperties"), Mapping):
            return st.dictionaries(TEXTS, values(extra, numbers), max_size=3)
        inner = {name: values(each, numbers) for name, each in schema["properties"].items()}
        needed = {name: inner.pop(name) for name in schema["required"]}
        drawn = st.fixed_dictionaries(needed, optional=inner)
        return drawn.map(lambda some: {name: some[name] for name in schema["properties"] if name in some})
    return simple[schema["type"]]


def values(schema: Mapping[str, Any], numbers: Collection[int]) -> st.SearchStrategy[Value]:
    """Values of `schema`, and references to `numbers`."""
    chosen = literals(schema, numbers)
    return chosen | st.sampled_from(sorted(numbers)).map(Reference) if numbers else chosen


@st.composite
def plans(draw: st.DrawFn, known: Collection[int] = (), most: int = 6) -> list[Call]:
    """Calls with consecutive numbers; keywords are in the order of the parameters."""
    calls: list[Call] = []
    first = max(known, default=0) + 1
    for number in range(first, first + draw(st.integers(1, most))):
        tool = draw(st.sampled_from(list(TOOLS.values())))
        numbers = {*known, *range(first, number)}
        names = list(tool.properties)
        positional = draw(st.integers(0, len(names)))
        keywords = [name for name in names[positional:] if name in tool.required or draw(st.booleans())]
        thought = draw(st.none() | st.text("abc$1(). ", min_size=1).map(str.strip).filter(bool))
        calls.append(
            Call(
                number,
                tool.name,
                tuple(draw(values(tool.properties[name], numbers)) for name in names[:positional]),
                {name: draw(values(tool.properties[name], numbers)) for name in keywords},
                thought,
            )
        )
    return calls
