"""Float16 keeps float32 only where necessary, and makes no value infinite or zero."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from intaglio.bundle.half_precision import BLOCK, OutOfRange, convert
from intaglio.errors import GraphError
from intaglio.graph_passes.float16 import Float16

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(0, 1, (2, 4)).astype(np.float32)
W = RANDOM.normal(0, 1, (4, 4)).astype(np.float32)


def dtypes(model: ir.Model) -> dict[str, str]:
    """The dtypes of the graph's inputs and outputs."""
    return {str(value.name): str(value.dtype) for value in (*model.graph.inputs, *model.graph.outputs)}


@settings(max_examples=examples(200))
@given(hnp.arrays(np.float32, st.integers(1, 8), elements=st.floats(width=32)))
def test_conversion_introduces_no_infinities_and_no_zeros(array: Any) -> None:
    with np.errstate(over="raise", invalid="raise"):
        half = convert(array)
    finite = np.isfinite(array)
    assert np.isfinite(half[finite]).all()
    np.testing.assert_array_equal(half[~finite], array[~finite])
    np.testing.assert_array_equal(half == 0, array == 0)
    np.testing.assert_array_equal(np.signbit(half[finite]), np.signbit(array[finite]))
    ordinary = finite & (np.abs(array) <= 65504) & (np.abs(array) >= 6.2e-5)
    np.testing.assert_allclose(half[ordinary], array[ordinary], rtol=2**-11)


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_every_bfloat16_is_converted_and_those_out_of_range_counted(blocks: int) -> None:
    numbers = np.roll(np.arange(1 << 16, dtype=np.uint16), 7).view(ml_dtypes.bfloat16)
    array = np.concatenate([np.ones(blocks * BLOCK - 5 * bool(blocks), ml_dtypes.bfloat16), numbers])
    found, exact = OutOfRange(), array.astype(np.float32)
    half = convert(array, found)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = exact.astype(np.float16)
    clamped = (np.abs(exact) > 65504) & np.isfinite(exact)
    raised = (np.abs(exact) < 2.0**-24) & (exact != 0)
    bounds = np.where(clamped, 65504, np.where(rounded == 0, 2.0**-24, np.abs(rounded)))
    expected = np.where(clamped | raised, np.copysign(bounds, exact), rounded).astype(np.float16)
    np.testing.assert_array_equal(half, expected)
    np.testing.assert_array_equal(np.signbit(half), np.signbit(expected))
    assert (found.clamped, found.raised) == (np.count_nonzero(clamped), np.count_nonzero(raised))
    assert found.clamped > 10_000 < found.raised


def test_complete_graph_becomes_float16(parse: Any, compute: Any, operators: Any) -> None:
    text = """(float[N, 4] x, int64[N] ids) => (float[N, 4] y, int64[N] out) {
        c = Constant <value_float = 0.5> ()  l = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()
        t = Constant <value = float[1] {0.25}> ()
        f = Cast <to = 1> (ids)  u = Unsqueeze(f, axes)  s = ConstantOfShape <value = float[1] {1.0}> (four)
        a = MatMul(x, w)  b = Mul(a, c)  d = Add(b, l)  e = Add(d, t)  g = Add(e, u)  y = Add(g, s)
        out = Identity(ids)
    }"""
    model = parse(text, {"w": W, "axes": np.array([1]), "four": np.array([4])})
    expected = compute(model, x=X, ids=np.array([1, 2]))
    model, counts = Float16()(model)
    assert counts.rewritten == {"weights": 1, "constants": 4}
    assert counts.reasons == []
    assert dtypes(model) == {"x": "FLOAT16", "ids": "INT64", "y": "FLOAT16", "out": "INT64"}
    assert not any(value.dtype == ir.DataType.FLOAT for node in model.graph for value in node.outputs)
    result = compute(model, x=X.astype(np.float16), ids=np.array([1, 2]))
    assert result[0].dtype == np.float16
    np.testing.assert_allclose(result[0], expected[0], rtol=1e-2, atol=1e-2)


def test_values_out_of_range_are_clamped_and_counted(parse: Any) -> None:
    weights = {
        "mask": np.array([np.finfo(np.float32).min, 1e5, -np.inf, 1], np.float32),
        "eps": np.array(1e-12, np.float32),
    }
    model = parse("(float[N, 4] x) => (float[N, 4] y) { a = Add(x, mask) y = Max(a, eps) }", weights)
    model, counts = Float16()(model)
    assert counts.reasons == [
        "2 numbers beyond ±65504, clamped to it",
        "1 number closer to 0 than 6e-08, raised to it",
    ]
    mask = model.graph.initializers["mask"].const_value
    eps = model.graph.initializers["eps"].const_value
    assert mask is not None and mask.numpy().tolist() == [-65504, 65504, -np.inf, 1]
    assert eps is not None and eps.numpy() > 0


