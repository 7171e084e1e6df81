"""Rules for objects.

Keys are written in the one spelling that JSON has for each character, so that two of them that a parser takes for the
same are the same text. Known names come in the order of the schema, each at most once; then other keys, any of which
may come twice, as all values of one key are of the same schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

from intaglio.runtime.sampling.json_schema.containers import Objects
from intaglio.runtime.sampling.json_schema.document import UnsupportedError
from intaglio.runtime.sampling.json_schema.expand import Expander
from intaglio.runtime.sampling.json_schema.nodes import NOTHING, Known, Node, all_of
from intaglio.runtime.sampling.json_schema.rules import (
    EMPTY,
    NEVER,
    Alternative,
    Notation,
    RuleCall,
    Rules,
    literal,
    sequence,
)
from intaglio.runtime.sampling.json_schema.texts import Texts

MAX_PATTERNS = 6
MAX_COUNTED = 4000  # states of an object whose properties are counted
ValueRule = Callable[[Node, str], RuleCall]


@dataclass(frozen=True)
class Entry:
    """A known name and its value."""

    text: Alternative
    required: bool


def free_keys(objects: Objects, expander: Expander, where: str) -> dict[Node, list[Texts]]:
    """Return the keys that are not known, by the node of their values."""
    patterns = objects.patterns
    if len(patterns) > MAX_PATTERNS:
        raise UnsupportedError(where, f"{len(patterns)} patterns of keys, expected at most {MAX_PATTERNS}. Join some.")
    subsets = [set(each) for size in range(len(patterns) + 1) for each in combinations(patterns, size)]
    named = expander.expand(all_of(*objects.names)).texts
    nodes = {objects.free(each) for each in subsets}
    if len(nodes) == 1:
        patterns, subsets = [], [set()]
    found: dict[Node, list[Texts]] = {}
    for matched in subsets:
        node = nodes.copy().pop() if len(nodes) == 1 else objects.free(matched)
        if not expander.possible(node):
            continue
        own = Texts(
            excluded=frozenset(objects.known), patterns=frozenset(matched), without=frozenset(patterns) - matched
        )
        keys = [each for each in (own.both(other) for other in named) if not each.empty]
        if keys:
            found.setdefault(node, []).extend(keys)
    return found


class ObjectRules:
    """The rules of one set of objects."""

    brackets = ('"{"', '"}"')

    def __init__(self, objects: Objects, expander: Expander, rules: Rules, value: ValueRule, where: str):
        self._objects, self._expander, self._rules, self._value, self._where = objects, expander, rules, value, where
        self._comma = rules.comma
        nodes = {name: expander.member(objects, name) for name in objects.known}
        self._possible = all(nodes[name] != NOTHING for name in objects.required)
        self._entries = [
            Entry(self._member(self._key(name), node, f"{where}.{name}"), name in objects.required)
            for name, node in nodes.items()
            if node != NOTHING
        ]
        free = free_keys(objects, expander, where) if self._possible else {}
        pairs = [self._member(self._free_key(each), node, f"{where}.*") for node, keys in free.items() for each in keys]
        self._pair = sequence(rules.rule(pairs)) if pairs else None
        self._rest: dict[tuple[int, int, bool], RuleCall] = {}
        needed = sum(each.required for each in self._entries)
        most = objects.most
        self._least = objects.least if objects.least > needed else 0
        self._most = most if most is not None and (most < len(self._entries) or pairs) else None
        self._top = self._least if self._most is None else max(self._least, self._most + 1)
        self._check()

    def _key(self, name: str) -> str:
        """Return how a name is written."""
        return literal(json.dumps(name, ensure_ascii=False))

    def _free_key(self, texts: Texts) -> str:
        """Return how one of some names is written."""
        return self._rules.string(texts.expression())

    def _member(self, key: str, node: Node, where: str) -> Alternative:
        """Return how a key and its value are written."""
        return sequence(key, self._rules.colon, self._value(node, where))

    def _check(self) -> None:
        distinct = len(self._entries) + (self._pair is not None)
        if self._pair is not None and self._least > distinct:
            cause = f"minProperties {self._least}: keys that are no properties may be equal, only one of them counts"
            raise UnsupportedError(self._where, f"{cause}. Name the properties.")
        if len(self._entries) * self._top > MAX_COUNTED:
            raise UnsupportedError(self._where, "minProperties or maxProperties of too many properties. Leave it out.")

    def alternatives(self) -> list[Alternative]:
        """Return the ways to write the objects."""
        if not self._possible:
            return []
        # From the last to the first, so that no recursion is as deep as there are properties.
        for place in range(len(self._entries), -1, -1):
            for count in range(min(place, self._top) + 1):
                for after in {count > 0, place > 0 and self._top == 0}:
                    self._rest[place, count, after] = self._rules.rule(self._rest_of(place, count, after))
        opening, closing = self.brackets
        return [sequence(opening, self._rest[0, 0, False], closing)]

    def _rest_of(self, place: int, count: int, after: bool) -> list[Alternative]:
        """Return what may follow when `count` entries before `place` were written; `after`: whether there were any."""
        comma = self._comma if after else ""
        if place == len(self._entries):
            return self._others(count, comma)
        entry, more = self._entries[place], min(count + 1, self._top)
        found = []
        if self._most is None or count < self._most:
            found.append(sequence(comma, entry.text, self._rest[place + 1, more, True]))
        if not entry.required:
            found.append(sequence(self._rest[place + 1, count, after]))
        return found

    def _others(self, count: int, comma: str) -> list[Alternative]:
        """Return what may follow the known names: other keys."""
        found = [EMPTY] if count >= self._least else []
        more = None if self._most is None else self._most - count
        if self._pair is not None and count + 1 >= self._least and (more is None or more > 0):
            again = self._rules.optional(sequence(self._comma, self._pair), None if more is None else more - 1)
            found.append(sequence(comma, self._pair, again))
        return found


class ArgumentRules(ObjectRules):
    """The rules of one set of objects, with members in another notation than JSON's."""

    brackets = ("", "")

    def __init__(self, notation: Notation, objects: Objects, expander: Expander, rules: Rules, value: ValueRule):
        self._notation = notation
        super().__init__(objects, expander, rules, value, "$")
        self._comma = _literal(notation.separator)

    def _key(self, name: str) -> str:
        if not re.fullmatch(self._notation.names, name):
            cause = f"the format of calls in the chat template cannot write the name {name!r:.80}. Rename it."
            raise UnsupportedError("#/properties", cause)
        return literal(name)

    def _free_key(self, texts: Texts) -> str:
        named = texts.both(Texts(patterns=frozenset([f"^({self._notation.names})$"])))
        return self._rules.terminal(named.raw_expression() or NEVER)

    def _member(self, key: str, node: Node, where: str) -> Alternative:
        notation, after = self._notation, _literal(self._notation.after_value)
        head = sequence(_literal(notation.before_name), key, literal(notation.after_name))
        if not notation.raw_strings:
            return sequence(head, self._value(node, where), after)
        values = self._expander.expand(node)
        before, mark, rest = notation.after_value.partition(notation.mark)
        raw = [each.raw_expression(before + mark) for each in values.texts]
        found = [sequence(self._rules.shortest(each or NEVER), _literal(rest)) for each in raw]
        others = replace(values, texts=())
        if not others.empty:
            found.append(sequence(self._value(Known(others), where), after))
        return sequence(head, self._rules.rule(found))


def _literal(text: str) -> str:
    """Return a string of the grammar; nothing for an empty one."""
    return literal(text) if text else ""
