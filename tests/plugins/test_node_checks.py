"""Nodes and inputs that an operator does not support are refused in one line before any computation."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from operator_cases import MAKERS, Case

from intaglio.errors import GraphError
from intaglio.plugins import OPS
from intaglio.plugins.inlining import inline
from intaglio.plugins.kernel_check.node_model import node_model
from intaglio.plugins.registry import UNPLUGGED
from intaglio.plugins.trt import explicit


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


X8, W8, X32 = np.ones((2, 3), np.int8), np.ones((3, 4), np.int8), np.ones((2, 3), np.int32)
ONE = int32(1)
NORM = {"scale": 0.1, "weight_scale": 0.1, "bias_scale": 0.1, "out_scale": 0.1}
HEADS = np.ones((1, 2, 12), np.int8)
ATTENTION = {"num_heads": 2, "scale": 0.1}
TURNED, ANGLES = np.ones((1, 2, 12), np.int32), np.ones((2, 3), np.int32)  # two heads of two halves of 3


def sparse_tables(**changed: np.ndarray | None) -> Case:
    """A weight [2, 32] with sparse values."""
    sparse = {"values": np.ones(2, np.float32), "columns": int32(0, 31), "row_offsets": int32(0, 1, 2)} | changed
    dense = np.ones((1, 32), np.float32), np.ones((2, 3), np.int32), np.ones((2, 8), np.float32)
    return Case("LutMatMul", (*dense, *sparse.values()), {"bits": 3, "K": 32})


CACHED = (np.zeros((1, 1, 2, 4), np.float32), *[np.zeros((1, 1, 3, 8), np.uint8)] * 2, np.ones((1, 1, 2, 3), np.bool_))
REFUSED: dict[str, Case] = {
    "IntLinear: input weight is uint8, expected int8": Case("IntLinear", (X8, W8.view(np.uint8), int32(*[0] * 4)), {}),
    r"IntLinear: input weight has shape \[4, 3\], expected int8 \[K, N\] with K = 3": Case(
        "IntLinear", (X8, W8.T.copy(), int32(*[0] * 3)), {"bits": 32}
    ),
    r"IntLinear: input bias has shape \[3\], expected int32 \[N\]": Case("IntLinear", (X8, W8, int32(1, 2, 3)), {}),
    "IntLinear: input bias holds 1073741825, expected -1073741824 to 1073741824": Case(
        "IntLinear", (X8, W8, int32(0, 0, 0, 2**30 + 1)), {"bits": 32}
    ),
    "IntLinear: bits=8 needs the inputs multiplier and shift": Case("IntLinear", (X8, W8, int32(*[0] * 4)), {}),
    "IntLinear: a gate without an activation, expected activation='gelu'": Case(
        "IntLinear", (X8, W8, int32(*[0] * 4), *[ONE] * 4, int32(*[0] * 8).reshape(2, 4), ONE, ONE), {}
    ),
    "IntLinear: out_zero_point=-3 without an activation, expected 0": Case(
        "IntLinear", (X8, W8, int32(*[0] * 4), ONE, ONE), {"out_zero_point": -3}
    ),
    "IntLinear: out_zero_point=-3 with a gate, expected 0": Case(
        "IntLinear",
        (X8, W8, int32(*[0] * 4), *[ONE] * 4, int32(*[0] * 8).reshape(2, 4), ONE, ONE),
        {"activation": "gelu", "out_scale": 0.1, "out_zero_point": -3},
    ),
    "IntLinear: out_zero_point=128, expected -128 to 127": Case(
        "IntLinear",
        (X8, W8, int32(*[0] * 4), ONE, ONE),
        {"activation": "gelu", "out_scale": 0.1, "out_zero_point": 128},
    ),
    "IntGelu: out_zero_point=-129, expected -128 to 127": Case(
        "IntGelu", (X32,), {"scale": 0.1, "out_scale": 0.1, "out_zero_point": -129}
    ),
    "IntLinear: a residual with bits=8, expected 16": Case(
        "IntLinear", (X8, W8, int32(*[0] * 4), ONE, ONE, *[None] * 5, int32(*[0] * 8).reshape(2, 4), ONE), {}
    ),
    r"IntLinear: residual has shape \[1, 4\], expected that of y, \[2, 4\]": Case(
        "IntLinear", (X8, W8, int32(*[0] * 4), ONE, ONE, *[None] * 5, int32(*[0] * 4)[None], ONE), {"bits": 16}
    ),
    "IntLinear: input multiple holds 65536, expected 0 to 32768": Case(
        "IntLinear",
        (X8, W8, int32(*[0] * 4), ONE, ONE, *[None] * 5, int32(*[0] * 8).reshape(2, 4), int32(65536)),
        {"bits": 16},
    ),
    "IntLinear: inputs multiplier, shift: shift left out": Case("IntLinear", (X8, W8, int32(*[0] * 4), ONE), {}),
    "IntLinear: input x is missing. Give int8": Case("IntLinear", (None, W8, int32(*[0] * 4)), {"bits": 32}),
    "IntMatMul: input b is missing": Case("IntMatMul", (X8,), {}),
    r"IntMatMul: input b has shape \[3\], expected int8 \[..., K, N\]": Case("IntMatMul", (X8, X8[0]), {}),
    "Requantize: input shift holds -5, expected 0 to 62": Case("Requantize", (X32, ONE, int32(-5)), {}),
    r"Requantize: input multiplier has shape \[2\], expected int32 \[C or 1\] with C = 3": Case(
        "Requantize", (X32, int32(1, 1), ONE), {}
    ),
    "Requantize: 4 inputs, expected at most 3": Case("Requantize", (X32, ONE, ONE, ONE), {}),
    "IntAdd: input y_multiplier holds -1073741824": Case("IntAdd", (X32, X32, ONE, int32(-(2**30)), ONE), {}),
    "IntAdd: factors of length 2, expected 3 or 1": Case("IntAdd", (X32, X32, int32(1, 1), ONE, ONE), {}),
    ".*scale": Case("IntGelu", (X32,), {"scale": float("nan"), "out_scale": 0.1}),
    "IntGelu: out_scale=0.02, expected 0.0293 or more: .* Compress again": Case(
        "IntGelu", (X32,), {"scale": 0.1, "out_scale": 0.02}
    ),
    "softmax scale -1": Case("IntSoftmax", (X32,), {"scale": -1.0, "out_scale": 0.1}),
    "IntLayerNorm: .*scale": Case("IntLayerNorm", (X32, int32(1, 1, 1), int32(1, 1, 1)), {**NORM, "out_scale": 0.0}),
    r"IntLayerNorm: input weight has shape \[2\], expected int32 \[C\] with C = 3": Case(
        "IntLayerNorm", (X32, int32(1, 1), int32(1, 1)), NORM
    ),
    r"IntLayerNorm: residual has shape \[1, 3\], expected that of x, \[2, 3\]": Case(
        "IntLayerNorm", (X32, int32(1, 1, 1), int32(1, 1, 1), None, None, X32[:1], ONE, ONE, ONE), NORM
    ),
    r"IntLayerNorm: input x_multiplier has shape \[3\], expected int32 \[1\]": Case(
        "IntLayerNorm", (X32, int32(1, 1, 1), int32(1, 1, 1), None, None, X32, *[int32(1, 1, 1)] * 3), NORM
    ),
    "IntAttention: query has 12 channels, which do not divide into 5 heads": Case(
        "IntAttention", (HEADS, HEADS, HEADS, ONE, ONE), {"num_heads": 5, "scale": 0.1}
    ),
    "IntAttention: query has 12 channels, which do not divide into 3 times 3 heads": Case(
        "IntAttention", (HEADS, HEADS, HEADS, ONE, ONE), {"num_heads": 3, "scale": 0.1, "packed": 1}
    ),
    "IntAttention: num_heads=-2, expected 1 to 65536": Case(
        "IntAttention", (HEADS, HEADS, HEADS, ONE, ONE), {"num_heads": -2, "scale": 0.1}
    ),
    "IntAttention: num_heads=6148914691236517206, expected 1 to 65536": Case(
        "IntAttention", (HEADS, HEADS, HEADS, ONE, ONE), {"num_heads": (2**64 + 2) // 3, "scale": 0.1, "packed": 1}
    ),
    "LutMatMul: K=6148914691236517216, expected a multiple of 32, at most": Case(
        "LutMatMul", (X32, ONE, ONE), {"bits": 3, "K": (2**64 + 32) // 3}
    ),
    "LutMatMul: input row_offsets has 2 entries, expected 3": sparse_tables(row_offsets=int32(0, 2)),
    "LutMatMul: row_offsets do not ascend from 0 to the 2 values": sparse_tables(row_offsets=int32(0, 3, 2)),
    "LutMatMul: column 32, expected 0 to 31, x having 32 channels": sparse_tables(columns=int32(0, 32)),
    "LutMatMul: inputs values, columns, row_offsets: columns left out": sparse_tables(columns=None),
    "GroupMatMul: K=-32, expected a multiple of 32": Case(
        "GroupMatMul", (X32, ONE, ONE), {"bits": 4, "K": -32, "group_size": 32}
    ),
    "IntAttention: factors of length 12, expected 4 or 1": Case(
        "IntAttention", (HEADS, HEADS, HEADS, int32(*[1] * 12), ONE), {"num_heads": 2, "scale": 0.1, "packed": 1}
    ),
    "IntAttention: num_heads=2.0, expected an integer": Case(
        "IntAttention", (HEADS, HEADS, HEADS, ONE, ONE), {"num_heads": 2.0, "scale": 0.1}
    ),
    "IntAttention: num_heads='2', expected an integer": Case(
        "IntAttention", (HEADS, HEADS, HEADS, ONE, ONE), {"num_heads": "2", "scale": 0.1}
    ),
    "IntAttention: bias without mask, expected both": Case(
        "IntAttention", (HEADS, HEADS, HEADS, ONE, ONE, None, np.ones((1, 1, 1, 2), np.int32)), ATTENTION
    ),
    "IntRotary: x has 12 channels, expected 2·2·2: 2·heads·half": Case(
        "IntRotary", (TURNED, ANGLES[:, :2], ANGLES[:, :2], ONE, ONE), {"num_heads": 2}
    ),
    "IntRotary: num_heads=0, expected 1 to 65536": Case(
        "IntRotary", (TURNED, *[ANGLES] * 2, ONE, ONE), {"num_heads": 0}
    ),
    r"IntRotary: input cosine has shape \[1, 3\], expected int32 \[length, half\]": Case(
        "IntRotary", (TURNED, ANGLES[:1], ANGLES, ONE, ONE), {"num_heads": 2}
    ),
    r"IntRotary: input sine has shape \[2, 2\], expected int32 \[length, half\]": Case(
        "IntRotary", (TURNED, ANGLES, ANGLES[:, :2], ONE, ONE), {"num_heads": 2}
    ),
    "CachedAttention: key_bits=8, value_bits=32, value_depth=0, expected 32, 32 and 0, or fewer bits": Case(
        "CachedAttention", CACHED, {"key_bits": 8}
    ),
    r"CachedAttention: key_bits=8, value_bits=8, value_depth=1048577, expected .* a depth up to 2\^20": Case(
        "CachedAttention", CACHED, {"key_bits": 8, "value_bits": 8, "value_depth": 2**20 + 1}
    ),
    "CachedAttention: key is uint8, expected float32 for key_bits=32": Case("CachedAttention", CACHED, {}),
    "CachedAttention: value has 8 entries a slot, expected 44 for depth 40": Case(
        "CachedAttention", CACHED, {"key_bits": 8, "value_bits": 8, "value_depth": 40}
    ),
    "QuantizeCache: x has rows of 0 channels, expected at least 1": Case(
        "QuantizeCache", (np.zeros((2, 0), np.float32),), {"bits": 8}
    ),
    r"IntAttention: input value has shape \[1, 1, 12\], expected int8 \[batch, keys, width\]": Case(
        "IntAttention", (HEADS, HEADS, HEADS[:, :1], ONE, ONE), {"num_heads": 2, "scale": 0.1}
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_reference_refuses_invalid_inputs(message: str) -> None:
    case = REFUSED[message]
    with pytest.raises(GraphError, match=f"^{message}"):
        OPS[case.operator].reference(case.inputs, case.attributes)


def model_of(case: Case) -> ir.Model:
    """The node of the case, whose shapes need not match; all inputs but the first are constants."""
    arrays: list[Any] = list(case.inputs)
    values: list[ir.Value | None] = []
    for index, array in enumerate(arrays):
        tensor = None if array is None else ir.tensor(array)
        value = None if tensor is None else ir.Value(name=f"v{index}", const_value=tensor if index else None)
        if value is not None and tensor is not None:
            value.shape, value.dtype = tensor.shape, tensor.dtype
        values.append(value)
    made = [ir.convenience.convert_attribute(name, value) for name, value in case.attributes.items()]
    node = ir.Node("intaglio", case.operator, values, made, num_outputs=1, name="node")
    node.outputs[0].name = "y"
    inputs = [value for value in values if value is not None and value.const_value is None]
    weights = [value for value in values if value is not None and value.const_value is not None]
    graph = ir.Graph(inputs, node.outputs, nodes=[node], initializers=weights, opset_imports={"": 23, "intaglio": 1})
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize("rewrite", [inline, explicit])
@pytest.mark.parametrize("message", REFUSED)
def test_invalid_node_is_refused_by_name(message: str, rewrite: Any) -> None:
    case = REFUSED[message]
    if rewrite is explicit and case.operator in UNPLUGGED:
        message = f"{case.operator} is no plugin of TensorRT"
    with pytest.raises(GraphError, match=f"^node node: {message}"):
        rewrite(model_of(case))


@pytest.mark.parametrize("operator", MAKERS)
def test_extra_output_is_refused(operator: str) -> None:
    model = node_model(MAKERS[operator](np.random.default_rng(1)))
    model.graph.node(0).resize_outputs(4)
    with pytest.raises(GraphError, match=f"^node node: {operator}: 4 outputs, expected at most [12]"):
        inline(model)


def test_wrong_output_dtype_is_refused() -> None:
    model = node_model(Case("Requantize", (X32, ONE, ONE), {"bits": 8}))
    model.graph.node(0).attributes["bits"] = ir.AttrInt64("bits", 16)
    with pytest.raises(GraphError, match=r"^node node: Requantize: output y is int8, expected int32"):
        inline(model)
