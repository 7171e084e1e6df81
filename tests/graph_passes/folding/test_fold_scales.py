"""Constant scales and shifts are folded into adjacent layers; without a suitable layer they stay with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.errors import GraphError
from intaglio.graph_passes.folding.fold_scales import FoldScales

RANDOM = np.random.default_rng(0)
K, N = 3, 4
W, V = (RANDOM.standard_normal((K, N)).astype(np.float32) for _ in range(2))
B = RANDOM.standard_normal(N).astype(np.float32)
GAMMA, BETA = np.array([2.0, -0.5, 3.0], np.float32), np.array([1.0, -2.0, 0.25], np.float32)
X = RANDOM.standard_normal((2, 5, K)).astype(np.float32)
WEIGHTS = {"w": W, "v": V, "b": B, "g": GAMMA, "e": BETA, "s": np.array(0.25, np.float32)}


def folded(parse: Any, compute: Any, text: str, used: str, x: Any = X, more: Any = None) -> tuple[Any, Any]:
    """The folded model and its counts, after comparing its outputs with the original, float32 [...] within 1e-5."""
    weights = WEIGHTS | (more or {})
    model = parse(text, {name: weights[name] for name in used.split()})
    expected = compute(model, x=x)
    names = [value.name for value in model.graph.outputs]
    model, counts = FoldScales()(model)
    assert [value.name for value in model.graph.outputs] == names
    for result, wanted in zip(compute(model, x=x), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-5 * max(1, np.abs(wanted).max()))
    return model, counts


def test_scale_inside_a_residual_is_folded_into_all_following_layers(parse: Any, compute: Any, operators: Any) -> None:
    text = """(float[A, T, 3] x) => (float[A, T, 4] y, float[A, T, 3] r) {
        n = LayerNormalization <axis = -1> (x, g, e)
        m = Mul(g, n)  a = Add(m, e)
        p = MatMul(a, w)  q = Add(p, b)  k = MatMul(a, v)  y = Add(q, k)  r = Add(n, x)
    }"""
    model, counts = folded(parse, compute, text, "g e w v b")
    assert counts.rewritten == {"shifts": 1, "scales": 1}
    assert counts.reasons == []
    assert operators(model) == ["Add"] * 4 + ["LayerNormalization"] + ["MatMul"] * 2
    np.testing.assert_allclose(model.graph.initializers["w"].const_value.numpy(), GAMMA[:, None] * W)
    np.testing.assert_allclose(model.graph.initializers["b"].const_value.numpy(), B + BETA @ W, rtol=1e-6)


@pytest.mark.parametrize(("written", "kept"), [("Mul(x, g)", GAMMA), ("Div(x, g)", 1 / GAMMA)])
def test_multiplications_and_divisions_are_scales(
    parse: Any, compute: Any, operators: Any, written: str, kept: Any
) -> None:
    text = f"(float[A, T, 3] x) => (float[A, T, 4] y) {{ a = {written}  y = MatMul(a, w) }}"
    model, counts = folded(parse, compute, text, "g w")
    assert (counts.rewritten, operators(model)) == ({"scales": 1}, ["MatMul"])
    np.testing.assert_allclose(model.graph.initializers["w"].const_value.numpy(), kept[:, None] * W, rtol=1e-6)


def test_subtraction_is_a_shift_and_the_reversed_one_stays(parse: Any, compute: Any, operators: Any) -> None:
    text = """(float[A, T, 3] x) => (float[A, T, 4] y) {
        c = Sub(e, x)  a = Sub(c, g)  p = MatMul(a, w)  y = Add(p, b)
    }"""
    model, counts = folded(parse, compute, text, "e g w b")
    assert counts.rewritten == {"shifts": 1}
    assert operators(model) == ["Add", "MatMul", "Sub"]


def test_shift_adds_a_bias_to_a_layer_without_one(parse: Any, compute: Any, operators: Any) -> None:
    text = "(float[A, T, 3] x) => (float[A, T, 4] y) { a = Add(x, e)  p = MatMul(a, w)  y = Relu(p) }"
    model, counts = folded(parse, compute, text, "e w")
    assert counts.rewritten == {"shifts": 1}
    assert operators(model) == ["Add", "MatMul", "Relu"]
    added = next(node for node in model.graph if node.op_type == "Add")
    assert added.outputs[0].name == "p", "the layer's output lost its name"


def test_weight_with_other_consumers_is_copied(parse: Any, compute: Any) -> None:
    text = """(float[A, T, 3] x) => (float[A, T, 4] y, float[A, T, 4] z) {
        a = Mul(x, g)  p = MatMul(a, w)  y = Add(p, b)
        q = MatMul(x, w)  z = Add(q, b)
    }"""
    model, counts = folded(parse, compute, text, "g w b")
    assert counts.rewritten == {"scales": 1, "copied weights": 1}
    assert np.array_equal(model.graph.initializers["w"].const_value.numpy(), W)


def test_query_scale_after_the_head_split_is_folded_into_the_projection(
    parse: Any, compute: Any, operators: Any
) -> None:
    text = """(float[A, T, 3] x) => (float[A, 2, T, 2] y) {
        p = MatMul(x, w)  q = Add(p, b)  h = Reshape(q, shape)  t = Transpose <perm = [0, 2, 1, 3]> (h)
        y = Mul(t, s)
    }"""
    model, counts = folded(parse, compute, text, "w b s shape", more={"shape": np.array([0, 0, 2, 2])})
    assert counts.rewritten == {"scales": 1}
    assert operators(model) == ["Add", "MatMul", "Reshape", "Transpose"]
    names = {value.name for node in model.graph for value in node.outputs}
    assert names.isdisjoint("pqh"), "a value with other numbers kept its name"


def test_scale_per_head_is_not_folded(parse: Any, compute: Any, operators: Any) -> None:
    text = """(float[A, T, 3] x) => (float[A, T, 2, 2] y) {
        p = MatMul(x, w)  h = Reshape(p, shape)  y = Mul(h, two)
    }"""
    more = {"shape": np.array([0, 0, 2, 2]), "two": np.array([1, 2], np.float32)}
    model, counts = folded(parse, compute, text, "w shape two", more=more)
    assert counts.rewritten == {}
    assert operators(model) == ["MatMul", "Mul", "Reshape"]


def test_layer_output_with_other_consumers_is_not_scaled(parse: Any, compute: Any, operators: Any) -> None:
    text = """(float[A, T, 3] x) => (float[A, T, 4] y, float[A, T, 4] z) {
        p = MatMul(x, w)  q = Add(p, b)  y = Mul(q, s)  z = Relu(q)
    }"""
    model, counts = folded(parse, compute, text, "w b s")
    assert counts.rewritten == {}
    assert "Mul" in operators(model)


@pytest.mark.parametrize(
    ("text", "used", "reason"),
    [
        (
            "(float[A, T, 3] x) => (float[A, T, 3] a, float[A, T, 4] y) { a = Mul(x, g) y = MatMul(a, w) }",
            "g w",
            "Mul that is an output of the graph",
        ),
        (
            "(float[A, T, 3] x) => (float[A, T, 4] y, float[A, T, 3] z) { a = Mul(x, g) y = MatMul(a, w) z = Relu(a) }",
            "g w",
            "Mul used by Relu, no linear layer",
        ),
        (
            "(float[A, T, 3] x) => (float[A, T, T] y) { a = Mul(x, g) t = Transpose <perm = [0, 2, 1]> (x) "
            "y = MatMul(a, t) }",
            "g",
            "Mul used by a MatMul whose weight is not a constant",
        ),
        (
            "(int64[A] i) => (float[A, 5] y) { x = Gather(table, i) a = Mul(x, g) y = Gemm <transB = 1> (a, table) }",
            "g table",
            "Mul used by a Gemm whose weight is an embedding table too",
        ),
        (
            "(float[A, T, 3] x) => (float[A, T, 4] y) { a = Mul(x, n) y = MatMul(a, w) }",
            "n w",
            "Mul by NaN, infinity, or divided by 0",
        ),
        (
            "(float[A, T, 3] x) => (float[A, T, 4] y) { a = Div(x, z) y = MatMul(a, w) }",
            "z w",
            "Div by NaN, infinity, or divided by 0",
        ),
        (
            "(float[A, 5, 3] x) => (float[A, 5, 4] y) { a = Mul(x, rows) y = MatMul(a, w) }",
            "rows w",
            "Mul by a constant that is neither one number nor one for each of 3 channels",
        ),
    ],
)
def test_skipped_nodes_have_a_reason(parse: Any, compute: Any, text: str, used: str, reason: str) -> None:
    more = {
        "n": np.array([1, np.nan, 2], np.float32),
        "z": np.array([1, 0, 2], np.float32),
        "rows": np.ones((5, 1), np.float32),
        "table": np.ones((5, 3), np.float32),
    }
    model = parse(text, {name: (WEIGHTS | more)[name] for name in used.split()})
    before = len(model.graph)
    model, counts = FoldScales()(model)
    assert counts.rewritten == {}
    assert [line.rsplit(":", 1)[0] for line in counts.reasons] == [reason]
    assert len(model.graph) == before


def test_constant_that_broadcasts_the_value_stays(parse: Any, compute: Any) -> None:
    wider = "(float[A, T, 1] x) => (float[A, T, 4] y) { a = Mul(x, g) y = MatMul(a, w) }"
    _, counts = folded(parse, compute, wider, "g w", x=X[..., :1])
    assert counts.rewritten == {}
    more = {"one": np.ones((1, 1, 1, 1), np.float32)}
    deeper = "(float[A, T, 3] x) => (float[1, A, T, 4] y) { a = Mul(x, one) y = MatMul(a, w) }"
    _, counts = folded(parse, compute, deeper, "one w", more=more)
    assert counts.rewritten == {}


def test_shift_before_a_padded_convolution_stays_but_its_scale_is_folded(
    parse: Any, compute: Any, operators: Any
) -> None:
    text = """(float[A, 3, T] x) => (float[A, 4, T] y) {
        m = Mul(x, g)  a = Add(m, e)  y = Conv <pads = [1, 1]> (a, c)
    }"""
    more = {
        "c": RANDOM.standard_normal((4, 3, 3)).astype(np.float32),
        "g": GAMMA.reshape(3, 1),
        "e": BETA.reshape(3, 1),
    }
    model, counts = folded(parse, compute, text, "g e c", x=X.transpose(0, 2, 1), more=more)
    assert counts.rewritten == {}
    assert counts.reasons[0].startswith("Add used by a Conv that pads its input with zeros")
    scaled = text.replace("a = Add(m, e)", "").replace("(a, c)", "(m, c)")
    model, counts = folded(parse, compute, scaled, "g c", x=X.transpose(0, 2, 1), more=more)
    assert (counts.rewritten, operators(model)) == ({"scales": 1}, ["Conv"])


def test_only_plain_gemm_absorbs_scales_and_shifts(parse: Any, compute: Any, operators: Any) -> None:
    text = """(float[A, 3] x) => (float[A, 4] y) {
        m = Mul(x, g)  a = Add(m, e)  h = Gemm <transB = 1> (a, t)  y = Mul(h, s)
    }"""
    model, counts = folded(parse, compute, text, "g e t s", x=X[0], more={"t": np.ascontiguousarray(W.T)})
    assert (counts.rewritten, operators(model)) == ({"scales": 2, "shifts": 1}, ["Gemm"])
    model, counts = folded(
        parse, compute, text.replace("transB", "alpha = 2.0, transB"), "g e t s", x=X[0], more={"t": W.T}
    )
    assert counts.rewritten == {}


def test_shape_consumers_use_the_unscaled_value(parse: Any, compute: Any, operators: Any) -> None:
    text = "(float[A, T, 3] x) => (float[A, T, 4] y, int64[3] z) { a = Mul(x, g) y = MatMul(a, w) z = Shape(a) }"
    model, counts = folded(parse, compute, text, "g w")
    assert (counts.rewritten, operators(model)) == ({"scales": 1}, ["MatMul", "Shape"])


def test_scale_in_a_branch_does_not_change_an_outer_layer(parse: Any, compute: Any) -> None:
    text = """(float[A, T, 3] x, bool c) => (float[A, T, 4] y) {
        p = MatMul(x, w)
        y = If (c) <then_branch = g1 () => (float[A, T, 4] t) { t = Mul(p, s) },
                    else_branch = g2 () => (float[A, T, 4] u) { u = Relu(v2) }>
    }"""
    more = {"v2": np.ones((2, 5, 4), np.float32)}
    model = parse(text, {"w": W, "s": WEIGHTS["s"], **more})
    expected = compute(model, x=X, c=np.array(True))
    model, counts = FoldScales()(model)
    assert counts.rewritten == {}
    np.testing.assert_array_equal(compute(model, x=X, c=np.array(True))[0], expected[0])


def test_folding_beyond_the_range_of_float32_is_refused(parse: Any) -> None:
    text = "(float[A, T, 3] x) => (float[A, T, 4] y) { a = Mul(x, h) y = MatMul(a, w) }"
    model = parse(text, {"w": W * np.float32(1e20), "h": np.full(3, 1e30, np.float32)})
    with pytest.raises(GraphError, match="w: folded, it exceeds float32"):
        FoldScales()(model)


def test_float16_layers_stay(parse: Any) -> None:
    text = "(float16[A, T, 3] x) => (float16[A, T, 4] y) { a = Mul(x, g) y = MatMul(a, w) }"
    _, counts = FoldScales()(parse(text, {"w": W.astype(np.float16), "g": GAMMA.astype(np.float16)}))
    assert counts.rewritten == {}
    assert counts.reasons[0].startswith("Mul used by a MatMul in float16, expected float32")


@settings(max_examples=examples(40), deadline=None)
@given(
    channels=st.integers(1, 5),
    outputs=st.integers(1, 5),
    groups=st.integers(1, 3),
    kernel=st.integers(1, 3),
    one=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_grouped_convolutions_of_any_shape_absorb_scales_and_shifts(
    parse: Any, compute: Any, operators: Any, channels: int, outputs: int, groups: int, kernel: int, one: bool,
    bias: bool, seed: int,
) -> None:  # fmt: skip
    random = np.random.default_rng(seed)
    inputs = channels * groups
    text = f"""(float[A, {inputs}, T] x) => (float[A, {outputs * groups}, U] y) {{
        m = Mul(x, g)  a = Add(m, e)  c = Conv <group = {groups}> (a, w{", b" if bias else ""})  y = Mul(c, s)
    }}"""

    def numbers(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    weights = {
        "g": numbers(1 if one else inputs, 1),
        "e": numbers(1, 1 if one else inputs, 1),
        "w": numbers(outputs * groups, channels, kernel),
        "s": numbers(outputs * groups, 1),
    }
    if bias:
        weights["b"] = numbers(outputs * groups)
    model, counts = folded(parse, compute, text, " ".join(weights), x=numbers(2, inputs, 6), more=weights)
    assert (counts.rewritten, operators(model)) == ({"scales": 2, "shifts": 1}, ["Conv"])
