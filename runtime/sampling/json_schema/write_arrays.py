"""Rules for arrays."""

from __future__ import annotations

from collections.abc import Callable

from intaglio.runtime.sampling.json_schema.containers import Arrays, Contained
from intaglio.runtime.sampling.json_schema.document import UnsupportedError
from intaglio.runtime.sampling.json_schema.expand import Expander
from intaglio.runtime.sampling.json_schema.nodes import Constant, Node, all_of, constant, negate
from intaglio.runtime.sampling.json_schema.rules import EMPTY, Alternative, RuleCall, Rules, sequence

MAX_STATES = 2000  # of an array whose items are counted
MAX_UNIQUE = 64  # different values of the items of an array without equal ones
ValueRule = Callable[[Node, str], RuleCall]


class ArrayRules:
    """The rules of one set of arrays."""

    def __init__(self, arrays: Arrays, expander: Expander, rules: Rules, value: ValueRule, where: str):
        self._arrays, self._expander, self._rules, self._where = arrays, expander, rules, where
        self._value = value
        places = range(len(arrays.prefix))
        impossible = next((place for place in places if not expander.possible(arrays.item(place))), None)
        most = arrays.most
        if impossible is None and not expander.possible(arrays.rest):
            impossible = len(arrays.prefix)
        self._most = impossible if most is None else most if impossible is None else min(most, impossible)

    def alternatives(self) -> list[Alternative]:
        """Return the ways to write the arrays."""
        if self._most is not None and self._most < self._arrays.least:
            return []
        if self._arrays.unique is not None and (self._most is None or self._most > 1):
            return self._unique(self._arrays.unique)
        return self._counted() if self._arrays.contains else self._plain()

    def _item(self, place: int, *others: Node) -> RuleCall:
        return self._value(all_of(self._arrays.item(place), *others), f"{self._where}[]")

    def _plain(self) -> list[Alternative]:
        """Arrays by their length: the first items one by one, the others repeated."""
        first, least, most = len(self._arrays.prefix), self._arrays.least, self._most
        if most is not None and most <= first:
            after: RuleCall | None = None
            first = most
        else:
            after = self._tail(max(least - first, 0), None if most is None else most - first, first > 0)
        for place in range(first - 1, -1, -1):
            comma = self._rules.comma if place else ""
            going = sequence(comma, self._item(place), *([after] if after else []))
            after = self._rules.rule([going] if place < least else [EMPTY, going])
        return [sequence('"["', *([after] if after else []), '"]"')]

    def _tail(self, least: int, most: int | None, after: bool) -> RuleCall:
        """Return the rule for items without a place of their own; `after`: whether others stand before them."""
        item = self._item(len(self._arrays.prefix))
        again = sequence(self._rules.comma, item)
        if after:
            return self._repeated(again, least, most)
        following = self._repeated(again, max(least - 1, 0), None if most is None else most - 1)
        going = sequence(item, following)
        return self._rules.rule([going] if least else [EMPTY, going])

    def _repeated(self, item: Alternative, least: int, most: int | None) -> RuleCall:
        if not least:
            return self._rules.optional(item, most)
        bounds = f"{{{least},{'' if most is None else most}}}"
        return self._rules.rule([Alternative(f"({item.text}){bounds}", item.calls)])

    def _counted(self) -> list[Alternative]:
        """Arrays some of whose items are of a schema: a state for each place and each count of such items."""
        if len(self._arrays.contains) > 1:
            raise UnsupportedError(self._where, "contains more than once for one array. Leave one out.")
        (contained,) = self._arrays.contains
        places = max(1, len(self._arrays.prefix), self._arrays.least, self._most or 0)
        counts = contained.least if contained.most is None else max(contained.least, contained.most)
        if (places + 1) * (counts + 1) > MAX_STATES:
            raise UnsupportedError(self._where, "contains in an array of too many items. Lower its bounds.")
        states = {(place, count): self._rules.reserve() for place in range(places + 1) for count in range(counts + 1)}
        for (place, count), name in states.items():
            self._rules.define(name, self._state(place, count, places, counts, contained, states))
        return [sequence('"["', RuleCall(states[0, 0]), '"]"')]

    def _state(
        self,
        place: int,
        count: int,
        places: int,
        counts: int,
        contained: Contained,
        states: dict[tuple[int, int], str],
    ) -> list[Alternative]:
        found = [EMPTY] if place >= self._arrays.least and count >= contained.least else []
        if self._most is not None and place >= self._most:
            return found
        further = min(place + 1, places)
        # A comma stands before all items but the first, whose state is left at once.
        comma = self._rules.comma if place else ""
        start = (further, min(count + 1, counts)), (further, count)
        if contained.most is None or count < contained.most:
            found.append(sequence(comma, self._item(place, contained.node), RuleCall(states[start[0]])))
        rest = () if contained.most is None else (negate(contained.node),)
        if contained.most is None or self._expander.possible(all_of(self._arrays.item(place), *rest)):
            found.append(sequence(comma, self._item(place, *rest), RuleCall(states[start[1]])))
        return found

    def _unique(self, path: str) -> list[Alternative]:
        """Arrays without equal items: each of the values, which are listed, at most once, in any order."""
        values = self._listed()
        if values is None or self._arrays.prefix or self._arrays.contains:
            cause = f"uniqueItems: items of more than {MAX_UNIQUE} values. List them with enum."
            raise UnsupportedError(path, cause, "uniqueItems")
        least, most = self._arrays.least, min(len(values), self._most if self._most is not None else len(values))
        if least > most:
            return []
        name = self._rules.reserve()
        items = [self._value(each, f"{self._where}[]") for each in values]
        below = f"bit_count_lt(_, {most})"
        more = [
            Alternative(
                f"{self._rules.comma} {item.name} {name}::set_bit({bit}) %if and(bit_clear({bit}), {below})",
                frozenset({item.name, name}),
            )
            for bit, item in enumerate(items)
        ]
        self._rules.define(name, [Alternative(f'"" %if bit_count_ge(_, {least})', frozenset()), *more], True)
        first = [
            Alternative(f"{item.name} {name}::{1 << bit}", frozenset({item.name, name}))
            for bit, item in enumerate(items)
        ]
        started = self._rules.rule([*([] if least else [EMPTY]), *first])
        return [sequence('"["', started, '"]"')]

    def _listed(self) -> list[Constant] | None:
        """Return the values of the items, if they are few."""
        values = self._expander.expand(self._arrays.rest)
        endless = any(numbers.values is None for numbers in values.numbers)
        endless = endless or any(texts.values is None for texts in values.texts)
        if endless or values.arrays or values.objects:
            return None
        found: list[Constant] = [constant(None)] if values.null else []
        found += [constant(each) for each in sorted(values.booleans)]
        found += [constant(each) for each in sorted({text for part in values.texts for text in part.values or ()})]
        numbers = sorted({number for part in values.numbers for number in part.values or ()})
        found += [constant(int(each) if each.denominator == 1 else float(each)) for each in numbers]
        return found if len(found) <= MAX_UNIQUE else None
