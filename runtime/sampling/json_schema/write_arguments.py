"""Rules for the arguments of a tool in a notation of their own; the values in them are as in JSON."""

from __future__ import annotations

import re
from dataclasses import replace

from intaglio.runtime.sampling.json_schema.containers import Objects
from intaglio.runtime.sampling.json_schema.document import UnsupportedError
from intaglio.runtime.sampling.json_schema.expand import Expander
from intaglio.runtime.sampling.json_schema.nodes import Known, Node
from intaglio.runtime.sampling.json_schema.rules import NEVER, Alternative, Notation, Rules, literal, sequence
from intaglio.runtime.sampling.json_schema.texts import Texts
from intaglio.runtime.sampling.json_schema.write_objects import ObjectRules, ValueRule


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
