"""Parsing plans: equal calls and errors for any piece boundaries, and invalid plans."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import pytest
from agent_plans import TOOLS, made, plans
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.errors import UsageError
from intaglio.runtime.agents.plan.parser import PlanParser
from intaglio.runtime.agents.plan.plan import MAX_DEPTH, Call, Join, PlanError, Reference, Template
from intaglio.runtime.agents.plan.text import rendered, rendered_plan


class Read(NamedTuple):
    calls: list[Call]
    join: Join | None
    error: str | None


def read(pieces: Iterable[str], known: Collection[int] = ()) -> Read:
    parser, calls = PlanParser(TOOLS, known), list[Call]()
    try:
        for piece in pieces:
            calls += parser.push(piece)
        calls += parser.finish()
    except PlanError as error:
        return Read(calls, parser.join, str(error))
    return Read(calls, parser.join, None)


def argument(text: str) -> Any:
    """The value of one argument, in a plan with earlier calls 1 to 12."""
    (call,), _, error = read([f"13. store({text})"], range(1, 13))
    assert error is None
    return call.arguments[0]


def cut(text: str, seed: int) -> list[str]:
    places = sorted(random.Random(seed).choices(range(len(text) + 1), k=5))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@settings(deadline=None)
@given(calls=plans(), seed=st.integers(0, 10**6), ending=st.sampled_from(["join", "finish"]))
def test_rendered_plan_is_parsed_back_for_any_pieces(calls: list[Call], seed: int, ending: str) -> None:
    text = f"{rendered_plan(calls).removesuffix('join()')}{ending}()\n"
    for pieces in ([text], list(text), cut(text, seed)):
        assert read(pieces) == Read(calls, Join(), None)


@settings(deadline=None)
@given(calls=plans(), seed=st.integers(0, 10**6), data=st.data())
def test_damaged_plan_gives_equal_calls_and_errors_for_any_pieces(
    calls: list[Call], seed: int, data: st.DataObject
) -> None:
    text = rendered_plan(calls)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text)))
        more = data.draw(
            st.sampled_from(["", "\n", '"', "'", "(", ")", "[", "$", "$1", ",", "\\", "x", "=", "9", "\0"])
        )
        text = text[:place] + more + text[place + data.draw(st.integers(0, 2)) :]
    whole = read([text])
    assert whole == read(text) == read(cut(text, seed))
    assert whole.error is None or "\n" not in whole.error


@settings(deadline=None)
@given(text=st.text(), seed=st.integers(0, 10**6))
def test_any_text_is_parsed_or_raises_plan_error(text: str, seed: int) -> None:
    for before in ("", "1. store(", '1. store("', "1. "):
        assert read([before + text]) == read(cut(before + text, seed))


def test_call_is_complete_at_its_parenthesis() -> None:
    parser = PlanParser(TOOLS)
    assert parser.push('Thought: both.\n1. search("a", limit=2') == []
    assert parser.push(")") == [Call(1, "search", ("a",), {"limit": 2}, "both.")]
    assert parser.push("\n$2 = now( ") == []
    assert parser.push(")\n3. join(") == [Call(2, "now")] and parser.join is None
    assert parser.push(")") == [] and parser.join == Join() and parser.finish() == []


def test_error_after_completed_calls_keeps_them() -> None:
    parser = PlanParser(TOOLS)
    assert parser.push("1. now()\n2. nope()") == [Call(1, "now")]
    for _ in range(2):
        with pytest.raises(PlanError, match="no tool is named 'nope'"):
            parser.push("")
    with pytest.raises(PlanError, match="no tool is named 'nope'"):
        parser.finish()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$12", Reference(12)),
        ("${1}", Reference(1)),
        ('"$12"', Reference(12)),
        ('"${1}2"', Template((Reference(1), "2"))),
        ("'$1$2'", Template((Reference(1), Reference(2)))),
        ('"$$1"', "$1"),
        ('"$$$1"', Template(("$", Reference(1)))),
        (r'"\$1 \u00241 \x241"', "$1 $1 $1"),
        ('"US$ ${x} $"', "US$ ${x} $"),
        (r'"\ud83d\ude00\n\t\\\'\""', "😀\n\t\\'\""),
        (r"'it\'s \"'", "it's \""),
        (r'"C:\users \d+"', r"C:\users \d+"),
        ('"a\\\nb\nc"', "ab\nc"),
        ("[1, -2.5, 1e3, +.5, true, None, \n'a',]", [1, -2.5, 1000.0, 0.5, True, None, "a"]),
        ('{"$1": $1, \'a$$\': {"b": "x $2"}}', {"$1": Reference(1), "a$$": {"b": Template(("x ", Reference(2)))}}),
        ("[]", []),
        ("{}", {}),
    ],
)
def test_argument_values_are_parsed(text: str, value: object) -> None:
    assert repr(argument(text)) == repr(value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1. serch()", "line 1: no tool is named 'serch', expected one of now, search, calculate, "),
        ("1. search()", "line 1: call 1, search: query missing, expected search(query, limit=..., tags=...)."),
        ('1. search("a", city="b")', "line 1: call 1, search: no parameter is named city, expected search("),
        ('1. now("a")', "line 1: call 1, now: 1 arguments, expected at most 0: now()."),
        ('1. search("a", query="b")', "line 1: call 1, search: the argument query is given twice, by its place"),
        ('1. search(query="a", query="b")', "line 1: call 1, search: the argument query is given twice."),
        ('1. search(query="a", 3)', "line 1: call 1, search: an argument without a name after query=, expected name="),
        ('\n1. search("a", "3")', "line 2: call 1, search: limit is '3', expected integer."),
        ('1. search("a", true)', "line 1: call 1, search: limit is true, expected integer."),
        ('1. search("a", 21)', "line 1: call 1, search: limit is 21, expected maximum 20."),
        ('1. search("a", tags=["b", 3])', "line 1: call 1, search: tags [1] is 3, expected string."),
        ('1. pages.find("worst", {"city": "a"})', "line 1: call 1, pages.find: order is 'worst', expected 'best' or "),
        ('1. now()\n2. search("a", "b $1")', "line 2: call 2, search: limit is a text with references, expected integ"),
        ('1. search("$3")', "line 1: call 1, search: query refers to $3, which is not before it, expected no referenc"),
        ('1. now()\n2. search("$2")', "line 2: call 2, search: query refers to its own call with $2"),
        (
            '1. now()\n3. search("$2")',
            "line 2: call 3, search: query refers to $2, which does not exist, expected one ",
        ),
        ('1. store({"a": ["x $7"]})', "line 1: call 1, store: value refers to $7"),
        ("1. store($0)", "line 1: call 1, store: $0 refers to no call"),
        ("1. store($" + "9" * 5000 + ")", "line 1: call 1, store: $99999999999999999999 refers to no call"),
        ("1. now()\n1. now()", "line 2: the number 1 is taken, expected 2."),
        ("2. now()\n1. now()", "line 2: call number 1, expected 3."),
        ("0. now()", "line 1: call number 0, expected 1."),
        ("9" * 5000 + ". now()", "line 1: got '9999"),
        ("1. join()\n2. now()", "line 2: text after the end of the plan: '2. now()'."),
        ("1. join(1)", "line 1: join() takes no arguments."),
        ("1. now() 2 now", "line 1: got '2 now' after call 1, expected the end of the line."),
        ("1. now(\n2. now()", "line 2: call 1, now: got 'now()' after a value, expected a comma or )."),
        ("1. now(", "line 1: call 1, now: the plan ends before the closing )."),
        ('1. store(\n["a\n', 'line 2: call 1, store: the plan ends before the closing ".'),
        ("1. store([1", "line 1: call 1, store: the plan ends before the closing ]."),
        ("I will search", "line 1: got 'I will search', expected a line such as Thought: text, or 1. tool(arguments)."),
        ("1. I will search", "line 1: got 'I will search' after the number 1, expected the name of a tool and"),
        ("1 = now", "line 1: got 'now' after the number 1, expected the name of a tool and a parenthesis."),
        ("", "line 1: the plan has no call."),
        ("Thought: hm", "line 1: the plan has no call."),
        ("1. store(NaN)", "line 1: call 1, store: got NaN, expected a value."),
        ("1. store(-Infinity)", "line 1: call 1, store: got -Infinity, expected a value."),
        ("1. store(1e999)", "line 1: call 1, store: the number 1e999 is too large."),
        ("1. store(" + "9" * 401 + ")", "line 1: call 1, store: an integer of 401 digits, expected at most 400."),
        ("1. store(Apple)", "line 1: call 1, store: got Apple, expected a value. Write text in quotes"),
        ('1. store(f"a")', "line 1: call 1, store: got f, expected a value."),
        (
            "1. store(now())",
            "line 1: call 1, store: got now, expected a value. Write text in quotes, and a result as $1.",
        ),
        ("1. store({a: 1})", "line 1: call 1, store: got 'a: 1})', expected the key of an object in quotes."),
        ('1. store({"a" 1})', "line 1: call 1, store: got '1})' after the key 'a', expected a colon."),
        ("1. store([1 2])", "line 1: call 1, store: got '2])' after a value, expected a comma or ]."),
        ("1. store($a)", "line 1: call 1, store: got '$a)', expected a reference such as $1."),
        ('1. store("\0")', "line 1: call 1, store: a string has the character U+0000"),
        ('1. store("\ud800")', "line 1: call 1, store: a string has the character U+D800"),
        (r'1. store("\ud800")', r"line 1: call 1, store: a string has the escape \ud800"),
        (
            "1. store(" + "[" * 100_000,
            f"line 1: call 1, store: lists and objects are nested more than {MAX_DEPTH} deep.",
        ),
    ],
)
def test_error_names_line_and_cause(text: str, error: str) -> None:
    whole = read([text])
    assert whole.error is not None and whole.error.startswith(error)
    assert whole == read(text) and len(whole.error) < 400


def test_plans_continue_the_numbers_of_earlier_ones() -> None:
    text = '4. search("$2")\n6. store([$4, $2])\n7. join()'
    assert read([text], [1, 2, 3]).error is None
    assert (
        read(["3. now()"], [1, 2, 3]).error == "line 1: the number 3 is taken, expected 4. Number the calls in order."
    )
    assert "refers to $2, which does not exist, expected one of $1, $3" in str(read([text], [1, 3]).error)


def test_list_of_maximum_depth_is_parsed_and_rendered() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert rendered(Call(13, "store", [argument(text)])) == f"13. store({text})"


def test_tool_named_like_a_plan_ending_is_rejected() -> None:
    with pytest.raises(UsageError, match="tool 'join': this name ends a plan"):
        PlanParser({"join": made("join", {}, [])})


@pytest.mark.parametrize(
    "text",
    ['1. store("{}")', "1. store('{}", "Thought: {}", "1. store({}"],
    ids=["string", "open string", "thought", "word"],
)
def test_parsing_time_is_linear(text: str) -> None:
    def seconds(count: int) -> float:
        started = time.process_time()
        read(text.format("$$" * count))
        return time.process_time() - started

    seconds(1000)
    assert seconds(60_000) < 20 * max(seconds(6000), 0.01)
