"""Sets of numbers, and the regular expression of how they are written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

DIGITS = 15  # decimals of so many digits keep their order as floating-point numbers
MOST_MULTIPLES = 1000  # that are listed
LARGEST_FACTOR = 10**6
LARGEST_FRACTION = 10**9  # so that a multiple of 3/4 keeps its digits
ANY = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
INTEGER = r"-?(0|[1-9][0-9]*)"
FRACTION = r"-?(0|[1-9][0-9]*)\.[0-9]*[1-9][0-9]*"
SHORT = rf"-?[0-9]+|-?([0-9]\.?){{1,{DIGITS}}}"


def exact(value: float) -> Fraction:
    """Return a number of a JSON text as it is written there."""
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
    place: str = field(default="#", compare=False)  # of the schema with the factors, for messages

    def both(self, other: Numbers) -> Numbers:
        """Return the numbers that are in both sets."""
        given = [each for each in (self.values, other.values) if each is not None]
        if given:
            shared = frozenset.intersection(*given)
            return Numbers(values=frozenset(each for each in shared if self.admits(each) and other.admits(each)))
        low, low_open = _tighter((self.low, self.low_open), (other.low, other.low_open), 1)
        high, high_open = _tighter((self.high, self.high_open), (other.high, other.high_open), -1)
        whole = other.whole if self.whole is None else self.whole
        if None not in (self.whole, other.whole) and self.whole != other.whole:
            low, high = Fraction(1), Fraction(0)
        place = self.place if self.factors else other.place
        return Numbers(low, high, low_open, high_open, whole, self.factors | other.factors, None, place)

    @property
    def empty(self) -> bool:
        """Whether there is certainly no such number."""
        if self.values is not None:
            return not self.values
        if self.low is None or self.high is None:
            return False
        if self.low >= self.high:
            outside = self.low > self.high or self.low_open or self.high_open
            return outside or not self.admits(self.low)
        return bool(self.whole) and self._least() > self._most()

    def admits(self, value: Fraction) -> bool:
        """Whether `value` is one of them."""
        if self.values is not None and value not in self.values:
            return False
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.high_open and value == self.high)):
            return False
        if self.whole is not None and (value.denominator == 1) != self.whole:
            return False
        return all((value / factor).denominator == 1 for factor in self.factors)

    def negated(self) -> tuple[list[Numbers], bool]:
        """Return sets of all other numbers, and whether they are all of them."""
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
        return [value for value in values if all(_float_multiple(value, factor) for factor in self.factors)]

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
            parts.append(f"/{_at_least(self.low, self.low_open)}/")
        if self.high is not None:
            parts.append(f"/{_at_most(self.high, self.high_open)}/")
        expression = " & ".join(parts)
        return expression if self.whole is None else f"{expression} & /{FRACTION}/"

    def _bounds(self) -> list[tuple[Fraction | None, bool]]:
        return [(self.low, self.low_open), (self.high, self.high_open)]


def _number(value: Fraction) -> float:
    return int(value) if value.denominator == 1 else float(value)


def written(value: Fraction) -> str:
    """Return a number as JSON has it, escaped as a regular expression."""
    return _decimal(value).replace(".", r"\.")


def _decimal(value: Fraction) -> str:
    """Return all digits of a number that has finitely many."""
    scale = 0
    while value.denominator != 1 and (value * 10**scale).denominator != 1:
        scale += 1
    digits = str(abs(value.numerator * 10**scale // value.denominator)).rjust(scale + 1, "0")
    whole, fraction = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
    return f"{'-' if value < 0 else ''}{whole}{f'.{fraction}' if fraction else ''}"


def _digits(value: Fraction) -> int:
    return sum(each.isdigit() for each in _decimal(value))


def _float_multiple(value: Fraction, factor: Fraction) -> bool:
    """Whether a validator that divides floating-point numbers takes `value` for a multiple."""
    if factor.denominator == 1 and value.denominator == 1:
        return True
    quotient = (int(value) if value.denominator == 1 else float(value)) / float(factor)
    return quotient == int(quotient)


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
        parts.append(_naturals(max(low or 0, 0), high))
    if low is None or low < 0:
        parts.append(f"-({_naturals(max(-high, 1) if high is not None else 1, None if low is None else -low)})")
    return "|".join(f"({part})" for part in parts)


def _naturals(low: int, high: int | None) -> str:
    """Return the regular expression of whole numbers from `low`, not negative, to `high`."""
    if high is None:
        size = len(str(low))
        return f"{_naturals(low, 10**size - 1)}|[1-9][0-9]{{{size},}}"
    parts = []
    while len(str(low)) < len(str(high)):
        end = 10 ** len(str(low)) - 1
        parts.append(_same_length(str(low), str(end)))
        low = end + 1
    parts.append(_same_length(str(low), str(high)))
    return "|".join(parts)


def _same_length(low: str, high: str) -> str:
    """Return the regular expression of the digits from `low` to `high`, which are as many."""
    if low == high:
        return low
    if set(low) == {"0"} and set(high) == {"9"}:
        return f"[0-9]{{{len(low)}}}"
    first, last = low[0], high[0]
    if len(low) == 1:
        return f"[{first}-{last}]"
    if first == last:
        return f"{first}({_same_length(low[1:], high[1:])})"
    zeros, nines = "0" * (len(low) - 1), "9" * (len(low) - 1)
    parts = []
    if low[1:] != zeros:
        parts.append(f"{first}({_same_length(low[1:], nines)})")
        first = chr(ord(first) + 1)
    if high[1:] != nines:
        parts.append(f"{last}({_same_length(zeros, high[1:])})")
        last = chr(ord(last) - 1)
    if first <= last:
        parts.append(f"[{first}-{last}][0-9]{{{len(zeros)}}}")
    return "|".join(parts)


def _at_least(low: Fraction, opened: bool) -> str:
    """Return the regular expression of decimals from `low`, or above it."""
    if low >= 0:
        return _large(low, opened)
    return rf"(0|[1-9][0-9]*)(\.[0-9]+)?|-({_small(-low, opened)})"


def _at_most(high: Fraction, opened: bool) -> str:
    """Return the regular expression of decimals up to `high`, or below it."""
    if high > 0:
        return rf"-(0|[1-9][0-9]*)(\.[0-9]+)?|{_small(high, opened)}"
    return f"-({_large(-high, opened)}){'' if high or opened else '|0'}"


def _large(low: Fraction, opened: bool) -> str:
    """Return decimals from `low`, which is not negative."""
    whole, digits = math.floor(low), _decimal(low).partition(".")[2]
    parts = [rf"{whole}\.({_digits_from(digits, opened)})", rf"({_naturals(whole + 1, None)})(\.[0-9]+)?"]
    if not digits and not opened:
        parts = [str(whole), rf"{whole}\.[0-9]+", parts[1]]
    return "|".join(parts)


def _small(high: Fraction, opened: bool) -> str:
    """Return decimals from 0 to `high`, which is above it."""
    whole, digits = math.floor(high), _decimal(high).partition(".")[2]
    parts = [rf"({_naturals(0, whole - 1)})(\.[0-9]+)?"] if whole else []
    if digits:
        parts += [str(whole), rf"{whole}\.({_digits_to(digits, opened)})"]
    elif not opened:
        parts += [str(whole), rf"{whole}\.0+"]
    return "|".join(parts)


def _digits_from(low: str, opened: bool) -> str:
    """Return digits after a point from those of `low`, whose last one is not 0."""
    if not low:
        return "[0-9]*[1-9][0-9]*" if opened else "[0-9]*"
    larger = f"|[{int(low[0]) + 1}-9][0-9]*" if low[0] != "9" else ""
    return f"{low[0]}({_digits_from(low[1:], opened)}){larger}"


def _digits_to(high: str, opened: bool) -> str:
    """Return digits after a point, at least one, up to those of `high`, whose last one is not 0."""
    parts = [f"[0-{int(high[0]) - 1}][0-9]*"] if high[0] != "0" else []
    if high[1:]:
        parts.append(f"{high[0]}({_digits_to(high[1:], opened)})?")
    elif not opened:
        parts.append(f"{high[0]}0*")
    return "|".join(parts)
