"""Spoken form of text: lower-case words of a-z and apostrophes, with numbers spelled out."""

from __future__ import annotations

import re

UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
LARGEST = 10**9 - 1  # a longer number is read digit by digit

_NUMBER = r"\d{1,3}(?:,\d{3})+|\d+"
_TOKENS = re.compile(rf"({_NUMBER})(?:\.(\d+))?|[A-Za-z]+(?:'[A-Za-z]+)*|%|&")
_SYMBOLS = {"%": "percent", "&": "and"}


def number_words(number: int) -> str:
    """A whole number from 0 to `LARGEST` in words: 342 is "three hundred and forty two"."""
    if number < 20:
        return UNITS[number]
    if number < 100:
        return " ".join([TENS[number // 10 - 2], *([UNITS[number % 10]] if number % 10 else [])])
    for size, name in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= size:
            head, rest = divmod(number, size)
            joint = ["and"] if 0 < rest < 100 else []
            return " ".join([number_words(head), name, *joint, *([number_words(rest)] if rest else [])])
    raise AssertionError(number)


def spoken(text: str) -> str:
    """The spoken words of `text`, separated by single spaces; empty if there are none.

    Letters become lower case, numbers and "%" and "&" words, "3.11" "three point one one"; every other character
    separates words. Accents are not removed: a letter beyond a-z separates words too.
    """
    return " ".join(_word(match) for match in _TOKENS.finditer(text.replace("’", "'")))


def _word(match: re.Match[str]) -> str:
    if match[1] is None:
        return _SYMBOLS.get(match[0], match[0].lower())
    whole = match[1].replace(",", "")
    words = [number_words(int(whole)) if int(whole) <= LARGEST else _digits(whole)]
    return " ".join([*words, *(["point", _digits(match[2])] if match[2] else [])])


def _digits(digits: str) -> str:
    return " ".join(UNITS[int(digit)] for digit in digits)
