"""Which cases of a test `@pytest.mark.covering` keeps."""

from __future__ import annotations

import itertools

import pytest
from covering import covering


@pytest.mark.parametrize(("strength", "most"), [(1, 3), (2, 11), (3, 36)])
def test_every_interaction_of_the_strength_is_kept(strength: int, most: int) -> None:
    cases = [dict(zip("abcd", values, strict=True)) for values in itertools.product(*map(range, (3, 3, 2, 2)))]
    kept = [cases[index] for index in covering(cases, strength)]
    for names in itertools.combinations("abcd", strength):
        expected = {tuple(case[name] for name in names) for case in cases}
        assert {tuple(case[name] for name in names) for case in kept} == expected
    assert len(kept) <= most


def test_interactions_without_a_case_are_not_required() -> None:
    cases = [{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"a": 1, "b": 0}]
    assert covering(cases, 1) == [0, 1]
    assert covering(cases, 2) == [0, 1, 2]


@pytest.mark.covering(1)
@pytest.mark.parametrize("left", ["a", "b", "c"])
@pytest.mark.parametrize("right", [[1], [2]])
def test_marked_test_keeps_each_value(request: pytest.FixtureRequest, left: str, right: list[int]) -> None:
    assert left and right
    if not request.config.option.keyword and not any("[" in argument for argument in request.config.args):
        function = request.node.nodeid.partition("[")[0]
        cases = [item for item in request.session.items if item.nodeid.partition("[")[0] == function]
        assert len(cases) == 3
