"""Regular expressions of how decimals between two bounds are written, without an exponent."""

from __future__ import annotations

import math
from fractions import Fraction


def decimal(value: Fraction) -> str:
    """Return all digits of a number that has finitely many."""
    scale = 0
    while value.denominator != 1 and (value * 10**scale).denominator != 1:
        scale += 1
    digits = str(abs(value.numerator * 10**scale // value.denominator)).rjust(scale + 1, "0")
    whole, fraction = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
    return f"{'-' if value < 0 else ''}{whole}{f'.{fraction}' if fraction else ''}"


def naturals(low: int, high: int | None) -> str:
    """Return the regular expression of whole numbers from `low`, not negative, to `high`."""
    if high is None:
        size = len(str(low))
        return f"{naturals(low, 10**size - 1)}|[1-9][0-9]{{{size},}}"
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


def at_least(low: Fraction, opened: bool) -> str:
    """Return the regular expression of decimals from `low`, or above it."""
    if low >= 0:
        return _large(low, opened)
    return rf"(0|[1-9][0-9]*)(\.[0-9]+)?|-({_small(-low, opened)})"


def at_most(high: Fraction, opened: bool) -> str:
    """Return the regular expression of decimals up to `high`, or below it."""
    if high > 0:
        return rf"-(0|[1-9][0-9]*)(\.[0-9]+)?|{_small(high, opened)}"
    return f"-({_large(-high, opened)}){'' if high or opened else '|0'}"


def _large(low: Fraction, opened: bool) -> str:
    """Return decimals from `low`, which is not negative."""
    whole, digits = math.floor(low), decimal(low).partition(".")[2]
    parts = [rf"{whole}\.({_digits_from(digits, opened)})", rf"({naturals(whole + 1, None)})(\.[0-9]+)?"]
    if not digits and not opened:
        parts = [str(whole), rf"{whole}\.[0-9]+", parts[1]]
    return "|".join(parts)


def _small(high: Fraction, opened: bool) -> str:
    """Return decimals from 0 to `high`, which is above it."""
    whole, digits = math.floor(high), decimal(high).partition(".")[2]
    parts = [rf"({naturals(0, whole - 1)})(\.[0-9]+)?"] if whole else []
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
