"""The standard operators in torch against ONNX's own evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from intaglio.errors import GraphError
from intaglio.training.integer.standard import FUNCTIONS

REAL = np.random.default_rng(0).normal(0, 1, (2, 3, 4)).astype(np.float32)
MATRIX = np.random.default_rng(1).normal(0, 1, (4, 5)).astype(np.float32)
WHOLE = np.array([[3, -2, 7], [0, 5, -9]], np.int64)
ROW = np.arange(1, 5, dtype=np.float32)


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


# The node and its inputs: a, b, c, ...
CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("Abs(a)", (WHOLE,)),
    ("Add(a, b)", (REAL, ROW)),
    ("Sub(a, b)", (REAL, ROW)),
    ("Mul(a, b)", (REAL, ROW)),
    ("Div(a, b)", (REAL, ROW)),
    ("Div(a, b)", (WHOLE, numbers(2))),
    ("Pow(a, b)", (np.abs(REAL), ROW)),
    ("And(a, b)", (WHOLE > 0, WHOLE > 4)),
    ("Or(a, b)", (WHOLE > 0, WHOLE > 4)),
    ("Not(a)", (WHOLE > 0,)),
    ("Equal(a, b)", (WHOLE, numbers(3, 5, 7))),
    ("Greater(a, b)", (WHOLE, numbers(0))),
    ("GreaterOrEqual(a, b)", (WHOLE, numbers(0))),
    ("Less(a, b)", (WHOLE, numbers(0))),
    ("LessOrEqual(a, b)", (WHOLE, numbers(0))),
    ("Mod(a, b)", (WHOLE, numbers(4))),
    ("Range(a, b, c)", (np.int64(2), np.int64(9), np.int64(3))),
    ("Where(a, b, c)", (WHOLE > 0, WHOLE, numbers(0))),
    ("Cast <to = 1> (a)", (WHOLE,)),
    ("Cast <to = 9> (a)", (WHOLE,)),
    ("Clip(a, b)", (REAL, np.float32(0.1))),
    ("Clip(a, b, c)", (REAL, np.float32(-0.1), np.float32(0.2))),
    ("Concat <axis = 1> (a, b)", (WHOLE, WHOLE)),
    ("CumSum(a, b)", (WHOLE, np.array(1))),
    ("DequantizeLinear(a, b)", (WHOLE.astype(np.int8), np.float32(0.3))),
    ("DequantizeLinear <axis = 0> (a, b)", (WHOLE.astype(np.int32), np.array([0.5, 0.1], np.float32))),
    ("Erf(a)", (REAL,)),
    ("Expand(a, b)", (ROW, numbers(2, 3, 1))),
    ("Gather(a, b)", (MATRIX, numbers(3, -1))),
    ("Gather <axis = 1> (a, b)", (REAL, WHOLE % 3)),
    ("GatherElements <axis = 1> (a, b)", (WHOLE, WHOLE % 3)),
    ("Gelu(a)", (REAL,)),
    ('Gelu <approximate = "tanh"> (a)', (REAL,)),
    ("Gemm <transA = 1, transB = 1, alpha = 0.5, beta = 2.0> (a, b, c)", (MATRIX, REAL[0], np.ones(3, np.float32))),
    ("Identity(a)", (REAL,)),
    ("LayerNormalization <epsilon = 0.1> (a, b, c)", (REAL, ROW, ROW)),
    ("MatMul(a, b)", (REAL, MATRIX)),
    ("Neg(a)", (REAL,)),
    ("ReduceL2 <keepdims = 0> (a, b)", (REAL, numbers(1, 2))),
    ("ReduceMax(a, b)", (REAL, numbers(-1))),
    ("ReduceMean(a, b)", (REAL, numbers(-1))),
    ("ReduceSum(a)", (REAL,)),
    ("ReduceSum <keepdims = 0> (a, b)", (REAL, numbers(1))),
    ("Relu(a)", (REAL,)),
    ("Reshape(a, b)", (REAL, numbers(0, -1))),
    ("Reshape <allowzero = 1> (a, b)", (REAL[:0], numbers(4, 0, 3))),
    ("Shape <start = 1, end = 3> (a)", (REAL,)),
    ("Sigmoid(a)", (REAL,)),
    ("Slice(a, b, c)", (REAL, numbers(0, 1), numbers(1, 99))),
    ("Slice(a, b, c, d, e)", (REAL, numbers(-1, 3), numbers(-99, 0), numbers(2, 1), numbers(-1, -2))),
    ("Softmax <axis = 1> (a)", (REAL,)),
    ("Sqrt(a)", (np.abs(REAL),)),
    ("Squeeze(a, b)", (REAL[:, None], numbers(1))),
    ("Tanh(a)", (REAL,)),
    ("Transpose <perm = [2, 0, 1]> (a)", (REAL,)),
    ("Unsqueeze(a, b)", (ROW, numbers(0, -1))),
]


def model_of(node: str, arrays: tuple[Any, ...]) -> onnx.ModelProto:
    types = {"float32": "float", "bool": "bool"}
    inputs = ", ".join(
        f"{types.get(array.dtype.name, array.dtype.name)}[{','.join(map(str, array.shape))}] {name}"
        for name, array in zip("abcde", map(np.asarray, arrays), strict=False)
    )
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 23]> g ({inputs}) => (float y) {{ y = {node} }}'
    )


@pytest.mark.parametrize(("node", "arrays"), CASES, ids=[f"{i} {node}" for i, (node, _) in enumerate(CASES)])
def test_torch_functions_equal_onnx(node: str, arrays: tuple[Any, ...]) -> None:
    proto = model_of(node, arrays)
    feeds = {name: np.asarray(array) for name, array in zip("abcde", arrays, strict=False)}
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    (made,) = ir.from_proto(proto).graph
    got = FUNCTIONS[made.op_type](made, *(torch.from_numpy(np.array(array)) for array in feeds.values()))
    assert got.numpy().dtype == expected.dtype
    np.testing.assert_allclose(got.numpy(), expected, rtol=2e-6, atol=1e-6)


def test_every_function_is_tested() -> None:
    assert {node.split("(")[0].split()[0] for node, _ in CASES} == set(FUNCTIONS)


@pytest.mark.parametrize(
    ("node", "arrays", "message"),
    [
        ("CumSum <reverse = 1> (a, b)", (WHOLE, np.array(1)), "reverse=1 cannot be trained, only reverse=0"),
        ("DequantizeLinear(a, b, c)", (WHOLE.astype(np.int8), np.float32(1), np.int8(1)), "zero points"),
    ],
)
def test_unsupported_operators_are_refused(node: str, arrays: tuple[Any, ...], message: str) -> None:
    (made,) = ir.from_proto(model_of(node, arrays)).graph
    with pytest.raises(GraphError, match=message):
        FUNCTIONS[made.op_type](made, *(torch.from_numpy(np.array(array)) for array in arrays))
