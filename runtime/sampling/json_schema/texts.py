"""Sets of strings, and the terminals that write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from intaglio.extras import load
from intaglio.runtime.sampling.json_schema.formats import FORMATS
from intaglio.runtime.sampling.json_schema.patterns import (
    CHARACTER,
    UNESCAPED,
    PatternError,
    escaped,
    expressions,
    quoted,
)


@dataclass(frozen=True)
class Texts:
    """All strings that meet some conditions."""

    least: int = 0  # characters
    most: int | None = None
    values: frozenset[str] | None = None  # one of these
    excluded: frozenset[str] = frozenset()  # none of these
    patterns: frozenset[str] = frozenset()  # each is found in it
    without: frozenset[str] = frozenset()  # none is found in it
    formats: frozenset[str] = frozenset()
    unsure: bool = False  # whether values were left out that some validators take

    def both(self, other: Texts) -> Texts:
        """Return the strings that are in both sets."""
        mosts = [each for each in (self.most, other.most) if each is not None]
        found = Texts(
            max(self.least, other.least),
            min(mosts, default=None),
            None,
            self.excluded | other.excluded,
            self.patterns | other.patterns,
            self.without | other.without,
            self.formats | other.formats,
        )
        given = [each for each in (self.values, other.values) if each is not None]
        if not given:
            return found
        shared = frozenset.intersection(*given)
        kept = frozenset(each for each in shared if found.admits(each))
        unsure = self.unsure or other.unsure or any(map(found.may_admit, shared - kept))
        return Texts(values=kept, unsure=unsure)

    @property
    def empty(self) -> bool:
        """Whether there is certainly no such string."""
        return (self.values == frozenset() and not self.unsure) or (self.most is not None and self.most < self.least)

    def admits(self, text: str) -> bool:
        """Whether `text` is one of them."""
        if self.values is not None and text not in self.values:
            return False
        if text in self.excluded or len(text) < self.least or (self.most is not None and len(text) > self.most):
            return False
        if not (self.patterns or self.without or self.formats):
            return True
        return _matches(Texts(patterns=self.patterns, without=self.without, formats=self.formats).expression(), text)

    def may_admit(self, text: str) -> bool:
        """Whether `text` is one of them for some validator; formats are annotations."""
        if self.values is not None and text not in self.values:
            return self.unsure
        if text in self.excluded or len(text) < self.least or (self.most is not None and len(text) > self.most):
            return False
        missing = any(found_in(each, text) is False for each in self.patterns)
        return not missing and not any(found_in(each, text) for each in self.without)

    def negated(self) -> tuple[list[Texts], bool]:
        """Return sets of all other strings, and whether they are all of them."""
        if self.unsure:
            return [], False
        if self.values is not None:
            return [Texts(excluded=self.values)], True
        others = [Texts(patterns=frozenset([each])) for each in self.without]
        others += [Texts(without=frozenset([each])) for each in self.patterns]
        if self.excluded:
            others.append(Texts(values=self.excluded))
        if self.least:
            others.append(Texts(most=self.least - 1))
        if self.most is not None:
            others.append(Texts(least=self.most + 1))
        return others, not self.formats

    def expression(self) -> str:
        """Return the terminal of the strings, as llguidance has them in Lark. Raises `PatternError`."""
        if self.values is not None:
            return f'/"{_any_of(self.values, quoted)}"/' if self.values else ""
        whole, banned = self._conditions(CHARACTER, quoted)
        if len(whole) > 1 and (self.least, self.most) == (0, None) and not banned:
            del whole[0]
        return " & ".join([*(f'/"{each}"/' for each in whole), *(f'~/"{each}"/' for each in banned)])

    def raw_expression(self, end: str = "") -> str:
        """Return the terminal of the strings as raw text up to the first `end`. Raises `PatternError`.

        Patterns are of text in JSON: with one, strings are left out that JSON writes with a backslash.
        """
        mark, after = end.strip(), escaped(end)
        if self.values is not None:
            values = frozenset(each for each in self.values if not mark or mark not in each)
            return f"/{_any_of(values, escaped)}{after}/" if values else ""
        plain = not (self.patterns or self.without or self.formats)
        whole, banned = self._conditions("(?s:.)" if plain else UNESCAPED, escaped)
        found = [*(f"/{each}{after}/" for each in whole), *(f"~/{each}{after}/" for each in banned)]
        return " & ".join([*found, f"~/(?s:.*){escaped(mark)}(?s:.+)/"] if mark else found)

    def _conditions(self, character: str, spelled: Callable[[str], str]) -> tuple[list[str], list[str]]:
        """Return expressions that the strings match, the first for their length, and expressions that they do not."""
        whole = [f"{character}{_count(self.least, self.most)}"]
        banned: list[str] = []
        for pattern in sorted(self.patterns):
            found = expressions(pattern, strict=True)
            whole += found.all_of
            banned += found.none_of
        whole += [f"({FORMATS[each]})" for each in sorted(self.formats)]
        for pattern in sorted(self.without):
            banned += expressions(pattern, strict=False).all_of
        if self.excluded:
            banned.append(_any_of(self.excluded, spelled))
        return whole, banned


def _any_of(values: frozenset[str], spelled: Callable[[str], str]) -> str:
    return f"({'|'.join(sorted(map(spelled, values)))})"


def found_in(pattern: str, text: str) -> bool | None:
    """Whether a pattern is found in a text; None where validators may not agree. Raises `PatternError`."""
    if _matches(Texts(patterns=frozenset([pattern])).expression(), text):
        return True
    try:
        (loose,) = expressions(pattern, strict=False).all_of
    except PatternError:  # with look-ahead
        return None
    return None if _matches(f'/"{loose}"/', text) else False


def _count(least: int, most: int | None) -> str:
    return "*" if (least, most) == (0, None) else f"{{{least},{'' if most is None else most}}}"


@lru_cache(4096)
def _matches(expression: str, text: str) -> bool:
    """Whether a terminal matches a string: in linear time for any pattern."""
    matcher = _matcher(expression).deep_copy()
    written = list(json.dumps(text, ensure_ascii=False).encode())
    return bool(matcher.try_consume_tokens(written) == len(written) and matcher.is_accepting())


@lru_cache(256)
def _matcher(expression: str) -> Any:
    library: Any = load("llguidance")
    return library.LLMatcher(library.LLTokenizer("byte"), f"start: TEXT\nTEXT: {expression}\n", log_level=0)
