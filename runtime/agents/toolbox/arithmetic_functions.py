"""The numbers and functions of `calculate`. All work is bounded, as the size of every number is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from fractions import Fraction

from intaglio.runtime.agents.tools.tool import ToolError

Number = Fraction | float

MOST_BITS = 1024  # of a numerator or denominator, as many as the exponent range of a float
MOST_EXPONENT = 400  # of a number such as 1e400, beyond the range of a float


def bounded(value: Number) -> Number:
    """`value`, as a float if it has too many digits to stay exact. Raises `OverflowError` above 1.8e308."""
    if isinstance(value, Fraction):
        if value.denominator.bit_length() <= MOST_BITS and abs(value.numerator).bit_length() <= MOST_BITS:
            return value
        value = float(value)
    if not math.isfinite(value):
        raise OverflowError
    return value


def power(base: Number, exponent: Number) -> Number:
    """`base` to the power `exponent`, exact where it is not too large. Raises `ToolError` where it is not real."""
    whole = exponent == int(exponent)
    if base < 0 and not whole:
        raise ToolError(f"calculate: ({float(base):.15g})**{float(exponent):.15g} is not a real number.")
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and whole:
        bits = max(abs(base.numerator).bit_length(), base.denominator.bit_length())
        if bits * abs(exponent) <= MOST_BITS or base in (-1, 0, 1):
            return bounded(base ** int(exponent))
    return bounded(float(base) ** float(exponent))


def _sqrt(value: Number) -> Number:
    """The square root, exact where it is a fraction."""
    if isinstance(value, Fraction) and value >= 0:
        root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if root * root == value:
            return root
    return math.sqrt(value)


def _round(value: Number, digits: Number = Fraction(0)) -> Number:
    """Round to `digits` places, halves away from zero, as people do."""
    if digits != int(digits) or not -MOST_EXPONENT <= digits <= MOST_EXPONENT:
        raise ToolError(f"calculate: round to {float(digits):.15g} places, expected a whole number.")
    scale = Fraction(10) ** int(digits)
    exact = Fraction(repr(value) if isinstance(value, float) else value)
    nearest = math.floor(abs(exact) * scale + Fraction(1, 2)) / scale
    return -nearest if exact < 0 else nearest


def _log(value: Number, base: Number | None = None) -> Number:
    return math.log(value) if base is None else math.log(value) / math.log(base)


def _sum(*values: Number) -> Number:
    total: Number = Fraction(0)
    for value in values:
        total = bounded(total + value)
    return total


def _mean(*values: Number) -> Number:
    return _sum(*values) / len(values)


MANY = 10**6
# Name -> function, and its least and most number of arguments.
FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int]] = {
    "abs": (abs, 1, 1),
    "ceil": (lambda value: Fraction(math.ceil(value)), 1, 1),
    "cos": (math.cos, 1, 1),
    "exp": (math.exp, 1, 1),
    "floor": (lambda value: Fraction(math.floor(value)), 1, 1),
    "ln": (math.log, 1, 1),
    "log": (_log, 1, 2),
    "log10": (math.log10, 1, 1),
    "log2": (math.log2, 1, 1),
    "max": (lambda *values: max(values), 1, MANY),
    "mean": (_mean, 1, MANY),
    "median": (lambda *values: statistics.median(values), 1, MANY),
    "min": (lambda *values: min(values), 1, MANY),
    "round": (_round, 1, 2),
    "sin": (math.sin, 1, 1),
    "sqrt": (_sqrt, 1, 1),
    "sum": (_sum, 0, MANY),
    "tan": (math.tan, 1, 1),
}
