"""Token trees: each token attends to its own path, for any order of the tree's list."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from intaglio.runtime.sessions.token_tree import ancestors, depths


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    size = draw(st.integers(1, 12))
    return [draw(st.integers(-1, place - 1)) for place in range(size)]


def path(parents: list[int], place: int) -> list[int]:
    return [*path(parents, parents[place]), place] if place >= 0 else []


@given(parents=trees())
def test_token_attends_to_its_path(parents: Any) -> None:
    found, deep = ancestors(parents), depths(parents)
    for place in range(len(parents)):
        expected = path(parents, place)
        assert np.flatnonzero(found[place]).tolist() == expected
        assert deep[place] == len(expected) - 1
