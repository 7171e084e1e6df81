"""Round-to-nearest and the two of 8 bits on graphs: what the nodes compute, and what is left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from intaglio.errors import GraphError
from intaglio.graph_passes.weights.int8_absmax import Int8Absmax
from intaglio.graph_passes.weights.int8_zeropoint import Int8ZeroPoint
from intaglio.graph_passes.weights.rtn import Rtn
from intaglio.graph_passes.weights.uniform import fit
from intaglio.plugins.inlining import inline

PASSES = [
    Rtn(),
    Rtn(bits=2, group_size=32, symmetric=True),
    Rtn(bits=3, group_size=64),
    Rtn(bits=8, group_size=0),
    Int8Absmax(),
    Int8Absmax(per="tensor"),
    Int8ZeroPoint(),
    Int8ZeroPoint(per="tensor"),
]
RANDOM = np.random.default_rng(0)
W = RANDOM.standard_normal((128, 64)).astype(np.float32)
BIAS = np.linspace(-1, 1, 64, dtype=np.float32)
MATMUL = "(float[n, 128] x) => (float[n, 64] y) { p = MatMul(x, w) y = Add(p, b) }"
GEMM = "(float[n, 128] x) => (float[n, 64] y) { y = Gemm <transB = 1> (x, w, b) }"
X = RANDOM.standard_normal((5, 128)).astype(np.float32)


def initializers(model: ir.Model) -> dict[str, np.ndarray]:
    return {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}


@pytest.mark.parametrize("graph_pass", PASSES, ids=str)
@pytest.mark.parametrize("body", [MATMUL, GEMM], ids=["MatMul", "Gemm"])
def test_the_graph_computes_with_the_rounded_weights(
    parse: Callable[..., ir.Model], compute: Callable[..., list[np.ndarray]], graph_pass: Rtn, body: str
) -> None:
    weight = W.T.copy() if body == GEMM else W
    model, counts = graph_pass(parse(body, {"w": weight, "b": BIAS}))
    assert [node.op_type for node in model.graph] == ["GroupMatMul", "Add"]
    assert counts.rewritten["layers"] == 1 and counts.rewritten["weights"] == W.size
    stored = sum(array.nbytes for name, array in initializers(model).items() if name != "b")
    assert counts.rewritten["bytes"] == stored and counts.layers["w"]["bits"] == 8 * stored / W.size
    inline(model)
    (y,) = compute(model, x=X)
    bits = getattr(graph_pass, "bits", 8)
    step = 2 * np.abs(W).max() / (2**bits - 1)
    assert np.abs(y - (X @ W + BIAS)).max() < step * np.abs(X).sum(axis=1).max() / 4
    if isinstance(graph_pass, Rtn):
        matrix = np.ascontiguousarray(W.T)
        grid = fit(matrix, graph_pass.bits, graph_pass.group_size, graph_pass.symmetric)
        expected = X @ grid.decode(grid.encode(matrix)).T + BIAS
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_more_bits_and_smaller_groups_lose_less(parse: Callable[..., ir.Model]) -> None:
    options = [(2, 128), (3, 128), (3, 32), (4, 32), (8, 32)]
    made = [Rtn(bits, size)(parse(MATMUL, {"w": W, "b": BIAS}))[1].layers["w"]["error"] for bits, size in options]
    assert made == sorted(made, reverse=True) and made[-1] < 1e-4


def test_a_weight_that_two_layers_use_is_stored_once(parse: Callable[..., ir.Model]) -> None:
    body = "(float[n, 128] a, float[n, 128] c) => (float[n, 64] y) { p = MatMul(a, w) q = MatMul(c, w) y = Add(p, q) }"
    model, counts = Rtn()(parse(body, {"w": W}))
    assert sorted(initializers(model)) == ["w.packed", "w.scales", "w.zero_points"]
    assert counts.rewritten["weights"] == W.size


@pytest.mark.parametrize(
    ("rows", "options", "reason"),
    [
        (100, {"group_size": 0}, "w: 100 inputs are no multiple of 32"),
        (96, {"group_size": 64}, "w: 96 inputs are no multiple of 64"),
        (128, {"skip": ("w",)}, "w: skipped as asked"),
    ],
)
def test_layers_left_have_a_reason(
    parse: Callable[..., ir.Model], rows: int, options: dict[str, object], reason: str
) -> None:
    body = f"(float[n, {rows}] x) => (float[n, 64] y) {{ y = MatMul(x, w) }}"
    model, counts = Rtn(**options)(parse(body, {"w": W[:rows]}))  # type: ignore[arg-type]
    assert counts.reasons == [reason]
    assert [node.op_type for node in model.graph] == ["MatMul"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bits": 5}, "rtn: bits 5: expected one of 2, 3, 4, 8."),
        ({"group_size": 48}, "rtn: group_size 48: expected a multiple of 32, or 0 for whole rows."),
        ({"group_size": -32}, "rtn: group_size -32: expected"),
    ],
)
def test_options_out_of_range(options: dict[str, int], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        Rtn(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(parse: Callable[..., ir.Model], number: float) -> None:
    weight = W.copy()
    weight[3, 4] = number
    with pytest.raises(GraphError, match="w: holds NaN or infinity"):
        Rtn()(parse(MATMUL, {"w": weight, "b": BIAS}))


def test_a_misspelt_skip_is_refused(parse: Callable[..., ir.Model]) -> None:
    with pytest.raises(GraphError, match="no linear layer's name matches 'v'"):
        Int8Absmax(skip=("v",))(parse(MATMUL, {"w": W, "b": BIAS}))
