"""Round-to-nearest and both 8-bit recipes on graphs: results of the nodes, and skipped layers."""

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
    Rtn(bits=5, group_size=32, symmetric=True),
    Rtn(bits=6, group_size=64),
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
def test_graph_computes_with_the_rounded_weights(
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


def test_more_bits_and_smaller_groups_reduce_the_error(parse: Callable[..., ir.Model]) -> None:
    options = [(2, 128), (3, 128), (3, 32), (4, 32), (8, 32)]
    made = [Rtn(bits, size)(parse(MATMUL, {"w": W, "b": BIAS}))[1].layers["w"]["error"] for bits, size in options]
    assert made == sorted(made, reverse=True) and made[-1] < 1e-4


def test_shared_weight_is_stored_once(parse: Callable[..., ir.Model]) -> None:
    body = "(float[n, 128] a, float[n, 128] c) => (float[n, 64] y) { p = MatMul(a, w) q = MatMul(c, w) y = Add(p, q) }"
    model, counts = Rtn()(parse(body, {"w": W}))
    assert sorted(initializers(model)) == ["w.packed", "w.scales", "w.zero_points"]
    assert counts.rewritten["weights"] == W.size


@pytest.mark.parametrize(
    ("rows", "options", "reason"),
    [
        (100, {"group_size": 0}, "w: 100 inputs are not a multiple of 32"),
        (100, {"group_size": 64}, "w: 100 inputs are not a multiple of 32"),
        (128, {"skip": ("w",)}, "w: skipped as asked"),
    ],
)
def test_skipped_layers_have_a_reason(
    parse: Callable[..., ir.Model], rows: int, options: dict[str, object], reason: str
) -> None:
    body = f"(float[n, {rows}] x) => (float[n, 64] y) {{ y = MatMul(x, w) }}"
    model, counts = Rtn(**options)(parse(body, {"w": W[:rows]}))  # type: ignore[arg-type]
    assert counts.reasons == [reason]
    assert [node.op_type for node in model.graph] == ["MatMul"]


@pytest.mark.parametrize(("rows", "size"), [(576, 96), (1536, 128), (192, 96), (64, 64), (1184, 32), (128, 128)])
def test_indivisible_rows_get_the_largest_dividing_group(
    parse: Callable[..., ir.Model], compute: Callable[..., list[np.ndarray]], rows: int, size: int
) -> None:
    weight = RANDOM.standard_normal((rows, 24)).astype(np.float32)
    model, counts = Rtn()(parse(f"(float[n, {rows}] x) => (float[n, 24] y) {{ y = MatMul(x, w) }}", {"w": weight}))
    (node,) = model.graph
    assert node.op_type == "GroupMatMul" and node.attributes["group_size"].as_int() == size
    smaller = f"group_size 128 does not divide the rows of 1 layer, which have smaller groups: {size} for {rows} inputs"
    assert counts.reasons == ([] if size == 128 else [smaller])
    inline(model)
    x = RANDOM.standard_normal((3, rows)).astype(np.float32)
    (y,) = compute(model, x=x)
    rounded = weight.T.reshape(24, -1, size)
    low, high = np.minimum(rounded.min(axis=2), 0)[..., None], np.maximum(rounded.max(axis=2), 0)[..., None]
    scale = (high - low) / np.float32(15)
    zero = np.rint(-low / scale)
    expected = (np.clip(np.rint(rounded / scale) + zero, 0, 15) - zero) * scale
    np.testing.assert_allclose(y, x @ expected.reshape(24, -1).T, rtol=1e-4, atol=1e-3)


def test_smaller_groups_are_reported_in_one_line(parse: Callable[..., ir.Model]) -> None:
    names = [f"w{index}" for index in range(6)]
    body = "".join(f"h{index + 1} = MatMul(h{index}, {name}) " for index, name in enumerate(names))
    weights = {name: RANDOM.standard_normal((96, 96)).astype(np.float32) for name in names}
    body = f"(float[n, 96] h0) => (float[n, 64] y) {{ {body} y = MatMul(h6, out) }}"
    _, counts = Rtn(group_size=64)(parse(body, weights | {"out": RANDOM.standard_normal((96, 64)).astype(np.float32)}))
    assert counts.rewritten["layers"] == 7
    assert counts.reasons == [
        "group_size 64 does not divide the rows of 7 layers, which have smaller groups: 32 for 96 inputs"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 7}, "rtn: bits 7: expected one of 2, 3, 4, 5, 6, 8."),
        ({"group_size": 48}, "rtn: group_size 48: expected a multiple of 32, or 0 for whole rows."),
        ({"group_size": -32}, "rtn: group_size -32: expected"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Rtn(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_nan_weights_are_refused(parse: Callable[..., ir.Model], number: float) -> None:
    weight = W.copy()
    weight[3, 4] = number
    with pytest.raises(GraphError, match="w: contains NaN or infinity"):
        Rtn()(parse(MATMUL, {"w": weight, "b": BIAS}))


def test_misspelt_skip_is_refused(parse: Callable[..., ir.Model]) -> None:
    with pytest.raises(GraphError, match="no linear layer's name matches 'v'"):
        Int8Absmax(skip=("v",))(parse(MATMUL, {"w": W, "b": BIAS}))
