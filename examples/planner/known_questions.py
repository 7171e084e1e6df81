"""Which questions the planner was trained for: the wordings of `PATTERNS`, about what the facts name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache

from planner.patterns import PATTERNS, Pattern
from planner.questions import ATTRIBUTES, RELATIONS, Facts, read_facts

FIELD = re.compile(r"\{(\w+)\}")
NAMED = re.compile(r"[A-Z][\w'-]*(?: (?:of |the )?[A-Z][\w'-]*)*")  # names in a question


def refusal(question: str) -> str | None:
    """Return why the planner cannot plan for `question`; None if it is one that it was trained for, with known facts.

    The model is small: it writes a plan for any question, and one in other words gets the plan of another question. So
    the words are compared with those of the training, and the names with the facts.
    """
    question = " ".join(question.split())
    facts, _ = _known()
    unknown = None
    for pattern, fields in _readings(question):
        try:
            missing = [query for query in _queries(pattern, fields, facts) if query not in facts]
        except ValueError as error:
            unknown = unknown or str(error)
            continue
        if not missing:
            return None
        unknown = unknown or f"the facts have no {missing[0]}"
    if unknown is not None:
        return f"{unknown}, so the planner has nothing to look up"
    words = FIELD.sub("_", NAMED.sub("_", question))
    (nearest, *_) = difflib.get_close_matches(words, _wordings(), n=1, cutoff=0.0)
    return (
        "the planner was not trained on questions in these words, and would plan for another one. "
        f"The nearest that it knows: {_wordings()[nearest]}"
    )


@cache
def _known() -> tuple[Facts, frozenset[str]]:
    facts, domains = read_facts()
    return facts, frozenset(name for names in domains.values() for name in names)


@cache
def _wordings() -> Mapping[str, str]:
    """The wordings of all patterns without their fields, and with them."""
    shown = {
        "a": "(attribute)",
        "b": "(attribute)",
        "r": "(relation)",
        "p": "10",
        "all": "A, B and C",
        "any": "A, B or C",
    }
    return {
        FIELD.sub("_", wording): FIELD.sub(lambda match: shown.get(match[1]) or "ABCDE"[int(match[1])], wording)
        for pattern in PATTERNS
        for wording in pattern.phrasings
    }


def _readings(question: str) -> Iterator[tuple[Pattern, dict[str, str]]]:
    """Yield the patterns whose wording the question has, with its fields."""
    for pattern in PATTERNS:
        for wording in pattern.phrasings:
            if found := _expression(wording).fullmatch(question):
                yield pattern, {name.removeprefix("f"): text for name, text in found.groupdict().items()}


@cache
def _expression(wording: str) -> re.Pattern[str]:
    parts, seen = list[str](), set[str]()
    place = 0
    kinds = {"a": "|".join(ATTRIBUTES), "b": "|".join(ATTRIBUTES), "r": "|".join(RELATIONS), "p": r"\d+"}
    for field in FIELD.finditer(wording):
        parts.append(re.escape(wording[place : field.start()]))
        name, place = field[1], field.end()
        parts.append(f"(?P=f{name})" if name in seen else f"(?P<f{name}>{kinds.get(name, '.+?')})")
        seen.add(name)
    return re.compile("".join([*parts, re.escape(wording[place:])]))


def _queries(pattern: Pattern, fields: Mapping[str, str], facts: Facts) -> list[str]:
    """Return the searches for a question; the facts that they need are in `facts`. Raises `ValueError` for names."""
    listed = fields.get("all") or fields.get("any")
    if listed is not None:
        names = re.split(", | and " if "all" in fields else ", | or ", listed)
    else:
        names = [fields[str(number)] for number in range(pattern.entities)]
    if len(names) != pattern.entities:
        raise ValueError(f"{len(names)} names where the planner knows {pattern.entities}")
    for name in names:
        if name not in _known()[1]:
            raise ValueError(f"the facts have nothing of the name {name[:80]!r}")
    queries = list[str]()
    for search in pattern.searches:
        text = search.format(*names, **{key: fields[key] for key in ("a", "b", "r") if key in fields})
        queries.append(re.sub(r"\$(\d+)", lambda match: str(facts.get(queries[int(match[1]) - 1], match[0])), text))
    return queries
