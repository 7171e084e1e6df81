"""The grammar of plans: all that it allows is read without an error, and it allows every plan as it is rendered."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import llguidance
import numpy as np
import pytest
from agent_plans import INTEGER, NUMBER, STRING, TOOLS, made, plans
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from intaglio.errors import UsageError
from intaglio.runtime.agents.plan import Call, Join, Reference, Template
from intaglio.runtime.agents.plan_grammar import plan_grammar
from intaglio.runtime.agents.plan_parser import PlanParser
from intaglio.runtime.agents.plan_text import rendered_plan
from intaglio.runtime.agents.tool import Tool
from intaglio.runtime.generation.grammar import MAX_CHARACTERS, Grammar

BYTES = llguidance.LLTokenizer("byte")
MORE = [
    made("tuple", {"it": {"type": "array", "prefixItems": [STRING, NUMBER], "minItems": 1, "items": INTEGER}}, ["it"]),
    made("pair", {"it": {"type": "array", "prefixItems": [STRING, INTEGER], "minItems": 2, "maxItems": 2}}, ["it"]),
    made("few", {"it": {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3}}, ["it"]),
    made(
        "near", {"it": {**NUMBER, "minimum": -1, "exclusiveMaximum": 2.5}, "n": {**INTEGER, "exclusiveMinimum": 3}}, []
    ),
    made("same", {"it": {"const": 'a"$\n'}, "yes": {"const": True}}, []),
    made(
        "mix",
        {"it": {"description": "x", "anyOf": [{"allOf": [{"$ref": "#/$defs/s"}, {"maxLength": 3}]}, NUMBER]}},
        [],
        **{"$defs": {"s": STRING}},
    ),
    made("map", {"it": {"type": "object", "additionalProperties": {"enum": ["$1", 2]}, "maxProperties": 2}}, ["it"]),
    made("odd", {"$it": STRING, "a b": INTEGER, "other": NUMBER, "nothing": False}, ["$it"]),
    made("never", {"nothing": False, "last": STRING}, []),
    made("untyped", {"it": {"properties": {"$a": STRING}, "minimum": 3, "minLength": 1}}, ["it"]),
]


def matcher(grammar: str) -> llguidance.LLMatcher:
    made = llguidance.LLMatcher(BYTES, grammar, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


@cache
def compiled(known: frozenset[int], most: int, more: bool) -> llguidance.LLMatcher:
    tools = MORE if more else list(TOOLS.values())
    return matcher(plan_grammar(tools, known, most))


def accepts(grammar: llguidance.LLMatcher, text: str) -> bool:
    copy, data = grammar.deep_copy(), list(text.encode())
    return copy.try_consume_tokens(data) == len(data) and copy.is_accepting()


def walk(grammar: llguidance.LLMatcher, seed: int, most: int = 1500) -> str:
    """A random text of the grammar. Bytes that close something are likelier, so that it ends."""
    chance, copy, written = random.Random(seed), grammar.deep_copy(), bytearray()
    favourites = b'"$)]},12\nj'
    while not copy.is_stopped() and not (copy.is_accepting() and chance.random() < 0.5):
        bits = np.unpackbits(np.frombuffer(copy.compute_bitmask(), np.uint8), bitorder="little")
        allowed = [int(each) for each in np.flatnonzero(bits[:256])]
        assert allowed, f"a dead end after {bytes(written)!r}"
        liked = [each for each in allowed if each in favourites]
        hurry = 0.9 if len(written) > most else 0.4
        byte = chance.choice(liked) if liked and chance.random() < hurry else chance.choice(allowed)
        assert copy.consume_token(byte)
        written.append(byte)
    return written.decode()


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**9), known=st.sampled_from([(), (1, 2), (1, 3, 11)]), more=st.booleans())
def test_any_text_of_the_grammar_is_a_plan_without_errors(seed: int, known: tuple[int, ...], more: bool) -> None:
    text = walk(compiled(frozenset(known), 4, more), seed)
    parser = PlanParser({tool.name: tool for tool in (MORE if more else TOOLS.values())}, known)
    calls = parser.push(text) + parser.finish()
    assert parser.join is not None
    first = max(known, default=0) + 1
    assert [call.number for call in calls] == list(range(first, first + len(calls)))
    assert len(calls) <= 4


@settings(deadline=None, max_examples=150)
@given(data=st.data(), known=st.sampled_from([(), (1, 2), (1, 3, 11)]))
def test_every_plan_is_allowed_as_it_is_rendered(data: st.DataObject, known: tuple[int, ...]) -> None:
    calls = data.draw(plans(known, 4))
    assert accepts(compiled(frozenset(known), 4, False), rendered_plan(calls))
