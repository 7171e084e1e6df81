"""The operators of decoders in torch against ONNX's own evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from intaglio.errors import GraphError
from intaglio.training.gradients.decoder_operators import DECODER_FUNCTIONS
from intaglio.training.gradients.weight_products import multiplied
from intaglio.training.integer.standard import FUNCTIONS

RANDOM = np.random.default_rng(0)
REAL = RANDOM.normal(0, 1, (2, 3, 4)).astype(np.float32)
HEADS = RANDOM.normal(0, 1, (2, 4, 3, 8)).astype(np.float32)
KEYS = RANDOM.normal(0, 1, (2, 2, 5, 8)).astype(np.float32)
MASK = np.tril(np.ones((2, 1, 3, 5), np.bool_), 2)
ANGLES = RANDOM.uniform(0, 6, (2, 3, 4)).astype(np.float32)
WHOLE = np.array([[3, -2, 7], [0, 5, -9]], np.int64)
ROW = np.arange(1, 5, dtype=np.float32)


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


# The node and its inputs: a, b, c, ...
CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("Abs(a)", (REAL,)),
    ("ArgMax <axis = -1, keepdims = 0> (a)", (REAL,)),
    ("Attention <scale = 0.5> (a, b, c, d)", (HEADS, KEYS, KEYS, MASK)),
    ("Attention <scale = 0.5, softcap = 2.0> (a, b, c, d)", (HEADS, KEYS, KEYS, MASK)),
    ("Cast <to = 1> (a)", (WHOLE,)),
    ("ConstantOfShape(a)", (numbers(2, 3),)),
    ("Conv <group = 3, kernel_shape = [2], pads = [1, 0]> (a, b)", (REAL, RANDOM.normal(size=(3, 1, 2)).astype("f4"))),
    ("Cos(a)", (REAL,)),
    ("Exp(a)", (REAL,)),
    ("Floor(a)", (REAL,)),
    ("GatherND <batch_dims = 1> (a, b)", (REAL, numbers(2, 0).reshape(2, 1, 1))),
    ("GatherND(a, b)", (REAL, numbers(1, 2, 0, 1).reshape(2, 2))),
    ("GreaterOrEqual(a, b)", (WHOLE, numbers(3, 5, 7))),
    ("LessOrEqual(a, b)", (WHOLE, numbers(3, 5, 7))),
    ("Log(a)", (np.abs(REAL),)),
    ("Max(a, b, c)", (REAL, ROW, -REAL)),
    ("Min(a, b)", (REAL, ROW)),
    ("Mod(a, b)", (WHOLE, numbers(4, -3, 5))),
    ("Mod <fmod = 1> (a, b)", (WHOLE, numbers(4, -3, 5))),
    ("RMSNormalization <epsilon = 0.1> (a, b)", (REAL, ROW)),
    ("Range(a, b, c)", (np.array(2), np.array(9), np.array(3))),
    ("Reciprocal(a)", (REAL,)),
    ("RotaryEmbedding(a, b, c)", (HEADS, np.cos(ANGLES), np.sin(ANGLES))),
    ("RotaryEmbedding <interleaved = 1> (a, b, c)", (HEADS, np.cos(ANGLES), np.sin(ANGLES))),
    (
        "RotaryEmbedding <rotary_embedding_dim = 4, num_heads = 4> (a, b, c)",
        (HEADS, np.cos(ANGLES[..., :2]), np.sin(ANGLES[..., :2])),
    ),
    ("ScatterElements <axis = 1> (a, b, c)", (WHOLE, numbers(2, -3).reshape(2, 1), numbers(10, 11).reshape(2, 1))),
    ("ScatterND(a, b, c)", (WHOLE, numbers(1).reshape(1, 1), numbers(7, 8, 9).reshape(1, 3))),
    ("Sin(a)", (REAL,)),
    ("Softplus(a)", (REAL,)),
    ("Split <axis = 1> (a, b)", (REAL, numbers(3, 0))),
    ("Tile(a, b)", (WHOLE, numbers(2, 1))),
    ("TopK(a, b)", (REAL, numbers(2))),
    ("TopK <axis = 1, largest = 0> (a, b)", (REAL, numbers(2))),
]
ELSEWHERE = {"TensorScatter"}  # tested with whole graphs: the evaluator has none


def node_of(text: str, arrays: tuple[Any, ...]) -> tuple[onnx.ModelProto, ir.Node]:
    types = {"float32": "float", "bool": "bool"}
    inputs = ", ".join(
        f"{types.get(array.dtype.name, array.dtype.name)}[{','.join(map(str, array.shape))}] {name}"
        for name, array in zip("abcd", map(np.asarray, arrays), strict=False)
    )
    proto = onnx.parser.parse_model(
        f'<ir_version: 11, opset_import: ["": 24]> g ({inputs}) => (float y) {{ y = {text} }}'
    )
    (node,) = ir.from_proto(proto).graph
    return proto, node


@pytest.mark.parametrize(("text", "arrays"), CASES, ids=[f"{i} {text}" for i, (text, _) in enumerate(CASES)])
def test_torch_functions_equal_onnx(text: str, arrays: tuple[Any, ...]) -> None:
    proto, node = node_of(text, arrays)
    feeds = {name: np.asarray(array) for name, array in zip("abcd", arrays, strict=False)}
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    got = DECODER_FUNCTIONS[node.op_type](node, *(torch.from_numpy(np.array(array)) for array in feeds.values()))
    first = got[0] if isinstance(got, list) else got
    assert first.shape == expected.shape
    np.testing.assert_allclose(first.numpy(), expected, rtol=2e-5, atol=2e-6)


def test_every_function_of_decoders_is_tested() -> None:
    tested = {text.split("(")[0].split()[0] for text, _ in CASES}
    assert tested | ELSEWHERE == {name for name, made in DECODER_FUNCTIONS.items() if made is not FUNCTIONS.get(name)}


def test_reductions_in_a_scatter_are_refused() -> None:
    _, node = node_of(
        'ScatterElements <reduction = "add"> (a, b, c)', (WHOLE, numbers(0, 1).reshape(1, 2), WHOLE[:1, :2])
    )
    with pytest.raises(GraphError, match="reduction=add has no gradient here, only reduction=none"):
        DECODER_FUNCTIONS["ScatterElements"](node, *map(torch.from_numpy, (WHOLE, WHOLE, WHOLE)))


@pytest.mark.parametrize(("rows", "depth"), [(0, 5), (5, 0), (0, 0), (300, 7)])
def test_products_of_any_length_equal_torch(rows: int, depth: int) -> None:
    """An expert without rows has a product with none."""
    x, matrix = torch.rand(rows, depth), torch.rand(depth, 3)
    torch.testing.assert_close(multiplied(x, matrix), x @ matrix)
