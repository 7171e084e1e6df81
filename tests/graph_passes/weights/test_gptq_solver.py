"""The GPTQ solver equals the published algorithm, and its outputs are nearer than those of rounding."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.graph_passes.weights.gptq_solver import BLOCK, Solver, inverse_factor, invert_cholesky
from intaglio.graph_passes.weights.uniform import Codes, Floats, Grid, fit
from intaglio.processes.threads import bounded


def inputs(tokens: int, channels: int, seed: int = 0) -> Floats:
    """Correlated activations [tokens, channels] whose channels differ in size."""
    random = np.random.default_rng(seed)
    mixed = random.standard_normal((tokens, channels // 4)) @ random.standard_normal((channels // 4, channels))
    noisy = mixed + 0.3 * random.standard_normal((tokens, channels))
    return (noisy * np.exp(random.standard_normal(channels))).astype(np.float32)


def weights(rows: int, channels: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, channels)).astype(np.float32)


def one_by_one(weight: Floats, hessian: Floats, grid: Grid, damping: float) -> Codes:
    """Equations 2 and 3 of the paper in float64, without blocks and without Cholesky: H⁻¹ shrinks column by column."""
    size = weight.shape[1]
    order = np.argsort(-np.diag(hessian), kind="stable")
    damped = hessian.astype(np.float64) + damping * np.diag(hessian).mean() * np.eye(size)
    left, inverse = list(order), np.linalg.inv(damped[np.ix_(order, order)])
    remaining, codes = weight.astype(np.float64), np.zeros(weight.shape, np.uint8)
    while left:
        column = left[0]
        single = grid.encode(remaining.astype(np.float32))
        codes[:, column] = single[:, column]
        error = (remaining[:, column] - grid.decode(single)[:, column]) / inverse[0, 0]
        remaining[:, left] -= np.outer(error, inverse[0])
        inverse = (inverse - np.outer(inverse[:, 0], inverse[0]) / inverse[0, 0])[1:, 1:]
        left = left[1:]
    return codes


@pytest.mark.parametrize("symmetric", [False, True])
def test_blocks_and_cholesky_equal_the_plain_algorithm(symmetric: bool) -> None:
    x, weight = inputs(400, BLOCK + 64), weights(8, BLOCK + 64)
    hessian, grid = x.T @ x, fit(weight, 4, 64, symmetric)
    codes = Solver(hessian, 0.01).round(weight, grid)
    expected = one_by_one(weight, hessian, grid, 0.01)
    assert np.mean(codes == expected) > 0.99, "ties may fall the other way in float32"


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("group_size", [0, 64])
def test_gptq_beats_rounding_and_activation_order_beats_both(bits: int, group_size: int) -> None:
    x, weight = inputs(1000, 256), weights(64, 256)
    hessian, grid = x.T @ x, fit(weight, bits, group_size, symmetric=False)
    rounded = grid.encode(weight)
    plain = Solver(hessian, act_order=False).round(weight, grid)
    ordered = Solver(hessian).round(weight, grid)
    errors = [float(np.linalg.norm(x @ (grid.decode(codes) - weight).T)) for codes in (ordered, plain, rounded)]
    assert errors[0] < errors[1] < errors[2]
    assert errors[0] < 0.5 * errors[2]


def test_independent_channels_are_rounded_to_the_nearest() -> None:
    weight = weights(16, 96)
    grid = fit(weight, 3, 32, symmetric=False)
    hessian = np.diag(np.linspace(1, 50, 96)).astype(np.float32)
    np.testing.assert_array_equal(Solver(hessian).round(weight, grid), grid.encode(weight))


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_fewer_tokens_than_channels_are_enough(tokens: int) -> None:
    x, weight = inputs(40, 64)[:tokens], weights(4, 64)
    grid = fit(weight, 4, 32, symmetric=False)
    codes = Solver(x.T @ x).round(weight, grid)
    rounded = grid.encode(weight)
    error = np.linalg.norm(x @ (grid.decode(codes) - weight).T)
    assert error <= np.linalg.norm(x @ (grid.decode(rounded) - weight).T)
    assert tokens or (codes == rounded).all()


def test_dead_channels_are_rounded_to_the_nearest() -> None:
    x, weight = inputs(300, 64), weights(4, 64)
    x[:, 10:20] = 0
    grid = fit(weight, 4, 32, symmetric=False)
    codes = Solver(x.T @ x).round(weight, grid)
    np.testing.assert_array_equal(codes[:, 10:20], grid.encode(weight)[:, 10:20])


def test_indefinite_hessian_is_damped_more() -> None:
    hessian = np.ones((40, 40), np.float32)
    hessian[0, 1] = hessian[1, 0] = 1.5
    factor, added = inverse_factor(hessian, np.arange(len(hessian)), 1e-6)
    assert np.isfinite(factor).all()
    assert added > 1e-6


@given(st.integers(1, 200), st.integers(0, 2**32))
@settings(max_examples=examples(20))
def test_recursive_inverse_is_exact(size: int, seed: int) -> None:
    square = np.random.default_rng(seed).standard_normal((size, size)) / size + np.eye(size)
    matrix = square @ square.T + 0.01 * np.eye(size)
    expected = np.linalg.inv(np.linalg.cholesky(matrix))
    invert_cholesky(matrix)
    np.testing.assert_allclose(matrix, expected, atol=1e-9)


def test_memory_is_that_of_one_matrix_in_float64() -> None:
    x = inputs(800, 768)
    hessian = x.T @ x
    tracemalloc.start()
    with bounded(1):
        Solver(hessian)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3.1 * hessian.nbytes, "2 for float64, 1 for a float32 copy at either end"


def test_arguments_are_not_modified() -> None:
    x, weight = inputs(100, 64), weights(4, 64)
    hessian = x.T @ x
    before = hessian.copy(), weight.copy()
    Solver(hessian).round(weight, fit(weight, 4, 32, symmetric=False))
    np.testing.assert_array_equal(hessian, before[0])
    np.testing.assert_array_equal(weight, before[1])
