"""The decorator `tool`: schemas, descriptions, converted arguments, and invalid functions."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from jsonschema import Draft202012Validator

from intaglio.errors import UsageError
from intaglio.runtime.agents.tools.from_function import tool
from intaglio.runtime.agents.tools.tool import Tool


class Order(enum.Enum):
    NEWEST = "newest"
    BEST = "best"


@dataclass
class Place:
    city: str
    zip_code: int | None = None


class Options(TypedDict):
    deep: bool


@tool
def search(
    query: str,
    limit: int = 3,
    order: Order = Order.BEST,
    place: Place | None = None,
    options: Options | None = None,
    tags: list[str] = ["a"],  # noqa: B006  # copied for each call
    weights: dict[str, float] | None = None,
    kind: Literal["page", "image"] = "page",
    page: Annotated[int, msgspec.Meta(ge=1)] = 1,
) -> list[Any]:
    """Search the web.

    Returns titles,
    best first.

    Args:
        query: what to look for,
            in a few words
        limit (int): most results: at least 1

    Returns:
        limit: this is no parameter
    """
    tags.append(query)
    return [query, limit, order, place, tags, weights, kind, page]


def test_function_becomes_a_tool_with_its_documentation() -> None:
    assert (search.name, search.description) == ("search", "Search the web.\n\nReturns titles,\nbest first.")
    assert search.properties["query"] == {"type": "string", "description": "what to look for, in a few words"}
    assert search.properties["limit"] == {"type": "integer", "description": "most results: at least 1", "default": 3}
    assert (search.timeout, search.limit, search.attempts, search.shown) == (None, None, 1, None)


def test_schema_has_all_types_in_parameter_order() -> None:
    Draft202012Validator.check_schema(dict(search.parameters))
    names = ["query", "limit", "order", "place", "options", "tags", "weights", "kind", "page"]
    assert list(search.properties) == names
    assert search.required == {"query"} and search.parameters["additionalProperties"] is False
    assert "title" not in search.parameters
    valid = Draft202012Validator(dict(search.parameters)).is_valid
    full = {
        "query": "a",
        "order": "best",
        "place": {"city": "Ulm"},
        "options": {"deep": True},
        "weights": {"a": 1},
        "kind": "image",
    }
    assert valid(full)
    for name, value in {
        "query": 1,
        "limit": "1",
        "order": "worst",
        "place": {"zip_code": 1},
        "options": {},
        "tags": [1],
        "weights": {"a": "b"},
        "kind": "sound",
        "page": 0,
        "more": 1,
    }.items():
        assert not valid({**full, name: value}), name


def test_arguments_are_converted_and_defaults_are_not_shared() -> None:
    for _ in range(2):
        result = search.function(query="q", place={"city": "Ulm"}, weights={"a": 1})
        assert result == ["q", 3, Order.BEST, Place("Ulm"), ["a", "q"], {"a": 1.0}, "page", 1]
    assert type(search.function(query="q", weights={"a": 1})[5]["a"]) is float
    with pytest.raises(UsageError, match=r"^Expected `int`, got `str` - at `\$\.limit`\.$"):
        search.function(query="q", limit="3")


def test_async_function_stays_async_and_keeps_options() -> None:
    @tool(name="clock.now", timeout=2, limit=1, attempts=3, shown=0)
    async def now(zone: str) -> str:
        """The time.

        zone: such as UTC
        """
        await asyncio.sleep(0)
        return f"noon {zone}"

    assert asyncio.iscoroutinefunction(now.function)
    assert asyncio.run(now.function(zone="UTC")) == "noon UTC"
    assert (now.name, now.timeout, now.limit, now.attempts, now.shown) == ("clock.now", 2, 1, 3, 0)
    assert now.description == "The time."
    assert now.properties["zone"]["description"] == "such as UTC"


def test_function_without_parameters_and_documentation() -> None:
    @tool
    def empty() -> None:
        pass

    assert empty.parameters == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert empty.description == "" and empty.function() is None


def starred(*words: str) -> None: ...
def double_starred(**words: str) -> None: ...
def positional(word: str, /) -> None: ...
def unhinted(word) -> None: ...  # type: ignore[no-untyped-def]
def custom(word: threading.Lock) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def complex_type(word: complex, other: int) -> None: ...
def odd_default(word: Any = object()) -> None: ...  # noqa: B008


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (starred, r"parameter 'words': \* and \*\* have no schema"),
        (double_starred, r"parameter 'words': \* and \*\* have no schema"),
        (positional, "parameter 'word': positional-only"),
        (unhinted, "parameter 'word': no type hint. Add one, such as word: str"),
        (custom, "its type hints cannot be read: name 'threading' is not defined"),
        (complex_type, "parameter 'word': its type or default has no JSON schema"),
        (odd_default, "parameter 'word': its type or default has no JSON schema"),
        (lambda: None, "expected a name"),
    ],
)
def test_unsupported_parameters_are_rejected_in_one_line(function: Callable[..., Any], cause: str) -> None:
    with pytest.raises(UsageError, match=rf"^tool '[^\n]*{cause}[^\n]*$"):
        tool(function)


def test_decorator_makes_a_tool() -> None:
    assert isinstance(search, Tool)
