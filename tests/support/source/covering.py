"""Covering arrays: few cases of a test that contain each value, or each pair of values, of its parameters."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings

Interaction = frozenset[tuple[str, int]]  # parameters with the number of the value of each
Value = TypeVar("Value")
THOROUGH, QUICK = 100, 15  # examples of a property in `make proofs` and in `make test`


def leave_to_proofs(items: Sequence[pytest.Item]) -> None:
    """Mark cases of tests with `@pytest.mark.covering(strength)` as proofs, except a small covering array of them.

    Strength 1 keeps each value of each parameter in some case, strength 2 each pair of values of two parameters.
    Cases with the mark `proof` of their own are left out.
    """
    tests = defaultdict[tuple[str, int], list[pytest.Function]](list)
    for item in items:
        mark = item.get_closest_marker("covering")
        if mark is not None and isinstance(item, pytest.Function) and item.get_closest_marker("proof") is None:
            tests[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    for (_, strength), cases in tests.items():
        # pytest gives each case an index of its own; the values of a parameter are the same objects in all cases.
        values = [{name: id(value) for name, value in case.callspec.params.items()} for case in cases]
        kept = covering(values, strength)
        for index in set(range(len(cases))) - set(kept):
            cases[index].add_marker(pytest.mark.proof)


def covering(cases: Sequence[dict[str, int]], strength: int) -> list[int]:
    """Indices of few cases with every interaction of `strength` parameters that occurs, chosen greedily.

    `cases`: the value of each parameter as a number.
    """
    interactions = [set(map(frozenset, itertools.combinations(case.items(), strength))) for case in cases]
    missing: set[Interaction] = set().union(*interactions)
    kept = list[int]()
    used = Counter[tuple[str, int]]()
    while missing:
        # Of equal ones, that with the rarest values so far: otherwise all but one would have the first ones.
        best = max(
            range(len(cases)),
            key=lambda index: (len(interactions[index] & missing), -sum(map(used.__getitem__, cases[index].items()))),
        )
        kept.append(best)
        used.update(cases[best].items())
        missing -= interactions[best]
    return kept


def few(values: Iterable[Value], kept: Container[Value]) -> list[Any]:
    """`values` as parameters of a test: those in `kept` run in `make test`, the others in `make proofs`.

    A tuple holds the values of several parameters.
    """
    return [value if value in kept else pytest.param(*_values(value), marks=pytest.mark.proof) for value in values]


def examples(thorough: int) -> int:
    """The examples of a property that has `thorough` of them in `make proofs`."""
    return max(2, thorough * settings.default.max_examples // THOROUGH)


def _values(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
