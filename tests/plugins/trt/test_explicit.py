"""The explicit form of a graph: nodes carry everything that plugins need, and unsupported nodes are refused."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from kernel_cases import kernel_case
from operator_cases import FLOAT_LIMITS, MAKERS, PLUGGED, Case, for_gpu, in_float16, longest

from intaglio.errors import GraphError
from intaglio.plugins import OPS
from intaglio.plugins.kernel_check.node_model import node_model
from intaglio.plugins.registry import UNPLUGGED
from intaglio.plugins.trt import explicit


def explicit_node(case: Case) -> ir.Node:
    return explicit(node_model(case)).graph.node(-1)


@pytest.mark.parametrize("operator", PLUGGED)
def test_every_attribute_and_output_is_explicit(operator: str) -> None:
    random = np.random.default_rng(0)
    for _ in range(10):
        case = kernel_case(operator, random)
        node = explicit_node(case)
        given = {name: attribute.value for name, attribute in node.attributes.items()}
        expected = {**OPS[operator].complete(case.attributes), "plugin_namespace": "intaglio", "plugin_version": "1"}
        assert list(given.items()) == list(expected.items())
        assert len(node.outputs) == len(OPS[operator].reference(case.inputs, case.attributes))
        assert all(
            value is not None and value.dtype not in (ir.DataType.BOOL, ir.DataType.UINT8) for value in node.inputs
        )
        assert all(output.name and output.dtype is not None for output in node.outputs)


@pytest.mark.parametrize("operator", UNPLUGGED)
def test_operators_of_sessions_are_refused(operator: str) -> None:
    with pytest.raises(GraphError, match=f"{operator} is no plugin of TensorRT. Build from the bundle"):
        explicit_node(longest(operator))


def test_slots_of_bytes_are_refused_where_a_plugin_returns_them_and_cast_where_it_reads_them() -> None:
    with pytest.raises(
        GraphError, match=r"QuantizeCache: slots is uint8, which no plugin returns\. Use element_bits=32"
    ):
        explicit_node(longest("QuantizeCache"))
    random = np.random.default_rng(0)
    case = next(case for case in (MAKERS["CachedAttention"](random) for _ in range(9)) if len(case.attributes) > 1)
    assert [value and value.dtype for value in explicit_node(case).inputs[1:]] == [ir.DataType.INT8] * 3


def test_shared_mask_is_cast_once() -> None:
    cases = (MAKERS["IntAttention"](np.random.default_rng(seed)) for seed in range(20))
    case = next(case for case in cases if case.inputs[5] is not None and case.inputs[6] is None)
    model = node_model(case)
    node = model.graph.node(-1)
    twin = ir.Node(node.domain, node.op_type, node.inputs, node.attributes.values(), num_outputs=1, name="twin")
    model.graph.append(twin)
    explicit(model)
    assert [each.op_type for each in model.graph] == ["Cast", "IntAttention_mask", "IntAttention_mask"]
    cast = model.graph.node(0).outputs[0]
    assert cast.dtype == ir.DataType.INT8
    assert node.inputs[-1] is cast and twin.inputs[-1] is cast


@pytest.mark.parametrize("operator", [name for name in PLUGGED if name in FLOAT_LIMITS])
def test_output_without_a_dtype_gets_the_input_dtype(operator: str) -> None:
    for case in (longest(operator), in_float16(longest(operator))):
        model = node_model(case)
        model.graph.node(-1).outputs[0].type = None
        explicit(model)
        assert model.graph.node(-1).outputs[0].dtype == model.graph.inputs[0].dtype


def zero_points_case() -> Case:
    random = np.random.default_rng(0)
    cases = (for_gpu(MAKERS["GroupMatMul"](random)) for _ in range(99))
    return next(case for case in cases if case.attributes["bits"] == 8 and len(case.inputs) == 4)


def test_constant_zero_points_need_no_cast() -> None:
    case = zero_points_case()
    assert case.inputs[3] is not None and (case.inputs[3] > 127).any()
    model = node_model(case, constants=True)
    node = model.graph.node(-1)
    twin = ir.Node(node.domain, node.op_type, node.inputs, node.attributes.values(), num_outputs=1, name="twin")
    model.graph.append(twin)
    explicit(model)
    assert [each.op_type for each in model.graph] == ["GroupMatMul_zero_points"] * 2
    made = node.inputs[3]
    assert made is twin.inputs[3] and made is not None and made.const_value is not None
    assert made is model.graph.initializers["zero_points_int8"] and made.dtype == ir.DataType.INT8
    np.testing.assert_array_equal(made.const_value.numpy().view(np.uint8), case.inputs[3])


def test_non_constant_zero_points_are_cast() -> None:
    model = explicit(node_model(zero_points_case()))
    assert [each.op_type for each in model.graph] == ["Cast", "GroupMatMul_zero_points"]


def test_minimums_are_refused() -> None:
    random = np.random.default_rng(0)
    case = next(case for case in (MAKERS["GroupMatMul"](random) for _ in range(99)) if len(case.inputs) == 6)
    with pytest.raises(GraphError, match="minimums, which kernels of GPUs do not take"):
        explicit(node_model(case))


def test_inputs_unused_by_the_attributes_are_removed() -> None:
    random = np.random.default_rng(0)
    x, weight = (random.integers(-9, 9, shape).astype(np.int8) for shape in ((2, 3), (3, 4)))
    ones = np.ones(4, np.int32)
    given = (x, weight, ones, ones, ones, ones, ones)
    names = {"bits": 32}, {"bits": 8}, {"bits": 8, "activation": "gelu", "out_scale": 0.1}
    nodes = [explicit_node(Case("IntLinear", given, attributes)) for attributes in names]
    assert [(node.op_type, len(node.inputs)) for node in nodes] == [
        ("IntLinear", 3),
        ("IntLinear_multiplier", 5),
        ("IntLinear_multiplier_out_multiplier", 7),
    ]


def test_multiplier_without_shift_is_refused() -> None:
    x, one = np.ones((2, 3), np.int32), np.ones(1, np.int32)
    with pytest.raises(GraphError, match=r"node node: IntGelu: inputs multiplier, shift: shift left out\."):
        explicit_node(Case("IntGelu", (x, one, None), {"scale": 0.1, "out_scale": 0.1}))


def test_unsupported_node_is_refused_by_name() -> None:
    x, one = np.ones((1, 1, 1, 2, 3), np.int8), np.ones(1, np.int32)
    with pytest.raises(GraphError, match="node node: IntAdd: 5 axes, expected at most 4"):
        explicit_node(Case("IntAdd", (x, x, one, one, one), {"bits": 8}))
    wide = np.ones((1, 2, 256), np.int8)
    with pytest.raises(GraphError, match="node node: IntAttention: heads of 256 channels, expected at most 128"):
        explicit_node(Case("IntAttention", (wide, wide, wide, one, one), {"num_heads": 1, "scale": 0.1}))


def test_unknown_width_or_rank_is_refused() -> None:
    model = node_model(longest("IntAttention"))
    model.graph.inputs[0].shape = ir.Shape([1, 3, "width"])
    with pytest.raises(GraphError, match=r"the width of query \(query\) is unknown"):
        explicit(model)
    model = node_model(longest("Requantize"))
    model.graph.inputs[0].shape = None
    with pytest.raises(GraphError, match=r"the rank of x \(x\) is not known"):
        explicit(model)
