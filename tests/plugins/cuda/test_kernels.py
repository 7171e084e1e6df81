"""Every CUDA kernel against the NumPy reference, to the bit: emulated as a T4 and an A100, and on a GPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kernel_cases import folder_of, launch_of, outputs_of
from operator_cases import MAKERS, Case, cases, int8, longest

from intaglio.errors import EngineError
from intaglio.plugins import OPS
from intaglio.plugins.cuda import launcher
from intaglio.plugins.cuda.emulator import emulate

Run = Callable[[Case, int], list[np.ndarray]]


@pytest.fixture(scope="module", params=[75, 80, "gpu"])
def run(request) -> Run:
    """Runs a case's kernel; the seed is the order of threads."""
    if request.param != "gpu":
        return lambda case, seed: emulate(
            folder_of(case.operator), launch_of(case), case.inputs, outputs_of(case), request.param, seed
        )
    if launcher.device_sm() is None:
        pytest.skip("no CUDA device")
    return lambda case, _: launcher.run(folder_of(case.operator), launch_of(case), case.inputs, outputs_of(case))


def check(run: Run, case: Case, seed: int = 0) -> None:
    expected = OPS[case.operator].reference(case.inputs, case.attributes)
    for got, want in zip(run(case, seed), expected, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("operator", MAKERS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_kernel_equals_reference(run, operator, data, seed):
    check(run, data.draw(cases(operator)), seed)


@pytest.mark.parametrize("operator", MAKERS)
def test_kernel_equals_reference_on_rows_of_4096(run, operator):
    check(run, longest(operator))


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(0, 200), inner=st.integers(0, 13), columns=st.integers(0, 20), seed=st.integers(0, 99))
@example(rows=128, inner=12, columns=16, seed=1)
@example(rows=65, inner=9, columns=17, seed=1)
def test_aligned_matrices_that_do_not_fill_their_tiles(run, rows, inner, columns, seed):
    random = np.random.default_rng(seed)
    x, weight = int8(random, rows, 16 * inner), int8(random, 16 * inner, 16 * columns)
    bias = random.integers(-(2**20), 2**20, 16 * columns).astype(np.int32)
    check(run, Case("IntLinear", (x, weight, bias), {"bits": 32}), seed)


@pytest.mark.parametrize(("depth", "keys"), [(32, 300), (64, 129), (80, 64), (128, 65), (7, 0)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_at_every_depth_that_has_a_kernel(run, depth, keys, masked):
    random = np.random.default_rng(depth)
    query, key, value = (int8(random, 2, length, 2 * depth) for length in (70, keys, keys))
    mask = random.random((2, 1, 70, keys)) < 0.7 if masked else None
    factors = np.array([2**30], np.int32), np.array([37], np.int32)
    check(run, Case("IntAttention", (query, key, value, *factors, mask), {"num_heads": 2, "scale": 1e-3}), depth)


def test_uniform_attention_over_4096_keys_keeps_its_mass(run):
    value = np.full((1, 4096, 32), 100, np.int8)
    factors = np.array([2**30], np.int32), np.array([38], np.int32)
    zeros = np.zeros((1, 1, 32), np.int8), np.zeros((1, 4096, 32), np.int8)
    case = Case("IntAttention", (*zeros, value, *factors, None), {"num_heads": 1, "scale": 1e-3})
    assert (run(case, 0)[0] == 100).all()
    check(run, case)


def test_masked_softmax_of_five_axes_is_refused():
    x: Any = np.zeros((1, 1, 1, 1, 4), np.int32)
    case = Case("IntSoftmax", (x, np.ones((1, 1, 1, 1, 4), np.bool_)), {"scale": 1.0, "out_scale": 1 / 127})
    with pytest.raises(EngineError, match="5 axes, expected at most 4"):
        launch_of(case)


def test_attention_heads_deeper_than_any_kernel_are_refused():
    wide = np.zeros((1, 1, 129), np.int8)
    factors = np.array([1], np.int32), np.array([0], np.int32)
    with pytest.raises(EngineError, match="heads of 129 channels, expected at most 128"):
        launch_of(Case("IntAttention", (wide, wide, wide, *factors), {"num_heads": 1, "scale": 1.0}))
