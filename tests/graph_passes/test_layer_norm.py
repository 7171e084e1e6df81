"""LayerNormalization is recognised in every form; similar graphs are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intaglio.graph_passes.canonicalize import Canonicalize

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(2, 3, (2, 3, 8)).astype(np.float32)
WEIGHTS = {
    "w": RANDOM.normal(1, 1, 8).astype(np.float32),
    "b": RANDOM.normal(0, 1, 8).astype(np.float32),
    "axes": np.array([-1]),
    "eps": np.array(1e-5, np.float32),
    "two": np.array(2, np.float32),
    "one": np.array(1, np.float32),
    "minus_half": np.array([-0.5], np.float32),
}
MEANS = ["m = ReduceMean(x, axes)", "m = ReduceMean <keepdims = 1> (x, axes)"]
DEVIATIONS = {"sub": "d = Sub(x, m)", "add of negative": "mn = Neg(m) d = Add(mn, x)"}
SQUARES = {"pow": "s = Pow(d, two)", "mul": "s = Mul(d, d)", "reversed": "r0 = Sub(m, x) s = Mul(r0, r0)"}
EPSILONS = {"left": "t = Add(eps, v)", "right": "t = Add(v, eps)"}
SCALES = {
    "div": "sd = Sqrt(t) n = Div(d, sd)",
    "reciprocal": "sd = Sqrt(t) r = Reciprocal(sd) n = Mul(r, d)",
    "one over": "sd = Sqrt(t) r = Div(one, sd) n = Mul(d, r)",
    "pow": "r = Pow(t, minus_half) n = Mul(d, r)",
    "root of reciprocal": "q = Reciprocal(t) r = Sqrt(q) n = Mul(d, r)",
}
ENDS = {
    "weight, bias": "nw = Mul(n, w) y = Add(nw, b)",
    "bias, weight": "nw = Mul(w, n) y = Add(b, nw)",
    "weight": "y = Mul(n, w)",
    "bias": "y = Add(n, b)",
    "neither": "y = Identity(n)",
    "minus negative bias": "nw = Mul(n, w) bn = Neg(b) y = Sub(nw, bn)",
}


def graph(
    mean: str = MEANS[0],
    deviation: str = "sub",
    square: str = "pow",
    epsilon: str = "right",
    scale: str = "div",
    end: str = "weight, bias",
    io: str = "(float[N, 3, 8] x) => (float[N, 3, 8] y)",
) -> str:
    parts = [mean, DEVIATIONS[deviation], SQUARES[square], "v = ReduceMean(s, axes)", EPSILONS[epsilon]]
    return f"{io} {{ {' '.join([*parts, SCALES[scale], ENDS[end]])} }}"


ARRANGEMENTS = [
    *[{"scale": scale, "end": end} for scale in SCALES for end in ENDS],
    *[{"square": square, "deviation": deviation} for square in SQUARES for deviation in DEVIATIONS],
    {"epsilon": "left", "mean": MEANS[1]},
]


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda one: ", ".join(one.values()))
def test_every_form_becomes_one_node(parse: Any, compute: Any, operators: Any, arrangement: dict[str, str]) -> None:
    model = parse(graph(**arrangement), WEIGHTS)
    expected = compute(model, x=X)
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {"layer_norm": 1}
    assert operators(model) in (["LayerNormalization"], ["Identity", "LayerNormalization"])
    assert [value.name for value in model.graph.outputs] == ["y"]
    np.testing.assert_allclose(compute(model, x=X)[0], expected[0], rtol=1e-4, atol=1e-5)


BATCH_NORM = """(float[N, 3, 8] x) => (float[N, 3, 8] y) {
    m = ReduceMean(x, axes)  d = Sub(x, m)  s = Mul(d, d)  v = ReduceMean(s, axes)  t = Add(v, eps)
    sd = Sqrt(t)  r = Reciprocal(sd)  rw = Mul(r, w)
    xw = Mul(x, rw)  mw = Mul(m, rw)  c = Sub(b, mw)  y = Add(xw, c)
}"""


def test_batch_norm_form_of_tensorflow_is_fused(parse: Any, compute: Any, operators: Any) -> None:
    model = parse(BATCH_NORM, WEIGHTS)
    expected = compute(model, x=X)
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {"layer_norm": 1}
    assert operators(model) == ["LayerNormalization"]
    assert model.graph[0].inputs[1:] == (model.graph.initializers["w"], model.graph.initializers["b"])
    assert "eps" not in model.graph.initializers
    assert model.graph[0].attributes["epsilon"].as_float() == pytest.approx(1e-5)
    np.testing.assert_allclose(compute(model, x=X)[0], expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [2, -1])
def test_positive_and_negative_last_axes_are_fused(parse: Any, axis: int) -> None:
    _, counts = Canonicalize()(parse(graph(), {**WEIGHTS, "axes": np.array([axis])}))
    assert counts.rewritten == {"layer_norm": 1}


@pytest.mark.parametrize("axes", [[1], [-2], [1, 2], [0]])
def test_other_axes_stay(parse: Any, operators: Any, axes: list[int]) -> None:
    weights = {**WEIGHTS, "axes": np.array(axes)}
    model, counts = Canonicalize()(parse(graph(), weights))
    assert counts.rewritten == {}
    assert "LayerNormalization" not in operators(model)
    assert any("not over the last axis of x alone" in reason for reason in counts.reasons), counts.reasons


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"w": np.ones((3, 8), np.float32)}, "weight is not 1-D: w [3, 8]"),
        ({"b": np.ones((3, 1), np.float32)}, "bias is not 1-D: b [3, 1]"),
        ({"b": np.ones((3, 8), np.float32)}, "bias is not 1-D: b [3, 8]"),
    ],
)
def test_weights_that_are_no_vectors_are_not_fused(
    parse: Any, compute: Any, operators: Any, changes: dict[str, Any], reason: str
) -> None:
    model = parse(graph(), {**WEIGHTS, **changes})
    expected = compute(model, x=X)
    model, counts = Canonicalize()(model)
    assert f"layer_norm: {reason}" in counts.reasons
    assert "Add" in operators(model)
    np.testing.assert_allclose(compute(model, x=X)[0], expected[0], rtol=1e-4, atol=1e-5)


def test_weight_with_leading_ones_becomes_a_vector(parse: Any, compute: Any, operators: Any) -> None:
    model = parse(graph(), {**WEIGHTS, "w": WEIGHTS["w"].reshape(1, 1, 8)})
    expected = compute(model, x=X)
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {"layer_norm": 1}
    assert model.graph.initializers["w_1d"].shape == [8]
    assert "w" not in model.graph.initializers
    np.testing.assert_allclose(compute(model, x=X)[0], expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"eps": np.array(-1e-5, np.float32)},
        {"two": np.array(3, np.float32)},
        {"minus_half": np.array([0.5], np.float32)},
    ],
    ids=str,
)
def test_wrong_constants_are_not_fused(parse: Any, operators: Any, changes: dict[str, Any]) -> None:
    model, counts = Canonicalize()(parse(graph(scale="pow"), {**WEIGHTS, **changes}))
    assert counts.rewritten == {}
    assert "LayerNormalization" not in operators(model)


def test_mean_of_another_value_is_not_fused(parse: Any, operators: Any) -> None:
    text = graph(io="(float[N, 3, 8] x, float[N, 3, 8] z) => (float[N, 3, 8] y)", mean="m = ReduceMean(z, axes)")
    model, counts = Canonicalize()(parse(text, WEIGHTS))
    assert counts.rewritten == {}
    assert "LayerNormalization" not in operators(model)


def test_root_mean_square_norm_is_not_fused(parse: Any, operators: Any) -> None:
    text = """(float[N, 3, 8] x) => (float[N, 3, 8] y) {
        s = Mul(x, x)  v = ReduceMean(s, axes)  t = Add(v, eps)  sd = Sqrt(t)  n = Div(x, sd)  y = Mul(n, w)
    }"""
    model, counts = Canonicalize()(parse(text, WEIGHTS))
    assert counts.rewritten == {}
    assert "LayerNormalization" not in operators(model)


def test_intermediate_graph_outputs_stay(parse: Any, compute: Any, operators: Any) -> None:
    io = "(float[N, 3, 8] x) => (float[N, 3, 8] y, float[N, 3, 8] n, float[N, 3, 1] v)"
    model = parse(graph(io=io), WEIGHTS)
    expected = compute(model, x=X)
    model, counts = Canonicalize()(model)
    assert counts.rewritten["layer_norm"] >= 1
    assert [value.name for value in model.graph.outputs] == ["y", "n", "v"]
    for result, wanted in zip(compute(model, x=X), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


def test_residual_sums_before_and_after_stay(parse: Any, compute: Any, operators: Any) -> None:
    """The input of the normalisation and the value that uses it are sums: neither is part of the formula."""
    inner = graph(io="").split("{", 1)[1].rsplit("}", 1)[0].replace("y = ", "ln = ")
    text = f"""(float[N, 3, 8] p, float[N, 3, 8] q) => (float[N, 3, 8] y) {{
        x = Add(p, q) {inner} y = Add(ln, x)
    }}"""
    model = parse(text, WEIGHTS)
    expected = compute(model, p=X, q=X[::-1].copy())
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {"layer_norm": 1}
    assert [node.op_type for node in model.graph] == ["Add", "LayerNormalization", "Add"]
    assert model.graph[1].outputs[0].name == "ln"
    np.testing.assert_allclose(compute(model, p=X, q=X[::-1].copy())[0], expected[0], rtol=1e-4, atol=1e-5)


CASTS = {
    "variance in float32": """
        m = ReduceMean(x, axes)  d = Sub(x, m)  d32 = Cast <to = 1> (d)  s = Pow(d32, two)  v = ReduceMean(s, axes)
        t = Add(v, eps)  sd = Sqrt(t)  sd16 = Cast <to = 10> (sd)
        n = Div(d, sd16)  nw = Mul(n, w16)  y = Add(nw, b16)""",
    "all but the weights in float32": """
        x32 = Cast <to = 1> (x)  m = ReduceMean(x32, axes)  d = Sub(x32, m)  s = Mul(d, d)  v = ReduceMean(s, axes)
        t = Add(v, eps)  sd = Sqrt(t)  n = Div(d, sd)
        n16 = Cast <to = 10> (n)  nw = Mul(n16, w16)  y = Add(nw, b16)""",
}


@pytest.mark.parametrize("form", CASTS)
def test_casts_of_float16_exports_are_matched(parse: Any, compute: Any, operators: Any, form: str) -> None:
    weights = {**WEIGHTS, **{f"{name}16": WEIGHTS[name].astype(np.float16) for name in "wb"}}
    model = parse(f"(float16[N, 3, 8] x) => (float16[N, 3, 8] y) {{ {CASTS[form]} }}", weights)
    expected = compute(model, x=X.astype(np.float16))
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {"layer_norm": 1}
    assert operators(model) == ["LayerNormalization"]
    np.testing.assert_allclose(compute(model, x=X.astype(np.float16))[0], expected[0], rtol=1e-2, atol=1e-2)


def test_float32_weights_keep_the_normalisation_in_float32(parse: Any, compute: Any, operators: Any) -> None:
    text = """(float16[N, 3, 8] x) => (float16[N, 3, 8] y) {
        x32 = Cast <to = 1> (x)  m = ReduceMean(x32, axes)  d = Sub(x32, m)  s = Mul(d, d)  v = ReduceMean(s, axes)
        t = Add(v, eps)  sd = Sqrt(t)  n = Div(d, sd)  nw = Mul(n, w)  y32 = Add(nw, b)  y = Cast <to = 10> (y32)
    }"""
    model = parse(text, WEIGHTS)
    expected = compute(model, x=X.astype(np.float16))
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {"layer_norm": 1}
    assert operators(model) == ["Cast", "Cast", "LayerNormalization"]
    np.testing.assert_allclose(compute(model, x=X.astype(np.float16))[0], expected[0], rtol=1e-3, atol=1e-3)


def test_unknown_width_is_skipped_with_a_reason(parse: Any) -> None:
    text = graph(io="(float[N, 3, C] x) => (float[N, 3, C] y)", end="neither")
    _, counts = Canonicalize()(parse(text, WEIGHTS))
    assert counts.rewritten == {}
    assert "layer_norm: x: the length of its last axis is not known" in counts.reasons
