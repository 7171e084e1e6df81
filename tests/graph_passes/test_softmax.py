"""Softmax is recognised with and without the maximum; similar graphs are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intaglio.graph_passes.canonicalize import Canonicalize

X = np.random.default_rng(0).normal(0, 2, (2, 3, 8)).astype(np.float32)
HEAD = "(float[N, 3, 8] x) => (float[N, 3, 8] y)"
SHIFTS = {
    "maximum": "m = ReduceMax(x, axes) d = Sub(x, m)",
    "negative maximum": "m = ReduceMax(x, axes) mn = Neg(m) d = Add(mn, x)",
    "none": "d = Identity(x)",
}
QUOTIENTS = {
    "div": "y = Div(e, s)",
    "reciprocal": "r = Reciprocal(s) y = Mul(r, e)",
    "one over": "r = Div(one, s) y = Mul(e, r)",
}


def weights(axis: int) -> dict[str, Any]:
    return {"axes": np.array([axis]), "one": np.array(1, np.float32)}


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_every_form_becomes_one_softmax(
    parse: Any, compute: Any, operators: Any, axis: int, shift: str, quotient: str
) -> None:
    model = parse(
        f"{HEAD} {{ {SHIFTS[shift]} e = Exp(d) s = ReduceSum(e, axes) {QUOTIENTS[quotient]} }}", weights(axis)
    )
    expected = compute(model, x=X)
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {"softmax": 1}
    assert operators(model) in (["Softmax"], ["Identity", "Softmax"])
    np.testing.assert_allclose(compute(model, x=X)[0], expected[0], rtol=1e-5)


def test_maximum_over_another_axis_is_not_fused(parse: Any, compute: Any, operators: Any) -> None:
    text = f"{HEAD} {{ m = ReduceMax(x, other) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, axes) y = Div(e, s) }}"
    model = parse(text, {**weights(-1), "other": np.array([1])})
    expected = compute(model, x=X)
    model, _ = Canonicalize()(model)
    assert operators(model) == ["ReduceMax", "Softmax", "Sub"]
    np.testing.assert_allclose(compute(model, x=X)[0], expected[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("e = Exp(x) f = Exp(z) s = ReduceSum(e, axes) y = Div(f, s)", "nothing divides that Exp"),
        ("e = Exp(x) s = ReduceSum(e, axes) t = Add(s, one) y = Div(e, t)", "nothing divides that Exp"),
        ("e = Exp(x) s = ReduceSum(e, axes) t = Mul(s, s) y = Div(e, t)", "nothing divides that Exp"),
        ("e = Exp(x) s = ReduceSum(e, both) y = Div(e, s)", "not over one known axis"),
        ("e = Exp(x) s = ReduceSum(e) y = Div(e, s)", "not over one known axis"),
        ("e = Relu(x) s = ReduceSum(e, axes) y = Div(e, s)", "none of them part of the formula"),
    ],
)
def test_near_misses_stay(parse: Any, operators: Any, nodes: str, expected: str) -> None:
    head = "(float[N, 3, 8] x, float[N, 3, 8] z) => (float[N, 3, 8] y)"
    model, counts = Canonicalize()(parse(f"{head} {{ {nodes} }}", {**weights(-1), "both": np.array([1, 2])}))
    assert counts.rewritten == {}
    assert "Softmax" not in operators(model)
    assert any(expected in reason for reason in counts.reasons), counts.reasons


def test_exponential_with_other_consumers_stays(parse: Any, compute: Any, operators: Any) -> None:
    text = f"{HEAD.replace('y)', 'y, float[N, 3, 8] e)')} {{ e = Exp(x) s = ReduceSum(e, axes) y = Div(e, s) }}"
    model = parse(text, weights(-1))
    expected = compute(model, x=X)
    model, _ = Canonicalize()(model)
    assert operators(model) == ["Exp", "Softmax"]
    for result, wanted in zip(compute(model, x=X), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-5)
