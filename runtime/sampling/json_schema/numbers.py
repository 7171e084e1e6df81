"""Sets of numbers, and the regular expression of how they are written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

from intaglio.runtime.sampling.json_schema.decimals import at_least, at_most, decimal, naturals

DIGITS = 15  # decimals of so many digits keep their order as floating-point numbers
MOST_MULTIPLES = 1000  # that are listed
LARGEST_FACTOR = 10**6
LARGEST_FRACTION = 10**9  # so that a multiple of 3/4 keeps its digits
ANY = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
INTEGER = r"-?(0|[1-9][0-9]*)"
FRACTION = r"-?(0|[1-9][0-9]*)\.[0-9]*[1-9][0-9]*"
SHORT = rf"-?[0-9]+|-?([0-9]\.?){{1,{DIGITS}}}"


def exact(value: float) -> Fraction:
    """Return a number with its spelling in the JSON text."""
    return Fraction(Decimal(repr(value))) if isinstance(value, float) else Fraction(value)


@dataclass(frozen=True)
class Numbers:
    """All numbers between two bounds that are multiples of some numbers."""

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False  # whether `low` itself is left out
    high_open: bool = False
    whole: bool | None = None  # whole numbers only, others only, or both
    factors: frozenset[Fraction] = frozenset()
    values: frozenset[Fraction] | None = None  # one of these
    unsure: bool = False  # whether values were left out that some validators take
    place: str = field(default="#", compare=False)  # of the schema with the factors, for messages

    def both(self, other: Numbers) -> Numbers:
        """Return the numbers that are in both sets."""
        given = [each for each in (self.values, other.values) if each is not None]
        if given:
            shared = frozenset.intersection(*given)
            sides = (self, other)
            kept = frozenset(each for each in shared if all(side.admits(each) and side._agreed(each) for side in sides))
            unsure = any(side.unsure for side in sides) or any(
                all(side._may_admit(each) for side in sides) for each in shared - kept
            )
            return Numbers(values=kept, unsure=unsure)
        low, low_open = _tighter((self.low, self.low_open), (other.low, other.low_open), 1)
        high, high_open = _tighter((self.high, self.high_open), (other.high, other.high_open), -1)
        whole = other.whole if self.whole is None else self.whole
        if None not in (self.whole, other.whole) and self.whole != other.whole:
            low, high = Fraction(1), Fraction(0)
        place = self.place if self.factors else other.place
        return Numbers(low, high, low_open, high_open, whole, self.factors | other.factors, place=place)

    @property
    def empty(self) -> bool:
        """Whether there is certainly no such number."""
        if self.values is not None:
            return not self.values and not self.unsure
        if self.low is None or self.high is None:
            return False
        if self.low >= self.high:
            outside = self.low > self.high or self.low_open or self.high_open
            return outside or not self._may_admit(self.low)
        return bool(self.whole) and self._least() > self._most()

    def admits(self, value: Fraction) -> bool:
        """Whether `value` is one of them."""
        return self._within(value) and all((value / factor).denominator == 1 for factor in self.factors)

    def _within(self, value: Fraction) -> bool:
        """Whether `value` is between the bounds, and of the right kind."""
        if self.values is not None and value not in self.values:
            return False
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.high_open and value == self.high)):
            return False
        return self.whole is None or (value.denominator == 1) == self.whole

    def _agreed(self, value: Fraction) -> bool:
        """Whether validators that divide floating-point numbers take `value` for a multiple."""
        return all(_float_multiple(value, factor) for factor in self.factors)

    def _may_admit(self, value: Fraction) -> bool:
        """Whether `value` is one of them for some validator."""
        return self._within(value) and (self._agreed(value) or self.admits(value))

    def negated(self) -> tuple[list[Numbers], bool]:
        """Return sets of all other numbers, and whether they are all of them."""
        if self.unsure:
            return [], False
        if self.values is not None:
            ends = [None, *sorted(self.values), None]
            return [Numbers(low, high, True, True) for low, high in pairwise(ends)], True
        others = []
        if self.low is not None:
            others.append(Numbers(high=self.low, high_open=not self.low_open))
        if self.high is not None:
            others.append(Numbers(low=self.high, low_open=not self.high_open))
        if self.whole is not None:
            others.append(Numbers(whole=not self.whole))
        return others, not self.factors

    def _least(self) -> int:
        assert self.low is not None
        return math.floor(self.low) + 1 if self.low_open else math.ceil(self.low)

    def _most(self) -> int:
        assert self.high is not None
        return math.ceil(self.high) - 1 if self.high_open else math.floor(self.high)

    @property
    def factor(self) -> Fraction:
        """The number that all of them are multiples of."""
        factors = [*self.factors, *([Fraction(1)] if self.whole else [])]
        return Fraction(
            math.lcm(*(each.numerator for each in factors)), math.gcd(*(each.denominator for each in factors))
        )

    def _multiples(self) -> list[Fraction] | None:
        """Return the multiples between the bounds that floating-point numbers agree on; None if there are too many."""
        unit = self.factor
        if self.low is None or self.high is None or (self.high - self.low) / unit > MOST_MULTIPLES:
            return None
        places = range(math.ceil(self.low / unit), math.floor(self.high / unit) + 1)
        values = [unit * place for place in places if self.admits(unit * place)]
        return list(filter(self._agreed, values))

    def schema(self) -> dict[str, Any]:
        """Return a schema of multiples that llguidance takes, where `expression` has none; empty if there is none.

        Floating-point numbers divide without rounding by whole numbers, and by fractions of powers of two.
        """
        if not self.factors or self.whole is False:
            return {}
        unit, whole = self.factor, self.factor.denominator == 1
        if unit.denominator & (unit.denominator - 1) or unit > LARGEST_FACTOR or unit.denominator > LARGEST_FACTOR:
            return {}
        rounded = not whole and unit.numerator > 1
        low, high = (
            bound if bound is not None or not rounded else Fraction(sign * LARGEST_FRACTION)
            for bound, sign in ((self.low, -1), (self.high, 1))
        )
        if any(bound is not None and _digits(bound) > DIGITS for bound in (low, high)):
            return {}
        found: dict[str, Any] = {"type": "integer" if whole else "number", "multipleOf": _number(unit)}
        if low is not None:
            found["exclusiveMinimum" if self.low_open else "minimum"] = _number(low)
        if high is not None:
            found["exclusiveMaximum" if self.high_open else "maximum"] = _number(high)
        return found

    def expression(self) -> str | None:
        """Return the terminal of the numbers, as llguidance has them in Lark; None if it has none."""
        if self.values is not None or self.factors:
            values = self._multiples() if self.values is None else sorted(self.values)
            if values is not None:
                return f"/{'|'.join(map(written, values))}/" if values else ""
            return None
        if self.low is None and self.high is None:
            short = f"/{FRACTION}/ & /{SHORT}/"
            return {None: f"/{ANY}/", True: f"/{INTEGER}/", False: short}[self.whole]
        if self.whole:
            return f"/{_whole_range(self)}/"
        if any(opened and bound is not None and _digits(bound) > DIGITS for bound, opened in self._bounds()):
            return None
        parts = [f"/{SHORT}/"]
        if self.low is not None:
            parts.append(f"/{at_least(self.low, self.low_open)}/")
        if self.high is not None:
            parts.append(f"/{at_most(self.high, self.high_open)}/")
        expression = " & ".join(parts)
        return expression if self.whole is None else f"{expression} & /{FRACTION}/"

    def _bounds(self) -> list[tuple[Fraction | None, bool]]:
        return [(self.low, self.low_open), (self.high, self.high_open)]


def _number(value: Fraction) -> float:
    return int(value) if value.denominator == 1 else float(value)


def written(value: Fraction) -> str:
    """Return a number as JSON has it, escaped as a regular expression."""
    return decimal(value).replace(".", r"\.")


def _digits(value: Fraction) -> int:
    return sum(each.isdigit() for each in decimal(value))


def _float_multiple(value: Fraction, factor: Fraction) -> bool:
    """Whether a validator that divides floating-point numbers takes `value` for a multiple."""
    if factor.denominator == 1 and value.denominator == 1:
        return True
    quotient = (int(value) if value.denominator == 1 else float(value)) / float(factor)
    return math.isfinite(quotient) and quotient == int(quotient)


def _tighter(
    one: tuple[Fraction | None, bool], other: tuple[Fraction | None, bool], sign: int
) -> tuple[Fraction | None, bool]:
    if one[0] is None or other[0] is None:
        return other if one[0] is None else one
    if one[0] == other[0]:
        return one[0], one[1] or other[1]
    return one if sign * (one[0] - other[0]) > 0 else other


def _whole_range(numbers: Numbers) -> str:
    low = None if numbers.low is None else numbers._least()
    high = None if numbers.high is None else numbers._most()
    parts = []
    if high is None or high >= 0:
        parts.append(naturals(max(low or 0, 0), high))
    if low is None or low < 0:
        parts.append(f"-({naturals(max(-high, 1) if high is not None else 1, None if low is None else -low)})")
    return "|".join(f"({part})" for part in parts)
