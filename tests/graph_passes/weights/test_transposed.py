"""The copy by tiles equals NumPy's transpose, in any shape and dtype."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.graph_passes.weights.transposed import TILE, transposed

LENGTHS = st.one_of(st.integers(0, 3), st.integers(TILE - 1, TILE + 1), st.integers(1, 3 * TILE))


@given(LENGTHS, LENGTHS)
def test_transpose_by_tiles_equals_the_whole_one(rows: int, columns: int) -> None:
    matrix = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    made = transposed(matrix)
    np.testing.assert_array_equal(made, matrix.T)
    assert made.flags.c_contiguous and made.dtype == matrix.dtype


@pytest.mark.parametrize("stored", [np.float16, np.float32])
def test_transpose_converts(stored: type) -> None:
    matrix = np.arange(300, dtype=stored).reshape(3, 100)[:, ::2]  # not contiguous
    made = transposed(matrix, np.float64)
    np.testing.assert_array_equal(made, matrix.T)
    assert made.dtype == np.float64
