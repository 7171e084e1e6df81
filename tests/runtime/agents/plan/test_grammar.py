"""The grammar of plans: its texts are valid plans, and it allows every rendered plan."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import llguidance
import numpy as np
import pytest
from agent_plans import INTEGER, NUMBER, STRING, TOOLS, made, plans
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from intaglio.errors import UsageError
from intaglio.runtime.agents.loops.joiner import joiner_grammar, read_decision
from intaglio.runtime.agents.plan.grammar import plan_grammar, turn_grammar
from intaglio.runtime.agents.plan.parser import PlanParser
from intaglio.runtime.agents.plan.text import rendered, rendered_plan
from intaglio.runtime.agents.tools.tool import Tool
from intaglio.runtime.sampling.grammar import Grammar, GrammarConstraint

ROOT = Path(__file__).parents[4]
TOKENIZER = Tokenizer.from_file(str(ROOT / "examples" / "language_models" / "large" / "tokenizer.json"))
END = 0  # <|endoftext|>
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
    made("emoji", {"😀": STRING, "it": {"enum": ["😀", "\x01", "a/b"]}}, []),
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
    favourites = b'"$)]},12\n'
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


@settings(deadline=None, max_examples=examples(150))
@given(seed=st.integers(0, 10**9), known=st.sampled_from([(), (1, 2), (1, 3, 11)]), more=st.booleans())
def test_texts_of_the_grammar_are_valid_plans(seed: int, known: tuple[int, ...], more: bool) -> None:
    text = walk(compiled(frozenset(known), 4, more), seed)
    parser = PlanParser({tool.name: tool for tool in (MORE if more else TOOLS.values())}, known)
    calls = parser.push(text) + parser.finish()
    assert parser.join is not None
    first = max(known, default=0) + 1
    assert [call.number for call in calls] == list(range(first, first + len(calls)))
    assert len(calls) <= 4


@settings(deadline=None, max_examples=examples(150))
@given(data=st.data(), known=st.sampled_from([(), (1, 2), (1, 3, 11)]))
def test_rendered_plans_are_allowed(data: st.DataObject, known: tuple[int, ...]) -> None:
    calls = data.draw(plans(known, 4))
    assert accepts(compiled(frozenset(known), 4, False), rendered_plan(calls))


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("1. join()", True),
        ("1. now()\n2. join()", True),
        ("Thought: hm\n1. now()\nThought: done\n2. join()", True),
        ('1. now()\n2. search("$1 ${1}2 $$3", tags=[$1, "$1"])\n3. join()', True),
        ('1. search("a", 20)\n2. join()', True),
        ('1. search("a", 3, tags=[])\n2. join()', True),
        ('1. search(query="a", limit=3)\n2. join()', True),
        ("1. now()\n2. now()\n3. now()\n4. now()\n5. join()", True),
        ("1. now()\n2. now()\n3. now()\n4. now()\n5. now()\n6. join()", False),  # too many
        ("1. now()", False),  # no end
        ("1. join()\n", False),
        ("1. join()\n2. now()", False),
        ("2. now()\n3. join()", False),
        ("1. now()\n1. join()", False),
        ("1. nope()\n2. join()", False),
        ('1. search("$1")\n2. join()', False),  # itself
        ('1. search("$2")\n2. now()\n3. join()', False),  # a later one
        ('1. now()\n2. search("$12")\n3. join()', False),  # $12 is not $1 and a 2
        ('1. now()\n2. search("$2")\n3. join()', False),
        ('1. search("5 $")\n2. join()', False),
        ('1. store([{"a": $1}])\n2. join()', False),
        ("1. search()\n2. join()", False),  # missing
        ("1. search(limit=3)\n2. join()", False),
        ('1. search("a", 21)\n2. join()', False),  # out of range
        ('1. search("a", "3")\n2. join()', False),  # type
        ('1. search("a", city="b")\n2. join()', False),  # unknown
        ('1. search("a", query="b")\n2. join()', False),  # twice
        ('1. pages.find("worst", {"city": "a"})\n2. join()', False),
        ('1. pages.find("$$cheap", {"city": "a"})\n2. join()', True),
        ('1. pages.find("best", {"zip": 3})\n2. join()', False),
        ('1. code("a")\n2. join()', False),  # too short
        ('1. code("$$$$")\n2. join()', True),
    ],
)
def test_grammar_of_plans_allows_and_rejects(text: str, allowed: bool) -> None:
    assert accepts(compiled(frozenset(), 4, False), text) == allowed


def test_references_to_known_calls_are_allowed_and_gaps_are_not() -> None:
    grammar = compiled(frozenset({1, 3, 11}), 4, False)
    for reference, allowed in {"$1": True, "$3": True, "$11": True, "${11}1": True, "$2": False, "$12": False}.items():
        assert accepts(grammar, f'12. search("{reference}")\n13. join()') == allowed
    assert not accepts(grammar, "1. now()\n2. join()")
    assert accepts(grammar, '12. now()\n13. search("$12")\n14. join()')


def test_thoughts_can_be_disabled() -> None:
    grammar = matcher(plan_grammar(list(TOOLS.values()), thoughts=False))
    assert accepts(grammar, "1. now()\n2. join()")
    assert not accepts(grammar, "Thought: a\n1. now()\n2. join()")


@pytest.mark.parametrize("tools", [[], [TOOLS["now"]], [TOOLS["search"]]], ids=["none", "without parameters", "one"])
def test_grammar_of_few_tools(tools: list[Tool]) -> None:
    grammar = matcher(plan_grammar(tools, most=1))
    assert accepts(grammar, "1. join()")
    assert accepts(grammar, "1. now()\n2. join()") == (tools == [TOOLS["now"]])


def many_calls() -> str:
    calls = [f'{n}. search("$$5 near ${n - 1} and ${{{n - 1}}}0", 3, ["a"])' for n in range(2, 33)]
    return "\n".join(["1. now()", *calls, "33. join()"])


def test_grammar_of_32_calls_is_small_and_passes_the_check() -> None:
    text = plan_grammar(list(TOOLS.values()), most=32)
    assert len(text) < 16_000
    grammar = Grammar.from_lark(text, TOKENIZER)
    assert grammar.bytes < 16 << 20
    tokens = TOKENIZER.encode(many_calls()).ids
    constraint = GrammarConstraint(grammar, {END})
    for place, token in enumerate(tokens):
        assert constraint.allowed(tokens[:place])[token], TOKENIZER.decode(tokens[: place + 1])
    assert constraint.allowed(tokens)[END] and constraint.finished(tokens)


@pytest.mark.parametrize(
    "text",
    [
        plan_grammar(list(TOOLS.values()), range(1, 1001), 32),
        plan_grammar(list(TOOLS.values()), (), 1000),
        plan_grammar([made(f"tool_{each}", {f"p{n}": STRING for n in range(40)}, []) for each in range(64)]),
        plan_grammar([made(f"tool_{each}", {f"p{n}": {} for n in range(each)}, ["p0"]) for each in range(1, 40)]),
        plan_grammar([made("a", {"s": {**STRING, "maxLength": 10**9}, "l": {"type": "array", "maxItems": 10**9}}, [])]),
    ],
    ids=["1000 known", "1000 calls", "64 tools", "parameters", "bounds"],
)
def test_large_grammars_pass_the_check(text: str) -> None:
    assert Grammar.from_lark(text, TOKENIZER).bytes < 32 << 20


def test_inexpressible_optional_parameter_is_omitted() -> None:
    grammar = compiled(frozenset(), 4, True)
    assert accepts(grammar, '1. never(last="a")\n2. join()') and not accepts(grammar, '1. never("a")\n2. join()')
    assert accepts(grammar, '1. odd("a", 3, other=2)\n2. join()') and not accepts(grammar, "1. odd()\n2. join()")


@pytest.mark.parametrize(
    ("tool", "most", "cause"),
    [
        (TOOLS["now"], 0, "0 calls in a plan: expected 1 to 1000"),
        (made("finish", {}, []), 3, "tool 'finish': this name ends a plan"),
        (made("bad", {"a": STRING, "it": False}, ["it"]), 3, "tool 'bad': no plan can write it. Simplify"),
        (made("bad", {"it": {**INTEGER, "minimum": 3, "maximum": 2}}, ["it"]), 3, "tool 'bad': no plan can write it"),
        (made("bad", {"it": {"allOf": [{"type": "string"}, {"type": "null"}]}}, ["it"]), 3, "no plan can write it"),
    ],
)
def test_uncallable_tool_is_rejected(tool: Tool, most: int, cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        plan_grammar([tool], most=most)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("abcde", True),
        ("abcdef", False),
        ("\\u00e4bcd\\n", True),  # characters, not letters of their escapes
        ("ééééé", True),
        ("éééééé", False),
        ("abcde$1abcde${1}5abcd", True),
        ("abcde$1abcdef", False),
        ("$1" * 64, True),
        ("$1" * 65, False),
    ],
)
def test_text_between_references_is_bounded(text: str, allowed: bool) -> None:
    """A model that repeats itself has to end the string at some time."""
    search = TOOLS["search"]
    assert accepts(matcher(plan_grammar([search], {1}, characters=5)), f'2. search("{text}")\n3. join()') == allowed
    assert accepts(matcher(turn_grammar([search], {1}, characters=5)), f'2. search("{text}")') == allowed


def test_unbounded_lists_and_objects_get_a_bound() -> None:
    tool = made("many", {"items": {"type": "array", "items": INTEGER}, "map": {"type": "object"}}, [])
    grammar = matcher(plan_grammar([tool]))
    for count, allowed in {256: True, 257: False}.items():
        assert accepts(grammar, f"1. many([{', '.join('1' * count)}])\n2. join()") == allowed
    for count, allowed in {256: True, 257: False}.items():
        entries = ", ".join(f'"{place}": 1' for place in range(count))
        assert accepts(grammar, f"1. many([], {{{entries}}})\n2. join()") == allowed


@pytest.mark.parametrize("characters", [0, 100_001])
def test_out_of_range_bounds_are_rejected(characters: int) -> None:
    for grammar in (plan_grammar, turn_grammar):
        with pytest.raises(UsageError, match=f"{characters} characters in a string of a plan: expected 1 to 100000"):
            grammar([TOOLS["now"]], characters=characters)


def test_forbidden_characters_leave_no_dead_ends() -> None:
    """An argument that can only be a reference has no rule: the first call has nothing to refer to."""
    loop = {"type": "object", "properties": {"next": {"$ref": "#/$defs/loop"}}, "required": ["next"]}
    tool = made("loop", {"it": {"$ref": "#/$defs/loop"}}, [], **{"$defs": {"loop": loop}})
    grammar = matcher(plan_grammar([tool]))
    assert accepts(grammar, "1. loop()\n2. join()")
    assert not accepts(grammar, "1. loop()\n2. loop($1)\n3. join()")


@cache
def compiled_turn(known: frozenset[int], more: bool) -> llguidance.LLMatcher:
    return matcher(turn_grammar(MORE if more else list(TOOLS.values()), known))


@settings(deadline=None, max_examples=examples(150))
@given(seed=st.integers(0, 10**9), known=st.sampled_from([(), (1, 2), (1, 3, 11)]), more=st.booleans())
def test_texts_of_the_turn_grammar_are_calls_or_answers(seed: int, known: tuple[int, ...], more: bool) -> None:
    text = walk(compiled_turn(frozenset(known), more), seed)
    decision = read_decision(text)
    if decision is not None:
        assert decision.answer
        return
    parser = PlanParser({tool.name: tool for tool in (MORE if more else TOOLS.values())}, known)
    (call,) = parser.push(text) + parser.finish()
    assert call.number == max(known, default=0) + 1


@settings(deadline=None, max_examples=examples(150))
@given(data=st.data(), known=st.sampled_from([(), (1, 2), (1, 3, 11)]))
def test_rendered_calls_are_allowed_in_a_turn(data: st.DataObject, known: tuple[int, ...]) -> None:
    (call,) = data.draw(plans(known, 1))
    thought = "" if call.thought is None else f"Thought: {call.thought}\n"
    assert accepts(compiled_turn(frozenset(known), False), thought + rendered(call))


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("4. now()", True),
        ("Thought: hm\n4. now()", True),
        ("Answer: 7", True),
        ("Thought: hm\nAnswer: a\n\nb 4. now() \u00e9", True),
        ('4. search("$1 ${3}")', True),
        ('4. search("$2")', False),
        ('4. search("$4")', False),
        ("4. now()\n", False),
        ("4. now()\n5. now()", False),
        ("5. now()", False),
        ("4. join()", False),
        ("Answer:", False),
        ("Answer: ", False),
        ("Replan: a", False),
        ("Thought: hm", False),
        ("", False),
    ],
)
def test_grammar_of_turns_allows_and_rejects(text: str, allowed: bool) -> None:
    assert accepts(matcher(turn_grammar(list(TOOLS.values()), {1, 3})), text) == allowed


def test_turn_without_tools_is_an_answer() -> None:
    grammar = matcher(turn_grammar([], {1}))
    assert accepts(grammar, "Thought: a\nAnswer: 7") and not accepts(grammar, "2. now()")


@pytest.mark.parametrize("may_replan", [True, False])
@settings(deadline=None, max_examples=examples(60))
@given(seed=st.integers(0, 10**9))
def test_texts_of_the_joiner_grammar_are_decisions(may_replan: bool, seed: int) -> None:
    decision = read_decision(walk(matcher(joiner_grammar(may_replan)), seed))
    assert decision is not None
    assert decision.answer or (may_replan and decision.answer is None and decision.reason is not None)
