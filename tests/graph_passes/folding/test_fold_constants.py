"""Folding changes no value, enlarges no model, and skips values that must not be computed in advance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intaglio.graph_passes.folding.fold_constants import FoldConstants

W = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_chains_of_constants_become_one_initializer(parse: Any, compute: Any, operators: Any) -> None:
    text = """(float[2, 3] x) => (float[2, 4] y) {
        two = Constant <value_float = 2.0> ()
        r = Sqrt(two)  a = Mul(w, r)  y = MatMul(x, a)
    }"""
    model = parse(text, {"w": W})
    x = np.ones((2, 3), np.float32)
    expected = compute(model, x=x)
    model, counts = FoldConstants()(model)
    assert counts.rewritten == {"constants": 2}
    assert operators(model) == ["MatMul"]
    assert set(model.graph.initializers) == {"a"}
    np.testing.assert_allclose(compute(model, x=x)[0], expected[0], rtol=1e-6)


def test_static_shapes_fold_and_dynamic_ones_stay(parse: Any, compute: Any, operators: Any) -> None:
    text = """(float[2, 3] x, float[N, 3] z) => (int64[2] a, int64[2] b, int64 c, int64[1] d) {
        a = Shape(x)  b = Shape(z)  c = Size(x)  d = Shape <start = 1> (z)
    }"""
    model = parse(text)
    feeds = {"x": np.ones((2, 3), np.float32), "z": np.ones((5, 3), np.float32)}
    expected = compute(model, **feeds)
    model, counts = FoldConstants()(model)
    assert counts.rewritten == {"constants": 3}
    assert operators(model) == ["Shape"]
    assert [value.name for value in model.graph.outputs] == ["a", "b", "c", "d"]
    for result, wanted in zip(compute(model, **feeds), expected, strict=True):
        np.testing.assert_array_equal(result, wanted)
        assert result.dtype == wanted.dtype


def test_folding_a_shape_makes_the_next_shape_static(parse: Any, operators: Any) -> None:
    text = """(float[2, 6] x) => (int64[K] y) {
        s = Shape(x)  first = Gather(s, zero)  target = Concat <axis = 0> (first, rest)
        r = Reshape(x, target)  y = Shape(r)
    }"""
    model = parse(text, {"zero": np.array([0]), "rest": np.array([3, 2])})
    model, _ = FoldConstants()(model)
    assert operators(model) == []
    assert model.graph[0].attributes["value"].as_tensor().numpy().tolist() == [2, 3, 2]


def test_identities_are_removed_except_at_graph_outputs(parse: Any, compute: Any, operators: Any) -> None:
    text = "(float[2] x) => (float[2] y, float[2] z) { a = Identity(x) b = Identity(a) y = Relu(b) z = Identity(b) }"
    model, counts = FoldConstants()(parse(text))
    assert counts.rewritten == {"identities": 2}
    assert operators(model) == ["Identity", "Relu"]
    assert [value.name for value in model.graph.outputs] == ["y", "z"]
    np.testing.assert_array_equal(compute(model, x=np.array([-1, 2], np.float32))[1], [-1, 2])


@pytest.mark.parametrize(
    "node",
    [
        "a = RandomNormal <shape = [3, 4]> ()",
        "a = RandomNormalLike(w)",
        "a = Bernoulli(w)",
        "i = Constant <value_floats = [0.5]> () q = QuantizeLinear(w, i) a = DequantizeLinear(q, i)",
    ],
)
def test_random_and_quantisation_nodes_stay(parse: Any, operators: Any, node: str) -> None:
    model = parse(f"(float[3, 4] x) => (float[3, 4] y) {{ {node} y = Add(x, a) }}", {"w": W / 12})
    before = operators(model)
    model, _ = FoldConstants()(model)
    assert operators(model) == before


def test_growth_beyond_the_limit_is_skipped_with_a_reason(parse: Any, operators: Any) -> None:
    text = "(float[N] x) => (float[100, 100] y) { y = ConstantOfShape(s) }"
    model = parse(text, {"s": np.array([100, 100])})
    model, counts = FoldConstants(max_bytes=1000)(model)
    assert operators(model) == ["ConstantOfShape"]
    assert "would grow by 39984 bytes, the limit is 1000" in counts.reasons[0]
    model, counts = FoldConstants(max_bytes=40000)(model)
    assert counts.rewritten == {"constants": 1}


def test_oversized_results_are_not_computed(parse: Any, operators: Any) -> None:
    model = parse("(float[N] x) => (float[A, B] y) { y = ConstantOfShape(s) }", {"s": np.array([1 << 20, 1 << 20])})
    model, counts = FoldConstants()(model)
    assert operators(model) == ["ConstantOfShape"]
    assert "would grow by" in counts.reasons[0]


def test_replacing_a_tensor_of_equal_size_is_not_growth(parse: Any, operators: Any) -> None:
    model = parse("(float[N, 4] x) => (float[N, 3] y) { t = Transpose(w) y = MatMul(x, t) }", {"w": W})
    model, counts = FoldConstants(max_bytes=0)(model)
    assert counts.rewritten == {"constants": 1}
    shared = """(float[N, 4] x, float[N, 3] z) => (float[N, 3] y, float[N, 4] u) {
        t = Transpose(w)  y = MatMul(x, t)  u = MatMul(z, w)
    }"""
    model, counts = FoldConstants(max_bytes=0)(parse(shared, {"w": W}))
    assert operators(model) == ["MatMul", "MatMul", "Transpose"]


def test_nodes_of_other_domains_are_skipped_with_a_reason(parse: Any, operators: Any) -> None:
    text = "(float[3, 4] x) => (float[3, 4] y) { a = intaglio.Odd(w) y = Add(x, a) }"
    model, counts = FoldConstants()(parse(text, {"w": W}, domains=', "intaglio": 1'))
    assert operators(model) == ["Add", "Odd"]
    assert any("intaglio.Odd" in reason and "not a standard operator" in reason for reason in counts.reasons)


def test_constants_inside_a_loop_fold(parse: Any, compute: Any) -> None:
    text = """(float[3, 4] x, int64 n) => (float[3, 4] y) {
        y = Loop (n, , x) <body = step (int64 i, bool c, float[3, 4] a) => (bool d, float[3, 4] b) {
            d = Identity(c)  two = Constant <value_float = 2.0> ()  r = Sqrt(two)  wr = Mul(w, r)  b = Add(a, wr)
        }>
    }"""
    model = parse(text, {"w": W})
    feeds = {"x": W, "n": np.array(3)}
    expected = compute(model, **feeds)
    model, counts = FoldConstants()(model)
    assert counts.rewritten == {"constants": 2}
    np.testing.assert_allclose(compute(model, **feeds)[0], expected[0], rtol=1e-6)


def test_values_used_only_by_a_removed_branch_are_removed(parse: Any, operators: Any) -> None:
    text = """(float[3, 4] x, bool c) => (float[3, 4] y) {
        e = Exp(x)
        unused = If (c) <
            then_branch = yes () => (float[3, 4] a) { a = Mul(e, w) },
            else_branch = no () => (float[3, 4] b) { b = Relu(e) }
        >
        y = Relu(x)
    }"""
    model, counts = FoldConstants()(parse(text, {"w": W}))
    assert counts.rewritten == {"unused": 5}
    assert operators(model) == ["Relu"]
    assert not model.graph.initializers


def test_division_by_zero_in_a_constant_gives_no_warning(parse: Any, compute: Any) -> None:
    model = parse("(float[3, 4] x) => (float[3, 4] y) { l = Log(w) y = Add(x, l) }", {"w": W})
    model, counts = FoldConstants()(model)
    assert counts.rewritten == {"constants": 1}
    assert compute(model, x=W)[0][0, 0] == -np.inf


def test_graph_without_constants_is_reported(parse: Any) -> None:
    _, counts = FoldConstants()(parse("(float[2] x) => (float[2] y) { y = Relu(x) }"))
    assert counts.rewritten == {}
    assert len(counts.reasons) == 1


def test_tied_head_stays_tied(parse: Any, operators: Any) -> None:
    body = (
        "(int64[2] ids) => (float[2, 3] y) { x = Gather(w, ids)  t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t) }"
    )
    model, counts = FoldConstants()(parse(body, {"w": W}))
    assert operators(model) == ["Gather", "MatMul", "Transpose"]
    assert counts.reasons[0] == "Transpose '': constant, but its matrix is used elsewhere too"
    body = "(float[2, 4] x) => (float[2, 3] y) { t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t) }"
    model, counts = FoldConstants()(parse(body, {"w": W}))
    assert operators(model) == ["MatMul"] and counts.rewritten == {"constants": 1}
