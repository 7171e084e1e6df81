"""The choice is within the budget, near the optimum, and reproducible."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from intaglio.graph_passes.weights.mixed import Choice, choose

choice = st.builds(Choice, st.none(), st.integers(1, 60), st.floats(0, 100))
layers = st.lists(st.lists(choice, min_size=1, max_size=4), min_size=1, max_size=4)


def total(choices: list[Choice] | tuple[Choice, ...]) -> tuple[int, float]:
    return sum(each.nbytes for each in choices), sum(each.error for each in choices)


@given(layers, st.integers(0, 200))
def test_choice_is_within_the_budget_and_near_the_optimum(choices: list[list[Choice]], budget: int) -> None:
    chosen = choose(choices, budget)
    fitting = [each for each in itertools.product(*choices) if total(each)[0] <= budget]
    if chosen is None:
        assert not fitting
        return
    assert total(chosen)[0] <= budget
    assert all(each in options for each, options in zip(chosen, choices, strict=True))
    # The convex relaxation is better by at most the one step that did not fit.
    best = min(total(each)[1] for each in fitting)
    step = max(max(each.error for each in options) - min(each.error for each in options) for options in choices)
    assert total(chosen)[1] <= best + step + 1e-9


@given(layers)
def test_unlimited_budget_gives_the_least_error(choices: list[list[Choice]]) -> None:
    chosen = choose(choices, 10_000)
    assert chosen is not None
    assert total(chosen)[1] == sum(min(each.error for each in options) for options in choices)


@given(layers, st.integers(0, 200))
def test_error_does_not_increase_with_the_budget(choices: list[list[Choice]], budget: int) -> None:
    first, second = choose(choices, budget), choose(choices, budget)
    assert first == second


def test_sensitive_layer_gets_more_bits() -> None:
    def layer(scale: float) -> list[Choice]:
        return [Choice(None, 100 * bits, scale * 4.0**-bits) for bits in (2, 3, 4)]

    chosen = choose([layer(1.0), layer(1000.0), layer(0.001)], 900)
    assert chosen is not None
    assert [each.nbytes for each in chosen] == [300, 400, 200]


def test_options_above_the_convex_hull_are_not_chosen() -> None:
    hull = [Choice(None, 10, 10.0), Choice(None, 30, 0.0)]
    above = Choice(None, 20, 9.0)
    assert choose([[*hull, above]], 30) == [hull[1]]
    assert choose([[*hull, above]], 25) == [hull[0]]
    np.testing.assert_equal(choose([[*hull, above]], 9), None)
