"""Rules and terminals of a grammar, in llguidance's variant of Lark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from intaglio.runtime.sampling.json_schema.patterns import escaped

MAX_RULES = 50_000
JSON_CONSTANTS = ("null", "false", "true")
NEVER = "/[a&&b]/"  # the terminal of no text


class RuleCall(NamedTuple):
    """A rule that is referred to."""

    name: str


class Alternative(NamedTuple):
    """One way to write a rule."""

    text: str
    calls: frozenset[str]  # the rules that it needs


@dataclass(frozen=True)
class Notation:
    """How the object of a tool's arguments is written where that is not JSON.

    It is members with `separator` between them; a member is `before_name`, its name, `after_name`, its value,
    `after_value`. Values are as in JSON, but for `raw_strings` and `constants`.
    """

    names: str  # regular expression of the whole of a name that can be written
    separator: str = ""
    before_name: str = ""
    after_name: str = ""
    after_value: str = ""
    raw_strings: bool = False  # members that are strings are raw text up to `after_value`
    constants: tuple[str, str, str] = JSON_CONSTANTS  # null, false and true

    @property
    def mark(self) -> str:
        """The visible part of `after_value`, which no value contains."""
        return self.after_value.strip()


EMPTY = Alternative('""', frozenset())


def literal(text: str) -> str:
    """Return a string of the grammar."""
    return json.dumps(text, ensure_ascii=False)


def sequence(*parts: str | RuleCall | Alternative) -> Alternative:
    """Return what is written one part after another; a string is text of the grammar."""
    calls: set[str] = set()
    texts = []
    for part in parts:
        if isinstance(part, RuleCall):
            calls.add(part.name)
            texts.append(part.name)
        elif isinstance(part, Alternative):
            calls |= part.calls
            texts.append(part.text)
        else:
            texts.append(part)
    return Alternative(" ".join(filter(None, texts)), frozenset(calls))


class Rules:
    """The rules so far."""

    def __init__(
        self,
        comma: str = ",",
        colon: str = ":",
        whitespace: str | None = None,
        prefix: str = "v",
        notation: Notation | None = None,
    ):
        """`comma`, `colon`: what separates items, and keys from values; `prefix`: of the names of rules.

        `whitespace`: regular expression of what may stand between all of them; None: nothing. `notation`: of the
        outermost object; None: JSON.
        """
        self.notation = notation
        self.null, self.false, self.true = map(literal, notation.constants if notation else JSON_CONSTANTS)
        self._without = f" & ~/(?s:.*){escaped(notation.mark)}(?s:.*)/" if notation and notation.mark else ""
        self.comma, self.colon = literal(comma), literal(colon)
        self._whitespace = whitespace
        self._parametric: set[str] = set()
        self._lazy: set[str] = set()
        self._prefix = prefix
        self._rules: dict[str, Sequence[Alternative]] = {}
        self._names: dict[tuple[Alternative, ...], str] = {}
        self._terminals: dict[str, str] = {}

    def reserve(self) -> str:
        """Return the name of a rule that is defined later."""
        name = f"{self._prefix}{len(self._rules)}"
        self._rules[name] = ()
        return name

    @property
    def many(self) -> bool:
        """Whether there are too many rules."""
        return len(self._rules) > MAX_RULES

    def define(self, name: str, alternatives: Iterable[Alternative], parametric: bool = False) -> None:
        """Say how a rule, or one with a parameter, is written."""
        self._rules[name] = tuple(dict.fromkeys(alternatives))
        if parametric:
            self._parametric.add(name)

    def json(self, schema: Mapping[str, Any]) -> Alternative:
        """Return values of a schema that the library writes itself."""
        skipped = (
            {"whitespace_flexible": False} if self._whitespace is None else {"whitespace_pattern": self._whitespace}
        )
        return sequence(f"%json {json.dumps({**schema, 'x-guidance': skipped})}")

    def rule(self, alternatives: Iterable[Alternative]) -> RuleCall:
        """Return the rule of some alternatives; the same one for the same."""
        found = tuple(dict.fromkeys(alternatives))
        if found not in self._names:
            self._names[found] = self.reserve()
            self.define(self._names[found], found)
        return RuleCall(self._names[found])

    def terminal(self, expression: str) -> str:
        """Return the name of the terminal of an expression."""
        return self._terminals.setdefault(expression, f"{self._prefix.upper()}T{len(self._terminals)}")

    def shortest(self, expression: str) -> RuleCall:
        """Return the rule of the shortest text of an expression: of one that ends as soon as it matches."""
        rule = self.rule([sequence(self.terminal(expression))])
        self._lazy.add(rule.name)
        return rule

    def string(self, expression: str) -> str:
        """Return the name of the terminal of an expression of strings."""
        return self.terminal(expression + self._without)

    def optional(self, alternative: Alternative, most: int | None) -> RuleCall:
        """Return a rule for an alternative from 0 to `most` times."""
        if most is None:
            return self.rule([EMPTY, Alternative(f"({alternative.text})+", alternative.calls)])
        if most < 1:
            return self.rule([EMPTY])
        return self.rule([EMPTY, Alternative(f"({alternative.text}){{1,{most}}}", alternative.calls)])

    def text(self, start: RuleCall) -> str | None:
        """Return the grammar's text, without rules whose texts never end; None if `start` is one of them."""
        ends = self._ending()
        if start.name not in ends:
            return None
        lines = []
        for name in self._reached(start.name, ends):
            kept = [each.text for each in self._rules[name] if each.calls <= ends]
            attribute = "::_" if name in self._parametric else "[lazy]" if name in self._lazy else ""
            lines.append(f"{name}{attribute}: {' | '.join(kept)}")
        return "\n".join([*lines, *(f"{name}: {text}" for text, name in self._terminals.items())])

    def _ending(self) -> set[str]:
        """Return the rules that have a text."""
        waiting: dict[str, list[tuple[str, set[str]]]] = {}
        ends: set[str] = set()
        new = []
        for name, alternatives in self._rules.items():
            for each in alternatives:
                left = set(each.calls)
                for call in each.calls:
                    waiting.setdefault(call, []).append((name, left))
                if not left:
                    new.append(name)
        while new:
            name = new.pop()
            if name in ends:
                continue
            ends.add(name)
            for other, left in waiting.get(name, ()):
                left.discard(name)
                if not left:
                    new.append(other)
        return ends

    def _reached(self, start: str, ends: set[str]) -> list[str]:
        """Return the rules that `start` leads to, in the order of their names."""
        reached, new = {start}, [start]
        while new:
            calls = {call for each in self._rules[new.pop()] if each.calls <= ends for call in each.calls}
            new += calls - reached
            reached |= calls
        return [name for name in self._rules if name in reached]
