"""Weights of 16 bits beside activations of float32: made, and undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from intaglio.plugins.packed_matmul.narrow_weights import (
    narrow_again,
    narrow_weight,
    reason_against,
    widen_weights,
)

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)
FLOAT = ir.TensorType(ir.DataType.FLOAT)


def value(name: str, shape: Sequence[int | str], kind: ir.TypeProtocol = FLOAT) -> ir.Value:
    return ir.Value(name=name, type=kind, shape=ir.Shape(shape))


def constant(name: str = "w") -> ir.Value:
    made = value(name, WEIGHT.shape)
    made.const_value = ir.tensor(WEIGHT, name=name)
    return made


def tied() -> ir.Model:
    """A table of three rows, looked up and multiplied by, transposed; the rows are an output too."""
    ids, weight = value("ids", [2], ir.TensorType(ir.DataType.INT64)), constant()
    rows, logits, product = value("rows", [2, 4]), value("logits", [2, 3]), value("product", [2, 4])
    turned = value("turned", [4, 3])
    nodes = [
        ir.node("Gather", [weight, ids], {"axis": 0}, outputs=[rows], name="look_up"),
        ir.node("Transpose", [weight], {"perm": [1, 0]}, outputs=[turned], name="turn"),
        ir.node("MatMul", [rows, turned], outputs=[logits], name="head"),
        ir.node("MatMul", [logits, weight], outputs=[product], name="again"),
    ]
    graph = ir.Graph(
        [ids], [logits, rows, product], nodes=nodes, initializers=[weight], opset_imports={"": 23}, name="g"
    )
    return ir.Model(graph, ir_version=10)


def run(model: ir.Model) -> list[np.ndarray]:
    message = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(message, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {"ids": np.array([2, 0])})
    return found


def same(name: str) -> str:
    return name


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_weight_is_read_in_float32_by_all_and_widened_again(dtype: type) -> None:
    model = tied()
    expected = run(model)
    weight = model.graph.initializers["w"]
    assert reason_against(weight) is None
    narrow_weight(weight, ir.tensor(WEIGHT.astype(dtype), name="w"), same)
    assert weight.const_value is not None and weight.const_value.nbytes == 24
    assert [node.op_type for node in model.graph].count("Cast") == 2
    for found, wanted in zip(run(model), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_widening_undoes_all_that_narrowing_did() -> None:
    model, wanted = tied(), tied()
    for each in (model, wanted):
        del each.graph.outputs[1:]
    narrow_weight(model.graph.initializers["w"], ir.tensor(WEIGHT.astype(np.float16), name="w"), same)
    assert not widen_weights(model, [ir.DataType.BFLOAT16])
    assert [*widen_weights(model)] == ["w"] and not widen_weights(model)
    described = [
        [(node.op_type, [each.name for each in node.inputs]) for node in each.graph] for each in (model, wanted)
    ]
    assert described[0] == described[1]
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), WEIGHT)
    np.testing.assert_array_equal(run(model)[0], run(wanted)[0])


def test_rows_that_are_an_output_are_widened_too() -> None:
    model = tied()
    narrow_weight(model.graph.initializers["w"], ir.tensor(WEIGHT.astype(np.float16), name="w"), same)
    assert [*widen_weights(model)] == ["w"]
    assert [each.name for each in model.graph.outputs] == ["logits", "rows", "product"]
    for found, wanted in zip(run(model), run(tied()), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_only_unchanged_weights_are_narrow_again() -> None:
    for changes in (False, True):
        model = tied()
        weight = model.graph.initializers["w"]
        narrow_weight(weight, ir.tensor(WEIGHT.astype(np.float16), name="w"), same)
        widened = widen_weights(model)
        if changes:
            weight.const_value = ir.tensor(2 * WEIGHT, name="w")
        narrow_again(model, widened, same)
        assert weight.dtype == (ir.DataType.FLOAT if changes else ir.DataType.FLOAT16)
        assert weight.const_value is not None
        np.testing.assert_array_equal(weight.const_value.numpy(), 2 * WEIGHT if changes else WEIGHT)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (lambda weight, x: ir.node("MatMul", [weight, x]), ""),
        (lambda weight, x: ir.node("Add", [weight, x]), ""),
        (lambda weight, x: ir.node("MatMul", [x, weight], domain="other"), ""),
    ],
)
def test_weight_that_is_no_factor_is_no_candidate(node: Callable[[ir.Value, ir.Value], ir.Node], reason: str) -> None:
    weight, x = constant(), value("x", [4, 3])
    ir.Graph([x], [], nodes=[node(weight, x)], initializers=[weight], opset_imports={"": 23}, name="g")
    assert reason_against(weight) == reason


def test_part_of_a_quantised_weight_is_no_candidate() -> None:
    weight, x = constant("layer.weight.minimums"), value("x", [2, 3])
    ir.Graph([x], [], nodes=[ir.node("MatMul", [x, weight])], initializers=[weight], opset_imports={"": 23}, name="g")
    assert reason_against(weight) == ""


def test_weight_with_another_use_is_left_with_the_reason() -> None:
    weight, x = constant(), value("x", [4, 3])
    nodes = [ir.node("MatMul", [x, weight]), ir.node("Neg", [weight])]
    ir.Graph([x], [], nodes=nodes, initializers=[weight], opset_imports={"": 23}, name="g")
    assert reason_against(weight) == "w is used by Neg too"
