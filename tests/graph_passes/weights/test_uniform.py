"""A grid represents any group within half a step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.errors import GraphError
from intaglio.graph_passes.weights.int8_absmax import Int8Absmax
from intaglio.graph_passes.weights.int8_zeropoint import Int8ZeroPoint
from intaglio.graph_passes.weights.uniform import Floats, Grid, fit, usable_group_size

BITS = st.sampled_from([2, 3, 4, 5, 6, 8])


@st.composite
def matrices(draw: st.DrawFn) -> tuple[Floats, int]:
    """[N, K] of very different magnitudes, and a group size that divides K."""
    group_size = draw(st.sampled_from([0, 32, 64]))
    columns = (group_size or 32) * draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = 10.0 ** draw(st.integers(-30, 30))
    shift = draw(st.sampled_from([-3.0, 0.0, 3.0]))
    matrix = (random.standard_normal((draw(st.integers(1, 5)), columns)) + shift) * scale
    return matrix.astype(np.float32), group_size


def steps(grid: Grid, columns: int) -> Floats:
    """[N, K], the distance between the representable values of each weight."""
    return np.repeat(np.abs(grid.scales), columns // grid.scales.shape[1], axis=1)


@given(matrices(), BITS)
def test_error_of_asymmetric_groups_is_at_most_half_a_step(matrix_and_size: tuple[Floats, int], bits: int) -> None:
    matrix, group_size = matrix_and_size
    grid = fit(matrix, bits, group_size, symmetric=False)
    codes = grid.encode(matrix)
    assert codes.max() < 2**bits
    step = steps(grid, matrix.shape[1])
    # The zero point is an integer too, so the ends of the range may be half a step off the grid.
    assert (np.abs(grid.decode(codes) - matrix) <= 1.001 * step).all()
    inside = (codes > 0) & (codes < 2**bits - 1)
    assert (np.abs(grid.decode(codes) - matrix) <= 0.501 * step)[inside].all()


@given(matrices(), BITS)
def test_symmetric_groups_represent_their_extreme_exactly(matrix_and_size: tuple[Floats, int], bits: int) -> None:
    matrix, group_size = matrix_and_size
    grid = fit(matrix, bits, group_size, symmetric=True)
    rounded = grid.decode(grid.encode(matrix))
    groups = (len(matrix), -1, group_size or matrix.shape[1])
    farthest = np.abs(matrix).reshape(groups).argmax(axis=2)[..., None]
    kept, wanted = (np.take_along_axis(each.reshape(groups), farthest, 2) for each in (rounded, matrix))
    np.testing.assert_allclose(kept, wanted, rtol=1e-6)
    assert (np.abs(rounded - matrix) <= 1.001 * steps(grid, matrix.shape[1])).all()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("number", [0.0, 1e-45, -1e-39, 3.0, -2.0])
def test_constant_groups_round_to_their_value_or_to_zero(symmetric: bool, number: float) -> None:
    matrix = np.full((2, 64), number, np.float32)
    grid = fit(matrix, 4, 32, symmetric)
    rounded = grid.decode(grid.encode(matrix))
    np.testing.assert_allclose(rounded, matrix, rtol=1e-6, atol=1e-37)


def test_zero_stays_zero_if_all_weights_have_one_sign() -> None:
    matrix = np.linspace(2, 3, 64, dtype=np.float32)[None]
    grid = fit(matrix, 4, 0, symmetric=False)
    assert (grid.decode(grid.encode(np.zeros_like(matrix))) == 0).all()


def test_absmax_is_scale_times_minus_127_to_127() -> None:
    matrix = np.array([[-4.0, 2.0, 0.5, 0.0], [1.0, 0.25, -0.5, 0.0]], np.float32)
    channel = Int8Absmax(per="channel").grid(matrix)
    assert channel.zero_points is None
    np.testing.assert_allclose(channel.scales, np.array([[4 / 127], [1 / 127]]), rtol=1e-6)
    assert channel.encode(matrix).tolist() == [[1, 192, 144, 128], [255, 160, 64, 128]]
    np.testing.assert_array_equal(Int8Absmax(per="tensor").grid(matrix).scales, np.full((2, 1), 4 / 127, np.float32))


def test_zero_point_uses_the_full_range_of_skewed_weights() -> None:
    random = np.random.default_rng(0)
    matrix = (random.random((4, 64)) * 3 - 0.5).astype(np.float32)
    errors = [
        np.square(grid.decode(grid.encode(matrix)) - matrix).sum()
        for grid in (
            Int8ZeroPoint(per="channel").grid(matrix),
            Int8ZeroPoint(per="tensor").grid(matrix),
            Int8Absmax(per="channel").grid(matrix),
        )
    ]
    assert errors[0] < errors[1] < errors[2]
    assert len(np.unique(Int8ZeroPoint(per="tensor").grid(matrix).scales)) == 1


@pytest.mark.parametrize(
    ("length", "group_size", "usable"),
    [(2**17, 0, 2**16), (2**16, 0, 2**16), (3 * 2**15, 2**17, 3 * 2**14), (96, 0, 96)],
)
def test_groups_stay_within_the_32_bit_sums_of_the_kernels(length: int, group_size: int, usable: int) -> None:
    assert usable_group_size(length, group_size) == usable


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_scales_in_float16_are_rounded_before_the_weights(bits: int, symmetric: bool) -> None:
    matrix = np.random.default_rng(bits).standard_normal((8, 96)).astype(np.float32)
    grid, wide = (fit(matrix, bits, 32, symmetric, half) for half in (True, False))
    np.testing.assert_array_equal(grid.scales.astype(np.float16).astype(np.float32), grid.scales)
    assert (grid.scales != wide.scales).any()
    np.testing.assert_allclose(grid.scales, wide.scales, rtol=2**-11)
    # The end of a group's range is off the grid by at most what rounding changes the scale by, times the steps to it.
    room = (0.5 if not symmetric else 1) + 2 ** (bits - 11)
    assert (np.abs(grid.decode(grid.encode(matrix)) - matrix) <= (room + 0.5) * steps(grid, 96)).all()


def test_scales_beyond_float16_are_refused() -> None:
    with pytest.raises(GraphError, match="a scale of 1e\\+06 is beyond its range"):
        fit(np.full((1, 32), 15e6, np.float32), 4, 32, False, True)
    assert fit(np.full((1, 32), 1e-9, np.float32), 4, 32, True, True).scales == 1  # as those too small in float32
