"""Linear layers are found in every form with correctly oriented weights; similar nodes are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from intaglio.errors import GraphError
from intaglio.graph_passes.contract import Counts
from intaglio.graph_passes.weights.linear_layers import LayerWriter, linear_layers

Parse = Callable[..., ir.Model]
WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)  # [N, K]


def found(model: ir.Model, **options: object) -> tuple[list[str], Counts]:
    counts = Counts()
    layers = linear_layers(model, counts, **options)  # type: ignore[arg-type]
    for layer in layers:
        assert layer.shape == (3, 4)
        np.testing.assert_array_equal(layer.matrix(), WEIGHT)
        assert layer.matrix().flags.c_contiguous
    return [layer.name for layer in layers], counts


FORMS = {
    "MatMul(x, w)": (WEIGHT.T, "y = MatMul(x, w)"),
    "Transpose": (WEIGHT, "t = Transpose<perm=[1, 0]>(w) y = MatMul(x, t)"),
    "Gemm": (WEIGHT.T, "y = Gemm(x, w, b)"),
    "Gemm transB": (WEIGHT, "y = Gemm<transB=1>(x, w, b)"),
    "Gemm of a Transpose": (WEIGHT.T, "t = Transpose<perm=[1, 0]>(w) y = Gemm<transB=1>(x, t)"),
    "float16": (WEIGHT.T.astype(np.float16), "f = Cast<to=1>(w) y = MatMul(x, f)"),
    "float16, turned": (
        WEIGHT.astype(np.float16),
        "t = Transpose(w) f = Cast<to=1>(t) y = MatMul(x, f)",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_layer_gives_the_same_matrix(form: str, parse: Parse) -> None:
    stored, nodes = FORMS[form]
    weights = {"a.b.weight": stored, "b": np.zeros(3, np.float32)}
    body = nodes.replace("w)", '"a.b.weight")').replace("w,", '"a.b.weight",')
    model = parse(f"(float[2, 4] x) => (float[2, 3] y) {{ {body} }}", weights)
    assert found(model)[0] == ["a.b"]


@pytest.mark.parametrize(
    ("nodes", "weight"),
    [
        ("y = Gemm<alpha=2.0>(x, w)", WEIGHT.T),
        ("y = Gemm<transA=1>(x, w)", WEIGHT.T),
        ("n = Neg(w) y = MatMul(x, n)", WEIGHT.T),
        ("y = MatMul(x, w)", WEIGHT.T[None]),
        ("c = Constant<value = float[2, 4] {1, 2, 3, 4, 5, 6, 7, 8}>() y = MatMul(c, w)", WEIGHT.T),
    ],
)
def test_similar_nodes_are_not_linear_layers(nodes: str, weight: np.ndarray, parse: Parse) -> None:
    model = parse(f"(float[A, B] x) => (float[C, D] y) {{ {nodes} }}", {"w": weight}, domains=', "unused": 1')
    names, counts = found(model)
    assert names == []
    assert counts.reasons == ["no MatMul or Gemm with a constant matrix"]


TIED = """(int64[2] ids) => (float[2, 3] y) {
    x = Gather(table, ids)
    t = Transpose<perm=[1, 0]>(table)
    y = MatMul(x, t)
}"""


def test_tied_head_is_skipped_unless_requested(parse: Parse) -> None:
    model = parse(TIED, {"table": WEIGHT})
    assert found(model)[0] == []
    assert found(model)[1].reasons == ["table: its weight is an embedding table too, left without tied: true"]
    assert found(model, tied=True)[0] == ["table"]


def test_skipped_layers_have_a_reason(parse: Parse) -> None:
    model = parse("(float[2, 4] x) => (float[2, 3] y) { y = MatMul(x, w) }", {"w": WEIGHT.T})
    assert found(model, skip=("w*",))[1].reasons == ["w: skipped as asked"]
    assert found(model, multiple_of=32)[1].reasons == ["w: 4 inputs are not a multiple of 32"]


def test_misspelt_skip_is_refused(parse: Parse) -> None:
    model = parse("(float[2, 4] x) => (float[2, 3] y) { y = MatMul(x, w) }", {"w": WEIGHT.T})
    with pytest.raises(GraphError, match="no linear layer's name matches 'lm_hed'"):
        found(model, skip=("lm_hed",))


def test_non_finite_weights_are_refused(parse: Parse) -> None:
    model = parse("(float[2, 4] x) => (float[2, 3] y) { y = MatMul(x, w) }", {"w": np.full((4, 3), np.nan, np.float32)})
    with pytest.raises(GraphError, match="w: contains NaN or infinity"):
        found(model)


def test_replaced_layer_keeps_its_bias_and_releases_its_weight(parse: Parse, compute: Callable[..., list]) -> None:
    weights = {"w": WEIGHT, "b": np.array([1, 2, 3], np.float32)}
    model = parse("(float[2, 4] x) => (float[2, 3] y) { y = Gemm<transB=1>(x, w, b) }", weights)
    x = np.ones((2, 4), np.float32)
    before = compute(model, x=x)[0]
    (layer,) = linear_layers(model, Counts())
    writer = LayerWriter(model)
    other = writer.constant(WEIGHT.T.copy(), "other")
    product = writer.node(layer.node, "MatMul", [layer.x, other], "product").outputs[0]
    layer.replace(writer, product)
    assert sorted(model.graph.initializers) == ["b", "other"]
    np.testing.assert_array_equal(compute(model, x=x)[0], before)
