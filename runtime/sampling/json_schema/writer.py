"""Write a JSON schema as rules of a grammar: JSON whose value validates for any handling of duplicate keys."""

from __future__ import annotations

import json
from collections import deque
from functools import lru_cache

from intaglio.runtime.sampling.json_schema.document import Document, Schema, UnsupportedError
from intaglio.runtime.sampling.json_schema.expand import CircularError, Expander
from intaglio.runtime.sampling.json_schema.nodes import Node
from intaglio.runtime.sampling.json_schema.numbers import DIGITS, Numbers
from intaglio.runtime.sampling.json_schema.patterns import PatternError
from intaglio.runtime.sampling.json_schema.rules import NEVER, Alternative, Notation, RuleCall, Rules, sequence
from intaglio.runtime.sampling.json_schema.values import TooManyError, Values
from intaglio.runtime.sampling.json_schema.write_arrays import ArrayRules
from intaglio.runtime.sampling.json_schema.write_objects import ArgumentRules, ObjectRules


@lru_cache(64)
def schema_rules(
    schema: str,
    comma: str = ",",
    colon: str = ":",
    whitespace: str | None = None,
    prefix: str = "v",
    notation: Notation | None = None,
) -> tuple[str, str]:
    """Return the name of the rule of a schema's values, and the text of all of its rules; see `Rules`.

    `schema`: JSON. `notation`: how its values, which are objects then, are written; None: as JSON. Raises
    `UnsupportedError` as `write_schema`, and for a schema without values.
    """
    rules = Rules(comma, colon, whitespace, prefix, notation)
    start = write_schema(json.loads(schema), rules)
    text = rules.text(start)
    if text is None:
        raise UnsupportedError("#", "it matches no text that ends. Fix it.")
    return start.name, text


def schema_grammar(schema: str, whitespace: str) -> str:
    """Return the grammar of a schema's values, with `whitespace` or none between their parts; see `schema_rules`."""
    start, rules = schema_rules(schema, whitespace=whitespace)
    # Without the option, whitespace may be repeated without end.
    return f'%llguidance {{"ignore_once": true}}\nstart: {start}\n{rules}\n%ignore /{whitespace}/\n'


def write_schema(schema: Schema, rules: Rules) -> RuleCall:
    """Add the rules of a schema; return the one of its values.

    Raises `UnsupportedError` for a schema that is not valid, has references to elsewhere, or cannot be enforced.
    """
    try:
        return _Writer(schema, rules).write()
    except CircularError as error:
        raise UnsupportedError("#", "is defined by itself: it matches no text that ends. Fix its $ref.") from error
    except RecursionError as error:
        raise UnsupportedError("#", "is nested too deep. Simplify it.") from error
    except TooManyError as error:
        raise UnsupportedError("#", "has too many combinations. Simplify its anyOf, oneOf, if and not.") from error


class _Writer:
    def __init__(self, schema: Schema, rules: Rules):
        document = Document(schema)
        self._expander = Expander(document)
        self._start = self._expander.leaf(schema)
        self._rules = rules
        self._names: dict[Node, str] = {}
        self._waiting: deque[tuple[Node, str]] = deque()

    def write(self) -> RuleCall:
        where = "$"
        try:
            start = self._arguments(self._rules.notation) if self._rules.notation else self._value(self._start, where)
            while self._waiting:
                node, where = self._waiting.popleft()
                self._expander.check_time()
                self._rules.define(self._names[node], self._alternatives(self._expander.expand(node), where))
                if self._rules.many:
                    raise UnsupportedError(where, "has too many combinations. Simplify its anyOf, oneOf, if and not.")
        except PatternError as error:
            raise UnsupportedError(where, f"pattern: {error}. Simplify it.") from error
        return start

    def _arguments(self, notation: Notation) -> RuleCall:
        """Return the rule of the outermost objects."""
        found = self._expander.expand(self._start).objects
        rules = [ArgumentRules(notation, each, self._expander, self._rules, self._value) for each in found]
        return self._rules.rule(alternative for each in rules for alternative in each.alternatives())

    def _value(self, node: Node, where: str) -> RuleCall:
        """Return the rule of a node's values. `where`: a place in the value, such as $.items[], for messages."""
        if node not in self._names:
            self._names[node] = self._rules.reserve()
            self._waiting.append((node, where))
        return RuleCall(self._names[node])

    def _alternatives(self, values: Values, where: str) -> list[Alternative]:
        found = [sequence(self._rules.null)] if values.null else []
        found += [sequence(self._rules.true if each else self._rules.false) for each in sorted(values.booleans)]
        found += [self._number(each, where) for each in values.numbers]
        expressions = [each.expression() for each in values.texts]
        found += [sequence(self._rules.string(each or NEVER)) for each in expressions]
        for arrays in values.arrays:
            found += ArrayRules(arrays, self._expander, self._rules, self._value, where).alternatives()
        for objects in values.objects:
            found += ObjectRules(objects, self._expander, self._rules, self._value, where).alternatives()
        return found

    def _number(self, numbers: Numbers, where: str) -> Alternative:
        expression = numbers.expression()
        if expression is not None:
            return sequence(self._rules.terminal(expression or NEVER))
        if schema := numbers.schema():
            return self._rules.json(schema)
        if numbers.factors:
            factors = " and ".join(str(float(each)) for each in numbers.factors)
            cause = f"multipleOf {factors}: validators round its multiples. Use whole numbers."
            raise UnsupportedError(numbers.place, cause, "multipleOf")
        raise UnsupportedError(where, f"bounds of more than {DIGITS} digits that are excluded. Round them.")
