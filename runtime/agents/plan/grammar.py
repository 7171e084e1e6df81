"""The grammar of a plan, in llguidance's variant of Lark: only plans that `PlanParser` accepts.

Its rules have a parameter, the number of calls before the one that is written: `rule::_` passes it on, and `%if` makes
an alternative depend on it. So the rules of a tool's arguments are there once, and not once for each line.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from intaglio.errors import UsageError
from intaglio.runtime.agents.plan.argument_reader import KEYWORD
from intaglio.runtime.agents.plan.check import check_names
from intaglio.runtime.agents.plan.value_grammar import (
    MOST_STRING_CHARACTERS,
    STRING_CHARACTERS,
    NamedValue,
    ValueGrammar,
    literal,
)
from intaglio.runtime.agents.tools.tool import Tool

MAX_CALLS = 1000
ANSWER = r"ANSWER: /Answer: [^\s\x00-\x1f](.|\n)*/"
THOUGHT = r"THOUGHT: /Thought: [^\x00-\x1f]{1,500}\n/"  # bounded, as weak models would not end the line


def plan_grammar(
    tools: Sequence[Tool],
    known: Collection[int] = (),
    most: int = 32,
    thoughts: bool = True,
    characters: int = STRING_CHARACTERS,
) -> str:
    """Return the grammar of plans of at most `most` calls that end with join(); the start rule is `start`.

    `known`: the numbers of earlier calls; those of the plan go on from the last one without gaps. `thoughts`: whether a
    line "Thought: ..." may stand before each call. `characters`: of text in a string, at most, between its references
    and where its schema has no bound. Arguments are in the order of the parameters, positional ones first, with the
    spaces of `rendered`. References are to earlier calls only, in strings too, where any other dollar sign is doubled.
    Objects with properties have no others; schemas that refer to themselves are followed some levels deep.

    Raises `UsageError` for `most` and `characters` out of range, for a tool with the name of a plan's ending, and for
    one whose parameters no plan can write.
    """
    if not 1 <= most <= MAX_CALLS:
        raise UsageError(f"{most} calls in a plan: expected 1 to {MAX_CALLS}.")
    check_names(tool.name for tool in tools)
    _check_characters(characters)
    thought = "THOUGHT? " if thoughts else ""
    values = ValueGrammar(characters)
    call = values.rule([_call(values, tool) for tool in tools]) if tools else ""
    rules = [
        "start: plan::0",
        f'plan::_: {thought}number::_ "join()"'
        + (f' | {thought}number::_ {call} "\\n" plan::incr(_) %if lt(_, {most})' if tools else ""),
        *_numbers(known, most),
        THOUGHT if thoughts else "",
        *(values.rules if tools else ()),
        "",
    ]
    return "\n".join(rules)


def turn_grammar(tools: Sequence[Tool], known: Collection[int] = (), characters: int = STRING_CHARACTERS) -> str:
    """Return the grammar of one turn of ReAct: after a thought or none, the next call, or "Answer: " and text.

    `characters`: see `plan_grammar`.

    Raises `UsageError` as `plan_grammar` does.
    """
    check_names(tool.name for tool in tools)
    _check_characters(characters)
    if not tools:
        return f"start: THOUGHT? ANSWER\n{THOUGHT}\n{ANSWER}\n"
    values = ValueGrammar(characters)
    call = values.rule([_call(values, tool) for tool in tools])
    rules = [
        "start: THOUGHT? (turn::0 | ANSWER)",
        f"turn::_: number::_ {call}",
        *_numbers(known, 1),
        THOUGHT,
        ANSWER,
        *values.rules,
        "",
    ]
    return "\n".join(rules)


def _check_characters(characters: int) -> None:
    if not 1 <= characters <= MOST_STRING_CHARACTERS:
        raise UsageError(f"{characters} characters in a string of a plan: expected 1 to {MOST_STRING_CHARACTERS}.")


def _numbers(known: Collection[int], most: int) -> list[str]:
    """Return the rules of the numbers of calls and of the references to them."""
    first = max(known, default=0) + 1
    own = range(first, first + most)
    bare = [*(f'"${number}"' for number in sorted(known)), *_by_place(own, '"${}" %if gt(_, {})')]
    braced = [*(f'"${{{number}}}"' for number in sorted(known)), *_by_place(own, '"${{{}}}" %if gt(_, {})')]
    numbers = _by_place(range(first, first + most + 1), '"{}. " %if eq(_, {})')
    return [
        f"number::_: {' | '.join(numbers)}",
        "ref::_: bare::_ | braced::_",
        f"bare::_: {' | '.join(bare)}",
        f"braced::_: {' | '.join(braced)}",
    ]


def _by_place(numbers: Sequence[int], form: str) -> list[str]:
    return [form.format(number, place) for place, number in enumerate(numbers)]


def _call(grammar: ValueGrammar, tool: Tool) -> str:
    """Return the text of a call: some parameters by place, the others by name, in order.

    The rules that it needs are added to `grammar`. Raises `UsageError` if there is none.
    """
    values = {name: grammar.value(schema, tool.parameters) for name, schema in tool.properties.items()}
    entries = [
        NamedValue(f"{literal(f'{name}=')} {value}" if value and KEYWORD.fullmatch(name) else "", name in tool.required)
        for name, value in values.items()
    ]
    places = list(values.values())
    count = next((place for place, each in enumerate(places) if each is None), len(places))  # by place, at most
    rest = None  # what follows the parameters before this place, which were all given
    for place in range(count, 0, -1):
        by_name = grammar.chain(entries[place:], first=False)
        by_place = f'", " {places[place]} {rest}' if rest else None
        alternatives = [each for each in (by_name, by_place) if each]
        rest = grammar.rule(alternatives) if alternatives else None
    by_place = f"{places[0]} {rest}" if rest else None
    alternatives = [each for each in (grammar.chain(entries, first=True), by_place) if each]
    if not alternatives:
        names = ", ".join(name for name in tool.properties if name in tool.required)
        raise UsageError(f"tool {tool.name!r}: no plan can write {names}. Simplify their schemas, or leave it out.")
    return f'{literal(f"{tool.name}(")} {grammar.rule(alternatives)} ")"'
