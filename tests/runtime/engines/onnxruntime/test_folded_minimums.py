"""Minimums of quantised weights become an input of the product where a session runs on a CPU, and change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, Groups
from intaglio.exporters.decoders.traced.grouped import keep_codes
from intaglio.extras import load
from intaglio.plugins import ort as kernels
from intaglio.plugins.bit_packing import pack
from intaglio.plugins.registry import OPS
from intaglio.runtime.engines.onnxruntime.folded_minimums import fold_minimums

DEPTH, CHANNELS, SIZE, BITS = 256, 64, 32, 4


def grouped_weight(seed: int) -> GroupedWeight:
    random = np.random.default_rng(seed)
    shape = CHANNELS, DEPTH // SIZE
    groups = Groups(
        pack(random.integers(0, 2**BITS, (CHANNELS, DEPTH)), BITS),
        random.uniform(0.1, 0.2, shape).astype(np.float32),
        np.zeros(shape, np.uint8),
        random.uniform(0.5, 1, shape).astype(np.float32),
    )
    return GroupedWeight((CHANNELS, DEPTH), BITS, SIZE, lambda: groups, has_minimums=True)


def model_of(products: int = 2) -> onnx.ModelProto:
    """x times `products` weights with minimums, as an export writes them; the sums over groups are shared."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["rows", DEPTH]))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 23}, name="products")
    weights = {}
    for index in range(products):
        shape = ir.Shape([DEPTH, CHANNELS])
        stored = ir.Value(name=f"w{index}.weight", type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
        stored.const_value = ir.Tensor(np.zeros((DEPTH, CHANNELS), np.float32), name=stored.name)
        graph.register_initializer(stored)
        node = ir.node("MatMul", [x, stored])
        node.outputs[0].name = f"y{index}"
        node.outputs[0].type, node.outputs[0].shape = x.type, ir.Shape(["rows", CHANNELS])
        graph.append(node)
        graph.outputs.append(node.outputs[0])
        weights[stored] = grouped_weight(index)
    model = ir.Model(graph, ir_version=10)
    keep_codes(model, weights)
    return ir.to_proto(model)


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def run(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    onnxruntime = load("onnxruntime")
    options = onnxruntime.SessionOptions()
    kernels.register(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {"x": x})
    return found


def test_products_take_their_minimums_and_nothing_else_is_left() -> None:
    model = model_of()
    assert operators(model)["MatMul"] == 4  # with ones and with minimums
    fold_minimums(model.graph)
    assert operators(model) == {"GroupMatMul": 2}
    assert [output.name for output in model.graph.output] == ["y0", "y1"]
    for node in model.graph.node:
        assert [bool(name) for name in node.input] == [True] * 4 + [False, True]


@pytest.mark.skipif(kernels.instruction_set() is None, reason="no compiled kernels")
def test_results_are_those_of_the_weights() -> None:
    model, random = model_of(), np.random.default_rng(0)
    x = random.normal(size=(3, DEPTH)).astype(np.float32)
    before = run(model, x)
    fold_minimums(model.graph)
    after = run(model, x)
    attributes = {"bits": BITS, "K": DEPTH, "group_size": SIZE, "activation_bits": 16}
    for index, (apart, folded) in enumerate(zip(before, after, strict=True)):
        groups = grouped_weight(index).read()
        assert groups.minimums is not None
        constants = groups.packed, groups.scales, groups.zero_points, None, groups.minimums.T
        (expected,) = OPS["GroupMatMul"].compute(x, *constants, **attributes)
        np.testing.assert_allclose(folded, expected, rtol=0, atol=2e-4 * np.abs(expected).max())
        np.testing.assert_allclose(folded, apart, rtol=0, atol=2e-4 * np.abs(expected).max())


def reads_the_product_too(graph: onnx.GraphProto) -> None:
    product = next(node for node in graph.node if node.op_type == "GroupMatMul")
    graph.output.add().CopyFrom(graph.output[0])
    graph.output[-1].name = product.output[0]


def subtracts_other_sums(graph: onnx.GraphProto) -> None:
    reshape = next(node for node in graph.node if node.op_type == "Reshape")
    graph.node.insert(0, onnx.helper.make_node("Neg", ["x"], ["negative"]))
    reshape.input[0] = "negative"


def names_another_constant(graph: onnx.GraphProto) -> None:
    for each in graph.initializer:
        if each.name.endswith(".minimums"):
            each.name += ".of_something"
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name.endswith(".minimums"):
                node.input[index] = f"{name}.of_something"


@pytest.mark.parametrize("change", [reads_the_product_too, subtracts_other_sums, names_another_constant])
def test_other_graphs_stay(change: Callable[[onnx.GraphProto], None]) -> None:
    model = model_of(1)
    change(model.graph)
    before = operators(model)
    fold_minimums(model.graph)
    assert operators(model) == before
