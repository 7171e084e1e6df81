"""The patterns of questions in the manner of ParallelQA (thesis, section 6.4 and appendix D.6), and their plans.

A pattern has 2 to 5 searches at the same time, then arithmetic on their results, in up to three joins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

REFERENCE = re.compile(r"\$(\d+)")
Kind = Literal["value", "entity", "yes or no"]


@dataclass(frozen=True)
class Pattern:
    """A kind of question. `{0}` to `{4}` are entities, `{a}` and `{b}` attributes, `{r}` a relation to another entity.

    `{all}` is "X, Y and Z", `{any}` "X, Y or Z", `{p}` a number of percent.
    """

    name: str
    entities: int
    phrasings: Sequence[str]
    searches: Sequence[str]  # queries, the calls 1, 2, ...; "$1" in one is the result of call 1; see `in_order`
    expressions: Sequence[str]  # the calls after them; the last one leads to the answer
    answer: Kind = "value"  # "entity": the one whose value is the last result

    @property
    def branches(self) -> int:
        """The searches that can run at the same time."""
        return sum("$" not in query for query in self.searches)

    def uses(self, placeholder: str) -> bool:
        """Whether a question has `placeholder`, such as "{b}"."""
        return placeholder in self.phrasings[0]

    def in_order(self, phrasing: str) -> tuple[list[str], list[str]]:
        """Return the queries and the expressions with the entities in the order in which `phrasing` names them."""
        places = {entity: phrasing.find(entity) for entity in (f"{{{number}}}" for number in range(self.entities))}
        own = [query for query in self.searches if "$" not in query]
        order = sorted(own, key=lambda query: next(place for entity, place in places.items() if entity in query))
        moved = {number: order.index(query) + 1 for number, query in enumerate(own, 1)}

        def renumbered(text: str) -> str:
            return REFERENCE.sub(lambda match: f"${moved.get(int(match[1]), match[1])}", text)

        return [*order, *map(renumbered, self.searches[len(own) :])], [renumbered(each) for each in self.expressions]


def _each(count: int, query: str = "{a} of") -> list[str]:
    return [f"{query} {{{index}}}" for index in range(count)]


def _sum(first: int, count: int) -> str:
    return " + ".join(f"${number}" for number in range(first, first + count))


def _of_all(name: str, phrasings: Sequence[str], expression: str, answer: Kind = "value") -> list[Pattern]:
    """Patterns over 2 to 5 entities; `{}` in `expression` is the list of their values."""
    return [
        Pattern(
            f"{name} of {count}",
            count,
            phrasings,
            _each(count),
            [expression.format(", ".join(f"${number}" for number in range(1, count + 1)))],
            answer,
        )
        for count in range(2, 6)
    ]


def _groups(left: int, right: int) -> list[Pattern]:
    """Patterns with the sums of two groups of entities."""
    count = left + right
    one, other = (" and ".join(_names(each)) for each in (range(left), range(left, count)))
    both = [_sum(1, left), _sum(left + 1, right)] if right > 1 else [_sum(1, left)]
    first, second = f"${count + 1}", f"${count + 2}" if right > 1 else f"${count}"
    label = f"{left} against {right}"

    def pattern(name: str, phrasings: Sequence[str], last: str, answer: Kind = "value") -> Pattern:
        return Pattern(f"{name}, {label}", count, phrasings, _each(count), [*both, last], answer)

    return [
        pattern(
            "difference of totals",
            (
                f"By how much does the total {{a}} of {one} exceed the {{a}} of {other}?",
                f"How much larger is the {{a}} of {one} together than that of {other}?",
            ),
            f"{first} - {second}",
        ),
        pattern(
            "ratio of totals",
            (
                f"How many times the {{a}} of {other} is the total {{a}} of {one}?",
                f"What is the {{a}} of {one} together divided by that of {other}?",
            ),
            f"round({first} / {second}, 2)",
        ),
        pattern(
            "comparison of totals",
            (
                f"Is the total {{a}} of {one} larger than the {{a}} of {other}?",
                f"Do {one} together have a larger {{a}} than {other}?",
            ),
            f"{first} > {second}",
            "yes or no",
        ),
        pattern(
            "merger",
            (
                f"If {one} merged, and {other} stayed as it is, what would be the larger {{a}}?"
                if right == 1
                else f"If {one} merged, and {other} merged, what would be the larger {{a}}?",
            ),
            f"max({first}, {second})",
        ),
    ]


def _names(numbers: range) -> list[str]:
    return [f"{{{number}}}" for number in numbers]


PAIRS = [
    Pattern(
        "difference",
        2,
        (
            "How much larger is the {a} of {0} than the {a} of {1}?",
            "By how much does the {a} of {0} exceed that of {1}?",
            "How much would the {a} of {1} have to grow to reach that of {0}?",
        ),
        _each(2),
        ["$1 - $2"],
    ),
    Pattern(
        "ratio",
        2,
        (
            "How many times the {a} of {1} is the {a} of {0}?",
            "What is the {a} of {0} divided by the {a} of {1}?",
        ),
        _each(2),
        ["round($1 / $2, 2)"],
    ),
    Pattern(
        "percentage",
        2,
        (
            "What percentage of the {a} of {1} is the {a} of {0}?",
            "The {a} of {0} is what percentage of that of {1}?",
        ),
        _each(2),
        ["round($1 / $2 * 100, 2)"],
    ),
    Pattern(
        "comparison",
        2,
        ("Is the {a} of {0} larger than that of {1}?", "Does {0} have a larger {a} than {1}?"),
        _each(2),
        ["$1 > $2"],
        "yes or no",
    ),
    Pattern(
        "doubled",
        2,
        (
            "If the {a} of {0} doubled, by how much would it exceed that of {1}?",
            "By how much does twice the {a} of {0} exceed the {a} of {1}?",
        ),
        _each(2),
        ["$1 * 2", "$3 - $2"],
    ),
    Pattern(
        "halved",
        2,
        (
            "If the {a} of {0} halved, what would it be together with that of {1}?",
            "What is half the {a} of {0} plus the {a} of {1}?",
        ),
        _each(2),
        ["$1 / 2", "$3 + $2"],
    ),
    Pattern(
        "grown",
        2,
        (
            "If the {a} of {0} grew by {p} percent, what would it be together with that of {1}?",
            "What is the {a} of {0} plus {p} percent, together with that of {1}?",
        ),
        _each(2),
        ["$1 * (100 + {p}) / 100", "$3 + $2"],
    ),
    Pattern(
        "roots",
        2,
        (
            "What is the square root of the {a} of {0} plus the square root of the {a} of {1}?",
            "Add up the square roots of the {a} of {0} and the {a} of {1}.",
        ),
        _each(2),
        ["round(sqrt($1), 2)", "round(sqrt($2), 2)", "$3 + $4"],
    ),
    Pattern(
        "quotient",
        1,
        ("What is the {a} per {b} of {0}?", "What is the {a} of {0} divided by its {b}?"),
        ["{a} of {0}", "{b} of {0}"],
        ["round($1 / $2, 2)"],
    ),
    Pattern(
        "difference of quotients",
        2,
        (
            "By how much does the {a} per {b} of {0} exceed that of {1}?",
            "How much larger is the {a} per {b} of {0} than the {a} per {b} of {1}?",
        ),
        ["{a} of {0}", "{b} of {0}", "{a} of {1}", "{b} of {1}"],
        ["round($1 / $2, 3)", "round($3 / $4, 3)", "$5 - $6"],
    ),
    Pattern(
        "larger quotient",
        2,
        ("What is the larger {a} per {b}, that of {0} or that of {1}?",),
        ["{a} of {0}", "{b} of {0}", "{a} of {1}", "{b} of {1}"],
        ["round($1 / $2, 3)", "round($3 / $4, 3)", "max($5, $6)"],
    ),
    Pattern(
        "merged quotient",
        2,
        (
            "If {0} and {1} merged, what would be their {a} per {b}?",
            "What is the {a} per {b} of {0} and {1} together?",
        ),
        ["{a} of {0}", "{a} of {1}", "{b} of {0}", "{b} of {1}"],
        ["$1 + $2", "$3 + $4", "round($5 / $6, 2)"],
    ),
    Pattern(
        "difference of averages",
        5,
        (
            "By how much does the average {a} of {0} and {1} exceed that of {2}, {3} and {4}?",
            "How much larger is the average {a} of {0} and {1} than the average {a} of {2}, {3} and {4}?",
        ),
        _each(5),
        ["mean($1, $2)", "mean($3, $4, $5)", "round($6 - $7, 2)"],
    ),
    Pattern(
        "difference of relations",
        2,
        (
            "How much larger is the {a} of the {r} of {0} than the {a} of the {r} of {1}?",
            "By how much does the {a} of the {r} of {0} exceed that of the {r} of {1}?",
        ),
        [*_each(2, "{r} of"), "{a} of $1", "{a} of $2"],
        ["$3 - $4"],
    ),
    Pattern(
        "total of relations",
        3,
        ("What is the total {a} of the {r} of {0}, the {r} of {1} and the {r} of {2}?",),
        [*_each(3, "{r} of"), "{a} of $1", "{a} of $2", "{a} of $3"],
        ["$4 + $5 + $6"],
    ),
]
RANGES = [
    Pattern(
        f"range of {count}",
        count,
        (
            "What is the difference between the largest and the smallest {a} of {all}?",
            "By how much do the largest and the smallest {a} of {all} differ?",
        ),
        _each(count),
        [
            f"max({', '.join(f'${number}' for number in range(1, count + 1))})",
            f"min({', '.join(f'${number}' for number in range(1, count + 1))})",
            f"${count + 1} - ${count + 2}",
        ],
    )
    for count in range(3, 6)
]
PATTERNS: Sequence[Pattern] = [
    *PAIRS,
    *RANGES,
    *_of_all("total", ("What is the total {a} of {all}?", "Add up the {a} of {all}."), "sum({})"),
    *_of_all(
        "average", ("What is the average {a} of {all}?", "What {a} do {all} have on average?"), "round(mean({}), 2)"
    ),
    *_of_all("largest", ("What is the largest {a} of {all}?", "How large is the largest {a} of {all}?"), "max({})"),
    *_of_all("smallest", ("What is the smallest {a} of {all}?", "How large is the smallest {a} of {all}?"), "min({})"),
    *_of_all(
        "which largest",
        ("Which has the largest {a}, {any}?", "Of {all}, which one has the largest {a}?"),
        "max({})",
        "entity",
    ),
    *_of_all(
        "which smallest",
        ("Which has the smallest {a}, {any}?", "Of {all}, which one has the smallest {a}?"),
        "min({})",
        "entity",
    ),
    *_groups(2, 1),
    *_groups(2, 2),
    *_groups(3, 2),
]
