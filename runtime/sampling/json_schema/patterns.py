"""Patterns of schemas as regular expressions of how strings are written in JSON, each character in one spelling.

A pattern means slightly different sets in JavaScript, Python and Rust: whether digits, letters and spaces outside ASCII
are meant, and whether $ stands before a line feed. `strict` gives strings that match in all of them, otherwise those
that match in one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

# Characters that must be escaped in a JSON string.
ESCAPED = [chr(code) for code in range(32)] + ['"', "\\"]
CHARACTER = r'([^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00(0[0-7bef]|1[0-9a-f]))'
UNESCAPED = r'[^"\\\x00-\x1f]'  # characters that a JSON string has unescaped
DIGIT, WORD, SPACE = "0-9", "a-zA-Z0-9_", r" \t\n\r\f\x0b"
WIDE = {"digit": r"\p{Nd}", "word": r"\p{L}\p{M}\p{N}\p{Pc}", "space": r"\s\x1c-\x1f\x{feff}\x{180e}"}
NARROW = {"digit": DIGIT, "word": WORD, "space": SPACE}
BEGINNINGS = ((codes.AT, codes.AT_BEGINNING), (codes.AT, codes.AT_BEGINNING_STRING))
ENDS = ((codes.AT, codes.AT_END), (codes.AT, codes.AT_END_STRING))
MAX_REPEAT = 5000  # repetitions of a pattern
SURROGATES = (0xD800, 0xDFFF)


class PatternError(ValueError):
    """A pattern that cannot be enforced."""


class Expressions(NamedTuple):
    """What a string must match, and must not match."""

    all_of: tuple[str, ...]
    none_of: tuple[str, ...] = ()


@cache
def expressions(pattern: str, strict: bool) -> Expressions:
    """Return the expressions of strings, without their quotation marks, in which `pattern` is found.

    Raises `PatternError` for what is not a regular expression, and for what is not supported.
    """
    try:
        parsed = parser.parse(re.sub(r"\(\?<(?![=!])", "(?P<", pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"{error}") from error
    if parsed.state.flags & ~re.UNICODE:
        raise PatternError("flags are not supported")
    translation = _Translation(strict)
    found = [translation.search(list(parsed))]
    return Expressions((f"({'|'.join(found)})",), ()) if not translation.ahead else translation.with_ahead(found[0])


def quoted(text: str) -> str:
    """Return the regular expression of a text as JSON has it in a string."""
    return escaped(json.dumps(text, ensure_ascii=False)[1:-1])


def escaped(text: str) -> str:
    """Return the regular expression of a text."""
    return "".join(map(_literal, text))


def _literal(character: str) -> str:
    if character.isascii() and (character.isalnum() or character in " _=<>,;:@%!'\"~`"):
        return character
    return rf"\x{{{ord(character):x}}}"


class _Translation:
    def __init__(self, strict: bool) -> None:
        self._sets = NARROW if strict else WIDE
        self._outside = WIDE if strict else NARROW  # what \D, \W and \S leave out
        self._strict = strict
        self.ahead: list[tuple[bool, str]] = []

    def with_ahead(self, rest: str) -> Expressions:
        """Return the expressions of a pattern that begins with look-aheads."""
        if not self._strict:
            raise PatternError("look-ahead is not supported here")
        positive = [text for wanted, text in self.ahead if wanted]
        return Expressions((f"({rest})", *positive), tuple(text for wanted, text in self.ahead if not wanted))

    def search(self, items: list[Any], top: bool = True) -> str:
        """Return the expression of texts that contain `items`."""
        if len(items) == 1 and items[0][0] is codes.BRANCH:
            return "|".join(self.search(list(each), False) for each in items[0][1][1])
        if len(items) == 1 and items[0][0] is codes.SUBPATTERN and not _flagged(items[0]):
            return self.search(list(items[0][1][3]), False)
        begins = bool(items) and items[0] in BEGINNINGS
        items = items[1:] if begins else items
        while begins and top and items and items[0][0] in (codes.ASSERT, codes.ASSERT_NOT) and items[0][1][0] == 1:
            wanted = items[0][0] is codes.ASSERT
            other = _Translation(wanted)
            inner = list(items[0][1][1])
            self.ahead.append((wanted, f"({other.search([(codes.AT, codes.AT_BEGINNING), *inner], False)})"))
            items = items[1:]
        if begins and items and items[0][0] is codes.BRANCH and len(items) == 1:
            start = (codes.AT, codes.AT_BEGINNING)
            return "|".join(self.search([start, *each], False) for each in items[0][1][1])
        ends = bool(items) and items[-1] in ENDS
        after = f"{CHARACTER}*"
        if ends:
            after = "" if self._strict or items[-1][1] is codes.AT_END_STRING else r"(\\n)?"
            items = items[:-1]
        return f"{'' if begins else f'{CHARACTER}*'}{self._sequence(items)}{after}"

    def _sequence(self, items: Sequence[Any]) -> str:
        return "".join(self._item(*each) for each in items)

    def _item(self, kind: Any, value: Any) -> str:
        if kind is codes.LITERAL:
            return quoted(chr(value)) if not SURROGATES[0] <= value <= SURROGATES[1] else _class("a&&b")
        if kind is codes.NOT_LITERAL:
            return self._set([(codes.NEGATE, None), (codes.LITERAL, value)])
        if kind is codes.ANY:
            # JavaScript's leaves out all ends of lines.
            return self._set([(codes.NEGATE, None), *((codes.LITERAL, each) for each in self._line_ends())])
        if kind is codes.IN:
            return self._set(value)
        if kind is codes.BRANCH:
            return f"({'|'.join(self._sequence(each) for each in value[1])})"
        if kind is codes.SUBPATTERN and not _flagged((kind, value)):
            return f"({self._sequence(value[3])})"
        if kind in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            return f"({self._sequence(value[2])}){_repeat(value[0], value[1])}"
        names = {codes.ASSERT: "look-around", codes.ASSERT_NOT: "look-around", codes.GROUPREF: "a back-reference"}
        names |= {codes.AT: "an anchor in the middle, or \\b,"}
        raise PatternError(f"{names.get(kind, str(kind).lower())} is not supported")

    def _line_ends(self) -> list[int]:
        return [0x0A, 0x0D, 0x2028, 0x2029] if self._strict else [0x0A]

    def _set(self, items: Sequence[Any]) -> str:
        negate = items[0][0] is codes.NEGATE
        # What is left out of a set is left out in all meanings.
        parts = [self._part(kind, value, negate) for kind, value in items if kind is not codes.NEGATE]
        body = "".join(parts)
        raw = _class(rf'[{"^" if negate else ""}{body}]&&[^"\\\x00-\x1f]')
        special = [quoted(each) for each in ESCAPED if _contains(items, ord(each), self._strict)]
        return f"({'|'.join([raw, *special])})"

    def _part(self, kind: Any, value: Any, negate: bool) -> str:
        if kind is codes.LITERAL:
            return _code(value)
        if kind is codes.RANGE:
            return _ranges(*value)
        name = str(value).lower().removeprefix("category_")
        sets, outside = (self._outside, self._sets) if negate else (self._sets, self._outside)
        if name.startswith("not_"):
            return f"[^{outside[name.removeprefix('not_')]}]"
        return sets[name]


def _contains(items: Sequence[Any], code: int, strict: bool) -> bool:
    """Whether a set contains a character that JSON escapes."""
    negate = items[0][0] is codes.NEGATE
    # Python's \s has the separators 1c to 1f, JavaScript's has not.
    unsure = 0x1C <= code <= 0x1F
    for kind, value in items:
        if kind is codes.LITERAL and value == code:
            return not negate
        if kind is codes.RANGE and value[0] <= code <= value[1]:
            return not negate
        if kind is codes.CATEGORY:
            name = str(value).lower().removeprefix("category_")
            space = chr(code).isspace()
            found = {"space": space, "not_space": not space, "not_digit": True, "not_word": True}.get(name, False)
            if name in ("space", "not_space") and unsure:
                found = strict is negate
            if found:
                return not negate
    return negate


def _class(body: str) -> str:
    return f"[{body}]"


def _code(code: int) -> str:
    return rf"\x{{{code:x}}}" if not SURROGATES[0] <= code <= SURROGATES[1] else ""


def _ranges(low: int, high: int) -> str:
    """Return a range of characters, without the halves of surrogate pairs."""
    below, above = (low, min(high, SURROGATES[0] - 1)), (max(low, SURROGATES[1] + 1), high)
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in (below, above) if first <= last)


def _repeat(least: Any, most: Any) -> str:
    unlimited = most is codes.MAXREPEAT
    if max(int(least), 0 if unlimited else int(most)) > MAX_REPEAT:
        raise PatternError(f"repetitions above {MAX_REPEAT} are not supported")
    return f"{{{int(least)},{'' if unlimited else int(most)}}}"


def _flagged(item: Any) -> bool:
    return bool(item[1][1] or item[1][2])
