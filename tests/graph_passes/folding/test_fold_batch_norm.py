"""A batch normalisation is folded only into the layer before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.graph_passes.folding.fold_batch_norm import FoldBatchNorm

RANDOM = np.random.default_rng(1)
STATISTICS = {
    "scale": np.array([1.5, -2, 0.5, 3], np.float32),
    "shift": np.array([0.1, 2, -1, 0], np.float32),
    "mean": np.array([4, -1, 0.5, 100], np.float32),
    "var": np.array([0.01, 4, 1, 1e-8], np.float32),
}
W = RANDOM.standard_normal((4, 1, 3)).astype(np.float32)
X = RANDOM.standard_normal((2, 4, 7)).astype(np.float32)
NORM = "BatchNormalization <epsilon = 0.001> (c, scale, shift, mean, var)"


def compare(compute: Any, model: Any, expected: Any, x: Any = X) -> None:
    for result, wanted in zip(compute(model, x=x), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("bias", [True, False])
def test_normalisation_after_a_depthwise_convolution_is_folded(
    parse: Any, compute: Any, operators: Any, bias: bool
) -> None:
    text = f"""(float[A, 4, T] x) => (float[A, 4, T] y) {{
        c = Conv <group = 4, pads = [1, 1]> (x, w{", b" if bias else ""})  y = {NORM}
    }}"""
    weights = {"w": W, **STATISTICS} | ({"b": np.array([1, 2, 3, 4], np.float32)} if bias else {})
    model = parse(text, weights)
    expected = compute(model, x=X)
    model, counts = FoldBatchNorm()(model)
    assert (counts.rewritten, counts.reasons) == ({"batch normalisations": 1}, [])
    assert operators(model) == ["Conv"]
    assert model.graph.outputs[0].name == "y"
    assert len(model.graph.initializers) == 2, "the statistics stayed"
    compare(compute, model, expected)


def test_default_epsilon_equals_the_standard(parse: Any, compute: Any) -> None:
    text = f"(float[A, 4, T] x) => (float[A, 4, T] y) {{ c = Conv <group = 4> (x, w) y = {NORM} }}"
    model = parse(text.replace("<epsilon = 0.001> ", ""), {"w": W[..., :1], **STATISTICS})
    expected = compute(model, x=X)
    model, counts = FoldBatchNorm()(model)
    assert counts.rewritten == {"batch normalisations": 1}
    compare(compute, model, expected)


def test_normalisation_is_folded_into_gemm_but_not_into_3d_matmul(parse: Any, compute: Any, operators: Any) -> None:
    flat = "(float[A, 3] x) => (float[A, 4] y) { c = Gemm(x, w, b) y = BatchNormalization(c, scale, shift, mean, var) }"
    x = RANDOM.standard_normal((5, 3)).astype(np.float32)
    w, b = RANDOM.standard_normal((3, 4)).astype(np.float32), np.ones(4, np.float32)
    model = parse(flat, {"w": w, "b": b, **STATISTICS})
    expected = compute(model, x=x)
    model, counts = FoldBatchNorm()(model)
    assert (counts.rewritten, operators(model)) == ({"batch normalisations": 1}, ["Gemm"])
    compare(compute, model, expected, x)
    deep = f"(float[A, 4, 3] x) => (float[A, 4, 4] y) {{ c = MatMul(x, w) y = {NORM} }}"
    model, counts = FoldBatchNorm()(parse(deep, {"w": w, **STATISTICS}))
    assert counts.rewritten == {}
    assert "it follows MatMul, not a Conv or Gemm with constants" in counts.reasons[0]


def test_convolutions_that_share_a_weight_get_separate_weights(parse: Any, compute: Any) -> None:
    text = """(float[A, 4, T] x) => (float[A, 4, T] y, float[A, 4, T] z) {
        c = Conv <group = 4, pads = [1, 1]> (x, w)  d = Conv <group = 4, pads = [1, 1]> (x, w)
        y = BatchNormalization(c, scale, shift, mean, var)  z = BatchNormalization(d, shift, scale, mean, var)
    }"""
    model = parse(text, {"w": W, **STATISTICS})
    expected = compute(model, x=X)
    model, counts = FoldBatchNorm()(model)
    assert counts.rewritten == {"batch normalisations": 2, "copied weights": 1}
    compare(compute, model, expected)


@pytest.mark.parametrize(
    ("text", "changed", "reason"),
    [
        (
            f"(float[A, 4, T] c) => (float[A, 4, T] y) {{ y = {NORM} }}",
            {},
            "it follows an input, not a Conv or Gemm with constants",
        ),
        (
            f"(float[A, 4, T] x) => (float[A, 4, T] y, float[A, 4, T] z) {{ c = Conv <group = 4> (x, w) y = {NORM} "
            "z = Relu(c) }",
            {},
            "c has other users",
        ),
        (
            f"(float[A, 4, T] x, float[4] var) => (float[A, 4, T] y) {{ c = Conv <group = 4> (x, w) y = {NORM} }}",
            {"var": None},
            "its scales or statistics are not constants",
        ),
        (
            f"(float[A, 4, T] x) => (float[A, 4, T] y) {{ c = Conv <group = 4> (x, w) y = {NORM} }}",
            {"var": np.array([1, -1, 1, 1], np.float32)},
            "its variance + epsilon is not above 0",
        ),
        (
            f"(float[A, 4, T] x) => (float[A, 4, T] y) {{ c = Conv <group = 4> (x, w) y = {NORM} }}",
            {"mean": np.array([np.nan, 1, 1, 1], np.float32)},
            "its scales or statistics are NaN or infinite",
        ),
        (
            "(float[A, 4, T] x) => (float[A, 4, T] y, float[4] m, float[4] v) { c = Conv <group = 4> (x, w) "
            "y, m, v = BatchNormalization <training_mode = 1> (c, scale, shift, mean, var) }",
            {},
            "it is in training mode",
        ),
    ],
)
def test_skipped_nodes_have_a_reason(parse: Any, operators: Any, text: str, changed: Any, reason: str) -> None:
    weights = {"w": W[..., :1], **STATISTICS} | changed
    used = {name: array for name, array in weights.items() if array is not None and (name != "w" or "Conv" in text)}
    model = parse(text, used)
    before = operators(model)
    model, counts = FoldBatchNorm()(model)
    assert counts.rewritten == {}
    assert [line.split(": ", 1)[1] for line in counts.reasons] == [reason]
    assert operators(model) == before


@settings(max_examples=examples(25), deadline=None)
@given(groups=st.integers(1, 3), inputs=st.integers(1, 3), outputs=st.integers(1, 3), seed=st.integers(0, 99))
def test_images_and_groups_of_any_size_are_folded(
    parse: Any, compute: Any, operators: Any, groups: int, inputs: int, outputs: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    channels = outputs * groups
    text = f"""(float[A, {inputs * groups}, H, 5] x) => (float[A, {channels}, I, J] y) {{
        c = Conv <group = {groups}, strides = [2, 1]> (x, w)  y = {NORM}
    }}"""
    weights = {name: random.standard_normal(channels).astype(np.float32) for name in ("scale", "shift", "mean")}
    weights["var"] = random.uniform(0.1, 2, channels).astype(np.float32)
    weights["w"] = random.standard_normal((channels, inputs, 3, 2)).astype(np.float32)
    x = random.standard_normal((2, inputs * groups, 6, 5)).astype(np.float32)
    model = parse(text, weights)
    expected = compute(model, x=x)
    model, _ = FoldBatchNorm()(model)
    assert operators(model) == ["Conv"]
    for result, wanted in zip(compute(model, x=x), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-5 * max(1, np.abs(wanted).max()))
