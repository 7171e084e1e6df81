"""Later columns compensate errors of earlier ones: outputs change less, and exact values compensate most."""

from __future__ import annotations

import numpy as np
import pytest

from intaglio.executors.executor import INLINE
from intaglio.graph_passes.lookup_tables.compensation import Compensation
from intaglio.graph_passes.lookup_tables.compressed import Compressed, Floats, Method, compensated, fitted_lut
from intaglio.plugins.native.clustering import assign, cluster

NOWHERE = np.empty(0, np.int64)


def stored(matrix: Floats, sensitivities: Floats, method: Method, compensation: Compensation) -> Compressed:
    fitted = fitted_lut(matrix, sensitivities, method)
    return compensated(INLINE, compensation, matrix, fitted, method)


def layer(rows: int = 16, columns: int = 160) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A weight [N, K], correlated inputs [tokens, K], and sensitivities [N, K]."""
    random = np.random.default_rng(0)
    mixing = random.standard_normal((columns, columns)) / 4 + np.eye(columns)
    x = (random.standard_normal((600, columns)) @ mixing).astype(np.float32)
    matrix = random.standard_t(5, (rows, columns)).astype(np.float32)
    return matrix, x, random.random((rows, columns), np.float32)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_compensation_beats_the_nearest_centroids(bits: int) -> None:
    matrix, x, sensitivities = layer()
    lut = cluster(matrix, sensitivities, 2**bits).centroids
    plain = np.take_along_axis(lut, assign(matrix, lut).astype(np.int64), axis=1)
    indices, _, _ = Compensation(x.T @ x).assign(matrix, lut, NOWHERE)
    made = np.take_along_axis(lut, indices.astype(np.int64), axis=1)
    assert np.square(x @ (made - matrix).T).mean() < 0.7 * np.square(x @ (plain - matrix).T).mean()


def test_uncorrelated_inputs_give_the_nearest_centroids() -> None:
    matrix, _, sensitivities = layer()
    lut = cluster(matrix, sensitivities, 8).centroids
    indices, _, _ = Compensation(np.eye(160, dtype=np.float32)).assign(matrix, lut, NOWHERE)
    np.testing.assert_array_equal(indices, assign(matrix, lut))


def test_exact_values_compensate_earlier_errors() -> None:
    matrix, x, sensitivities = layer()
    compensation = Compensation(x.T @ x)
    plain = stored(matrix, sensitivities, Method(2), compensation)
    kept = stored(matrix, sensitivities, Method(2, "auto", 0.01, 0.04), compensation)
    assert kept.sparse is not None
    assert kept.sparse.values.size == round(0.01 * matrix.size) + round(0.04 * matrix.size)
    assert np.square(x @ (kept.weight() - matrix).T).mean() < 0.7 * np.square(x @ (plain.weight() - matrix).T).mean()
    assert kept.error < 0.7 * plain.error


@pytest.mark.parametrize("method", [Method(2), Method(4), Method(3, "auto", 0.01, 0.04)])
@pytest.mark.parametrize("tokens", [600, 100, 5])
def test_error_is_the_quadratic_form_of_the_second_moments(method: Method, tokens: int) -> None:
    matrix, x, sensitivities = layer()
    x = x[:tokens]
    made = stored(matrix, sensitivities, method, Compensation(x.T @ x))
    outputs = np.square(x.astype(np.float64) @ (made.weight() - matrix).T).sum(axis=0)
    expected = (outputs * sensitivities.sum(axis=1)).sum() / np.trace(x.T @ x)
    assert made.error == pytest.approx(expected, rel=1e-4)


def test_all_exact_values_give_zero_error() -> None:
    matrix, x, sensitivities = layer()
    made = stored(matrix, sensitivities, Method(2, "auto", 0.5, 0.5), Compensation(x.T @ x))
    np.testing.assert_allclose(made.weight(), matrix, atol=1e-5)
    assert made.error == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("method", [Method(3), Method(3, "auto", 0.01, 0.04)])
def test_row_blocks_do_not_change_the_result(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, x, sensitivities = layer(rows=23)
    compensation = Compensation(x.T @ x)
    whole = stored(matrix, sensitivities, method, compensation)
    monkeypatch.setattr("intaglio.graph_passes.weights.row_blocks.WEIGHTS", 4 * 160)
    monkeypatch.setattr("intaglio.graph_passes.lookup_tables.sparse.WEIGHTS", 1000)
    parts = stored(matrix, sensitivities, method, compensation)
    np.testing.assert_allclose(parts.weight(), whole.weight(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(parts.table.lut, whole.table.lut)
    assert parts.error == pytest.approx(whole.error, rel=1e-4)
