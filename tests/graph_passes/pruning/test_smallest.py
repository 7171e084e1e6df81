"""The smallest values of several matrices, found matrix by matrix, equal those found by sorting all values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from intaglio.graph_passes.pruning.smallest import of_all, of_one


@given(
    st.lists(st.lists(st.floats(-4, 4, width=16), min_size=3, max_size=3), min_size=1, max_size=8),
    st.integers(1, 4),
    st.floats(0, 1),
)
def test_smallest_values_of_all_matrices_are_found(rows: list[list[float]], parts: int, fraction: float) -> None:
    whole = np.array(rows, np.float32)
    matrices = np.array_split(whole, parts)
    number = round(fraction * whole.size)
    threshold = of_all([matrices, matrices], number)
    chosen = np.concatenate([threshold.smallest(matrix) for matrix in matrices])
    assert chosen.sum() == number, "ties counted wrongly"
    magnitudes = np.abs(whole)
    assert magnitudes[chosen].max(initial=0) <= magnitudes[~chosen].min(initial=np.inf)
    alone = of_one(whole, number).smallest(whole)
    np.testing.assert_array_equal(alone, chosen)
