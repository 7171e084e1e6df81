"""Questions with the calls that answer them: made-up ones to train on, and real ones over the folder `facts`."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from intaglio.runtime import Call, as_text, calculate, decoded
from planner.names import synthetic_name, synthetic_names
from planner.patterns import PATTERNS, Pattern

FACTS = Path(__file__).parent / "facts"
# A line of a file: "area of Texas (square kilometres): 695662".
FACT = re.compile(r"(?P<attribute>[a-z ]+) of (?P<entity>[^(]*?)(?: \((?P<unit>.*)\))?: (?P<value>.*)")
HELD_OUT = 5  # one in this number of combinations of a pattern and attributes is held out of the training
LEAST = 0.2  # of an answer that is a number: smaller ones would be rounded too far
ATTRIBUTES = (
    "population",
    "area",
    "highest elevation",
    "elevation",
    "height",
    "prominence",
    "depth",
    "volume",
    "length",
    "drainage basin",
    "discharge",
    "diameter",
    "orbital period",
    "surface gravity",
    "number of floors",
    "atomic number",
    "melting point",
    "density",
    "weight",
    "budget",
    "market cap",
    "number of students",
    "revenue",
    "coastline",
    "rainfall",
    "speed",
    "price",
    "age",
    "boiling point",
    "number of employees",
    "energy use",
    "debt",
)
RELATIONS = ("capital", "highest mountain", "largest city", "longest river", "owner", "largest lake", "neighbour")


@dataclass(frozen=True)
class Question:
    """A question, the calls of a plan for it, and its answer."""

    text: str
    answer: str
    pattern: str
    branches: int  # searches that can run at the same time
    calls: Sequence[Call]
    values: Mapping[int, Any]  # what each call returns
    thought: str | None = None  # before the answer, where it takes one


Facts = Mapping[str, Any]  # query -> what a search returns


def held_out(pattern: Pattern, words: Mapping[str, str]) -> bool:
    """Whether no question of the training has this pattern with these attributes."""
    family = pattern.name.rstrip("0123456789")  # of all numbers of entities
    key = " | ".join([family, *(words[name] for name in ("a", "b", "r") if name in words)])
    return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT == 0


def training_questions(random: Random, avoid: frozenset[str] = frozenset()) -> Iterator[Question]:
    """Yield questions about made-up entities without end, none of a combination that is held out.

    `avoid`: names that no entity has.
    """
    while True:
        pattern = random.choice(PATTERNS)
        a, b = random.sample(ATTRIBUTES, 2)
        words = {"a": a, "b": b, "r": random.choice(RELATIONS)}
        words = {name: value for name, value in words.items() if pattern.uses(f"{{{name}}}")}
        if held_out(pattern, words):
            continue
        entities = synthetic_names(random, pattern.entities)
        if not avoid.isdisjoint(entities):
            continue
        question = ask(pattern, words, entities, _SyntheticFacts(random), random)
        if question is not None:
            yield question


class _SyntheticFacts(dict[str, Any]):
    """Values that are invented at the first query."""

    def __init__(self, random: Random):
        self._random = random

    def __missing__(self, query: str) -> Any:
        if query.startswith(RELATIONS):
            self[query] = synthetic_name(self._random)
        elif self._random.random() < 0.1:
            self[query] = round(self._random.uniform(0, 30), 2)
        else:
            digits = self._random.choices(range(1, 12), (1, 2, 4, 4, 4, 4, 4, 4, 3, 3, 1))[0]
            value = self._random.randrange(10 ** (digits - 1), 10**digits)
            zeros = 10 ** self._random.choice((0, 0, 0, digits // 3, digits // 2, max(digits - 3, 0)))
            self[query] = max(value // zeros, 1) * zeros
        return self[query]


def ask(
    pattern: Pattern, words: Mapping[str, str], entities: Sequence[str], facts: Facts, random: Random
) -> Question | None:
    """Return a question of `pattern` and work it out; None where its answer would be small, negative or not unique."""
    named = {"all": _joined(entities, "and"), "any": _joined(entities, "or"), "p": str(random.randrange(5, 100, 5))}
    filled = {**words, **named}
    phrasing = random.choice(pattern.phrasings)
    searches, expressions = pattern.in_order(phrasing)
    calls = [
        Call(number, tool, (decoded(text.format(*entities, **filled)),))
        for number, (tool, text) in enumerate(
            [*(("search", text) for text in searches), *(("calculate", text) for text in expressions)],
            1,
        )
    ]
    values: dict[int, Any] = {}
    for call in calls:
        text = substituted_text(call.arguments[0], values)
        values[call.number] = facts[text] if call.tool == "search" else calculate(text)
    answer, thought = as_text(values[len(calls)]), None
    if pattern.answer == "yes or no":
        answer = "yes" if values[len(calls)] else "no"
    elif pattern.answer == "entity":
        found = [number for number in range(1, len(calls)) if values[number] == values[len(calls)]]
        if len(found) > 1:
            return None
        # Each value with its entity behind it, and the last one again: the model has to copy only.
        pairs = [f"{as_text(values[number])} {entity}" for number, entity in enumerate(entities, 1)]
        answer, thought = entities[found[0] - 1], f"{', '.join(pairs)}; {pairs[found[0] - 1]}"
    elif values[len(calls)] < LEAST:
        return None
    text = phrasing.format(*entities, **filled)
    return Question(text, answer, pattern.name, pattern.branches, calls, values, thought)


def substituted_text(value: Any, values: Mapping[int, Any]) -> str:
    """Return an argument that is a string with the results that it refers to."""
    parts = getattr(value, "parts", (value,))
    return "".join(part if isinstance(part, str) else as_text(values[part.number]) for part in parts)


def _joined(entities: Sequence[str], word: str) -> str:
    return f" {word} ".join([", ".join(entities[:-1]), entities[-1]]) if len(entities) > 1 else entities[0]


def read_facts(folder: Path = FACTS) -> tuple[dict[str, int | float | str], dict[str, list[str]]]:
    """Return the facts in `folder` by query, and the entities of each subfolder."""
    facts: dict[str, int | float | str] = {}
    domains: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            found = FACT.fullmatch(line)
            assert found is not None, f"{path}: {line}"
            entity = found["entity"]
            value = found["value"]
            number = float(value) if "." in value else int(value) if value.isdigit() else value
            facts[f"{found['attribute']} of {entity}"] = number
        domains[path.parent.name].append(entity)
    return facts, dict(domains)


def unseen_questions(count: int, seed: int = 0) -> list[Question]:
    """Return `count` questions over `facts`, all of combinations that the training does not have.

    The patterns take turns, so that each has about as many.
    """
    random = Random(seed)  # noqa: S311
    facts, domains = read_facts()
    found: dict[str, Question] = {}
    turns = 0
    while len(found) < count:
        pattern = PATTERNS[turns % len(PATTERNS)]
        turns += 1
        for _ in range(200):
            question = _real_question(pattern, facts, domains, random)
            if question is not None and question.text not in found:
                found[question.text] = question
                break
    return list(found.values())


def _real_question(
    pattern: Pattern, facts: Facts, domains: Mapping[str, Sequence[str]], random: Random
) -> Question | None:
    names = domains[random.choice(sorted(domains))]
    if len(names) < pattern.entities:
        return None
    entities = random.sample(names, pattern.entities)
    known = [query.removesuffix(f" of {entities[0]}") for query in facts if query.endswith(f" of {entities[0]}")]
    numeric = [attribute for attribute in known if attribute in ATTRIBUTES]
    words = {"a": random.choice(ATTRIBUTES) if pattern.uses("{r}") else random.choice(numeric)}
    if pattern.uses("{b}"):
        others = [attribute for attribute in numeric if attribute != words["a"]]
        if not others:
            return None
        words["b"] = random.choice(others)
    if pattern.uses("{r}"):
        relations = [attribute for attribute in known if attribute in RELATIONS]
        if not relations:
            return None
        words["r"] = random.choice(relations)
    if not held_out(pattern, words):
        return None
    try:
        return ask(pattern, words, entities, facts, random)
    except KeyError:  # not a fact of every entity
        return None