def test_keep_by_type_casts_only_at_the_borders_of_a_region(parse: Any, compute: Any, operators: Any) -> None:
    text = """(float[N, 4] x) => (float[N, 4] y) {
        a = MatMul(x, w)  s = Softmax(a)  l = Log(s)  y = Mul(l, w2)
    }"""
    model = parse(text, {"w": W, "w2": W[0]})
    expected = compute(model, x=X)
    model, counts = Float16(keep=("Softmax", "Log"))(model)
    assert counts.rewritten == {"weights": 2, "casts": 2}
    assert [node.op_type for node in model.graph] == ["MatMul", "Cast", "Softmax", "Log", "Cast", "Mul"]
    assert model.graph[4].outputs[0].name == "l"
    np.testing.assert_allclose(compute(model, x=X.astype(np.float16))[0], expected[0], rtol=3e-2, atol=3e-2)


def test_keep_by_name_keeps_weights_without_other_consumers(parse: Any, compute: Any) -> None:
    text = "(float[N, 4] x) => (float[N, 4] y) { [first] a = MatMul(x, w) [second] y = MatMul(a, v) }"
    model = parse(text, {"w": W, "v": W.T.copy()})
    model, counts = Float16(keep=("second", "thrid"))(model)
    assert counts.reasons == ["keep: no node has the type or the name 'thrid'"]
    assert counts.rewritten == {"weights": 1, "casts": 2}
    assert [str(value.dtype) for value in model.graph.initializers.values()] == ["FLOAT16", "FLOAT"]
    np.testing.assert_allclose(compute(model, x=X.astype(np.float16))[0], X @ W @ W.T, rtol=3e-2, atol=3e-2)


def test_angles_of_thousands_of_radians_stay_exact(parse: Any, compute: Any) -> None:
    model = parse(
        """(int64[N] positions, float[N] x) => (float[N] y) {
            p = Cast <to = 1> (positions)  a = Mul(p, f)  c = Cos(a)  s = Sin(a)  m = Mul(x, c)  y = Add(m, s)
        }""",
        {"f": np.array([0.7312345], np.float32)},
    )
    positions = np.array([1, 2049, 70001])  # the last has no float16
    x = np.ones(3, np.float32)
    [expected] = compute(model, positions=positions, x=x)
    model, counts = Float16()(model)
    assert counts.rewritten == {"casts": 2}
    [found] = compute(model, positions=positions, x=x.astype(np.float16))
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_keep_io_casts_at_inputs_and_outputs(parse: Any, compute: Any) -> None:
    text = """(float[N, 4] x, float[N, 4] z) => (float[N, 4] y, float[N, 4] a) {
        a = MatMul(x, w)  b = Add(a, z)  y = Relu(b)
    }"""
    model = parse(text, {"w": W})
    expected = compute(model, x=X, z=X)
    model, counts = Float16(keep_io=True)(model)
    assert set(dtypes(model).values()) == {"FLOAT"}
    assert list(dtypes(model)) == ["x", "z", "y", "a"]
    assert counts.rewritten == {"weights": 1, "casts": 4}
    for result, wanted in zip(compute(model, x=X, z=X), expected, strict=True):
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, wanted, rtol=1e-2, atol=1e-2)


def test_keep_io_beside_a_float32_operator_rounds_no_value(parse: Any, compute: Any) -> None:
    model = parse("(float[N, 4] x) => (float[N, 4] y) { y = Softmax(x) }")
    model, counts = Float16(keep_io=True, keep=("Softmax",))(model)
    assert [node.op_type for node in model.graph] == ["Softmax"]
    assert counts.rewritten == {}
    assert list(dtypes(model).items()) == [("x", "FLOAT"), ("y", "FLOAT")]
    assert compute(model, x=X)[0].dtype == np.float32


def test_input_that_is_an_output_is_unchanged(parse: Any, compute: Any) -> None:
    text = "(float[N, 4] x) => (float[N, 4] x, float[N, 4] y) { y = Relu(x) }"
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 23]> agraph {text}')
    model, _ = Float16(keep_io=True)(model)
    assert [(value.name, str(value.dtype)) for value in model.graph.outputs] == [("x", "FLOAT"), ("y", "FLOAT")]
    assert [node.op_type for node in model.graph] == ["Cast", "Relu", "Cast"]


FLOAT32_ONLY = {
    "Range": "(float a, float b, float c) => (float[K] y) { r = Range(a, b, c) y = Relu(r) }",
    "Resize": "(float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) { y = Resize(x, , scales) }",
    "DynamicQuantizeLinear": """(float[N, 4] x) => (uint8[N, 4] q, float y, uint8 z) {
        r = Relu(x)  q, y, z = DynamicQuantizeLinear(r)
    }""",
}


