"""Codebooks on a grid have the format of the kernels and little error; the requested sparse values are exact."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.graph_passes.lookup_tables import layers as lut_layers
from intaglio.graph_passes.lookup_tables import sparse, tables
from intaglio.graph_passes.lookup_tables.compressed import Method
from intaglio.graph_passes.lookup_tables.sparse import select_sparse
from intaglio.plugins.csr_matmul.spec import sparse_weight
from intaglio.plugins.native.clustering import cluster


def weight(rows: int = 12, columns: int = 512, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    matrix = (0.02 * random.standard_t(5, (rows, columns))).astype(np.float32)
    return matrix, (1e-6 * random.standard_normal((rows, columns)) ** 2).astype(np.float32)


@pytest.mark.parametrize("grid", [8, 16])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_rounded_rows_are_one_scale_times_integers(bits: int, grid: int) -> None:
    lut = tables.rounded(cluster(*weight(), 2**bits).centroids, grid).astype(np.float64)
    most = 2 ** (grid - 1) - 1
    factors = np.abs(lut).max(axis=1, keepdims=True) / most
    integers = np.rint(lut / factors)
    np.testing.assert_allclose(lut, factors * integers, rtol=2**-22)
    assert (np.abs(integers).max(axis=1) == most).all()
    assert (np.diff(lut, axis=1) >= 0).all()


def test_row_of_zeros_stays_zero() -> None:
    np.testing.assert_array_equal(tables.rounded(np.zeros((1, 4), np.float32), 8), np.zeros((1, 4)))


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_auto_uses_the_coarsest_grid_with_less_than_one_percent_error(bits: int) -> None:
    matrix, sensitivities = weight(columns=1024)
    made = tables.fit(matrix, sensitivities, bits, "auto")
    errors = {grid: tables.fit(matrix, sensitivities, bits, grid).error for grid in (8, 16, 32)}
    assert errors[32] <= errors[16] <= errors[8]
    assert made.grid == next(grid for grid in (8, 16, 32) if errors[grid] <= 1.01 * errors[32])
    assert made.error == errors[made.grid]


def test_sparse_distant_values_need_a_finer_grid() -> None:
    matrix = np.tile(np.array([[-1.0, 0.011, 0.021, 0.0303]], np.float32), (3, 8))
    assert tables.fit(matrix, np.ones_like(matrix), 2, "auto").grid == 32
    assert tables.fit(matrix, np.ones_like(matrix), 2, "auto").error == 0


def test_reported_error_equals_the_error_of_the_stored_weight() -> None:
    matrix, sensitivities = weight()
    made = tables.fit(matrix, sensitivities, 3, "auto")
    stored = np.take_along_axis(made.lut, made.indices.astype(np.int64), axis=1)
    error = (sensitivities.astype(np.float64) * (matrix.astype(np.float64) - stored) ** 2).sum()
    assert made.error == pytest.approx(error, rel=1e-6)


@settings(max_examples=examples(40))
@given(
    rows=st.integers(1, 6), columns=st.integers(1, 40), sensitive=st.floats(0, 0.5), outliers=st.floats(0, 0.5),
    seed=st.integers(0, 5), block=st.sampled_from([7, 64, 1 << 22]),
)  # fmt: skip
def test_exact_number_of_sparse_values_is_kept(
    rows: int, columns: int, sensitive: float, outliers: float, seed: int, block: int
) -> None:
    matrix, sensitivities = weight(rows, columns, seed)
    size = matrix.size
    with patch.object(sparse, "WEIGHTS", block):
        places = select_sparse(matrix, sensitivities, sensitive, outliers)
    first, second = round(sensitive * size), round(outliers * size)
    assert len(np.unique(places)) == len(places) == min(first + second, size)
    assert (np.diff(places) > 0).all()
    order = np.argsort(sensitivities.reshape(-1))
    assert set(order[size - first :]) <= set(places.tolist())
    rest = [place for place in np.argsort(np.abs(matrix).reshape(-1)) if place not in set(order[size - first :])]
    assert set(places.tolist()) - set(order[size - first :]) == set(rest[max(len(rest) - second, 0) :])


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_sparse_values_are_restored_exactly(bits: int) -> None:
    matrix, sensitivities = weight()
    before = sensitivities.copy()
    made = lut_layers.compressed(matrix, sensitivities, Method(bits, "auto", 0.0005, 0.004))
    np.testing.assert_array_equal(sensitivities, before)
    assert made.sparse is not None
    assert made.sparse.values.size == round(0.0005 * matrix.size) + round(0.004 * matrix.size)
    apart_values = sparse_weight(made.sparse.values, made.sparse.columns, made.sparse.row_offsets, matrix.shape[1])
    dense = np.take_along_axis(made.table.lut, made.table.indices.astype(np.int64), axis=1)
    apart = apart_values != 0
    np.testing.assert_allclose((dense + apart_values)[apart], matrix[apart], rtol=1e-6)
    assert apart.reshape(-1)[np.abs(matrix).argmax()]
    assert apart.reshape(-1)[sensitivities.argmax()]
    plain = lut_layers.compressed(matrix, sensitivities, Method(bits))
    assert made.table.error < 0.95 * plain.table.error


def test_sensitive_weights_have_the_smallest_error() -> None:
    matrix, _ = weight(rows=1)
    sensitivities = np.full_like(matrix, 1e-6)
    sensitivities[0, [3, 77, 200]] = 1
    made = tables.fit(matrix, sensitivities, 2, 32)
    stored = np.take_along_axis(made.lut, made.indices.astype(np.int64), axis=1)
    np.testing.assert_allclose(stored[0, [3, 77, 200]], matrix[0, [3, 77, 200]], atol=2e-5)