@pytest.mark.parametrize("op_type", FLOAT32_ONLY)
def test_operators_without_float16_stay_in_float32_between_casts(parse: Any, compute: Any, op_type: str) -> None:
    weights = {"scales": np.array([1, 1, 2, 2], np.float32)} if op_type == "Resize" else {}
    model = parse(FLOAT32_ONLY[op_type], weights)
    feeds = {
        value.name: np.float32(1) * (index + 1) if not value.shape else np.ones((1, 1, 2, 2)[-len(value.shape) :])
        for index, value in enumerate(model.graph.inputs)
    }
    if op_type == "Range":
        feeds = {"a": np.array(0), "b": np.array(5), "c": np.array(1)}
    expected = compute(model, **{name: np.asarray(array, np.float32) for name, array in feeds.items()})
    model, counts = Float16()(model)
    assert dtypes(model)["y"] == "FLOAT16"
    if op_type == "Resize":
        assert [str(value.dtype) for value in model.graph.initializers.values()] == ["FLOAT"]
    else:
        assert counts.rewritten["casts"] >= 2
    result = compute(model, **{name: np.asarray(array, np.float16) for name, array in feeds.items()})
    for got, wanted in zip(result, expected, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=1e-2)


def test_dtype_attributes_and_defaults_are_converted(parse: Any, compute: Any) -> None:
    text = """(float[2, 4] x) => (float[2, 4] y) {
        a = RandomNormal <shape = [2, 4]> ()  b = RandomUniform <dtype = 1, shape = [2, 4]> ()
        h = HannWindow(four)  e = EyeLike <dtype = 1> (x)
        c = Add(a, b)  d = Add(c, h)  f = Add(d, e)  y = Add(f, x)
    }"""
    model, _ = Float16()(parse(text, {"four": np.array(4)}))
    assert dtypes(model) == {"x": "FLOAT16", "y": "FLOAT16"}
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_subgraphs_of_loops_and_branches_become_float16(parse: Any, compute: Any) -> None:
    text = """(float[2, 4] x, int64 n, bool c) => (float[2, 4] y) {
        l = Loop (n, , x) <body = step (int64 i, bool go, float[2, 4] a) => (bool d, float[2, 4] b) {
            d = Identity(go)  h = Constant <value_float = 0.5> ()  s = Softmax(a)  m = Mul(s, h)  b = Add(m, w)
        }>
        y = If (c) <
            then_branch = yes () => (float[2, 4] t) { t = Mul(l, w) },
            else_branch = no () => (float[2, 4] e) { e = Identity(l) }
        >
    }"""
    model = parse(text, {"w": W[0]})
    feeds: dict[str, Any] = {"n": np.array(3), "c": np.array(True)}
    expected = compute(model, x=X, **feeds)
    model, counts = Float16(keep=("Softmax", "If"))(model)
    assert any("If" in reason and "has a body" in reason for reason in counts.reasons)
    result = compute(model, x=X.astype(np.float16), **feeds)
    assert result[0].dtype == np.float16
    np.testing.assert_allclose(result[0], expected[0], rtol=2e-2, atol=2e-2)


def test_functions_are_inlined(compute: Any) -> None:
    text = """<ir_version: 10, opset_import: ["": 23, "local": 1]>
        agraph (float[2, 4] x) => (float[2, 4] y) { y = local.Half(x) }
        <domain: "local", opset_import: ["": 23]>
        Half (a) => (b) { h = Constant <value_float = 0.5> () b = Mul(a, h) }"""
    model, counts = Float16()(ir.from_onnx_text(text))
    assert counts.rewritten == {"inlined": 1, "constants": 1}
    assert not model.functions
    np.testing.assert_allclose(compute(model, x=X.astype(np.float16))[0], X / 2, rtol=1e-2)


CUSTOM = """(float[N, 4] x) => (float[N, 4] y) <float[N, 4] b> { a = Relu(x) b = intaglio.Odd(a, w) y = Relu(b) }"""


def test_nodes_of_other_domains_keep_float32_between_casts(parse: Any) -> None:
    model, counts = Float16()(parse(CUSTOM, {"w": W}, domains=', "intaglio": 1'))
    assert [node.op_type for node in model.graph] == ["Relu", "Cast", "Odd", "Cast", "Relu"]
    assert counts.rewritten == {"casts": 2}
    assert str(model.graph.initializers["w"].dtype) == "FLOAT"


def test_unknown_dtype_at_another_domain_is_refused_in_one_line(parse: Any) -> None:
    model = parse(CUSTOM.replace("<float[N, 4] b>", ""), {"w": W}, domains=', "intaglio": 1')
    with pytest.raises(GraphError, match=r"dtype of 'b' at intaglio\.Odd") as error:
        Float16()(model)
    assert "\n" not in str(error.value)


def test_graph_without_float32_is_reported(parse: Any) -> None:
    _, counts = Float16()(parse("(int64[2] x) => (int64[2] y) { y = Neg(x) }"))
    assert (counts.rewritten, counts.reasons) == ({}, ["no float32 value in the graph"])


def test_large_weights_are_converted_only_while_writing(parse: Any) -> None:
    model = parse("(float[N, 64] x) => (float[N, 64] y) { y = MatMul(x, w) }", {"w": np.eye(64, dtype=np.float32)})
    model, _ = Float16()(model)
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.LazyTensor)
    assert tensor.nbytes == 64 * 64 * 2
    assert tensor.numpy() is not tensor.numpy()  # nothing is kept
