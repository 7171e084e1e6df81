"""Rows of a quantised table, looked up by standard operators: equal to the decoded table's rows, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from intaglio.plugins.bit_packing import pack
from intaglio.plugins.function_body import FunctionBody
from intaglio.plugins.group_matmul.look_up import Codes, codes_looked_up, look_up

onnxruntime = pytest.importorskip("onnxruntime")
ir = pytest.importorskip("onnx_ir")

ROWS, WIDTH, GROUP = 11, 96, 32


def value(name: str, array: np.ndarray) -> ir.Value:
    made = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.from_numpy(array.dtype)))
    made.const_value = ir.tensor(array, name=name)
    return made


@pytest.mark.parametrize(
    "completed", [(), ("zero_points",), ("minimums",), ("zero_points", "minimums"), ("levels",)], ids=str
)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 1, 4)], ids=str)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_rows_equal_the_decoded_table(bits: int, shape: tuple[int, ...], completed: tuple[str, ...]) -> None:
    random = np.random.default_rng(bits)
    codes = random.integers(0, 2**bits, (ROWS, WIDTH))
    scales = random.standard_normal((ROWS, WIDTH // GROUP)).astype(np.float32)
    zeros = random.integers(0, 2**bits, scales.shape).astype(np.uint8)
    minimums = random.standard_normal(scales.shape[::-1]).astype(np.float32)
    levels = random.standard_normal(2**bits).astype(np.float32)
    parts = {
        "packed": pack(codes, bits),
        "scales": scales,
        "zero_points": zeros,
        "minimums": minimums,
        "levels": levels,
    }
    values = {
        name: value(f"table.{name}", array) for name, array in parts.items() if name in ("packed", "scales", *completed)
    }
    indices = ir.Value(name="indices", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.INT64))
    body = FunctionBody()
    rows = look_up(body, indices, *map(values.get, parts), Codes(bits, WIDTH))
    rows.name, rows.type, rows.shape = "rows", ir.TensorType(ir.DataType.FLOAT), ir.Shape((*shape, WIDTH))
    initializers = [*values.values()]
    graph = ir.Graph([indices], [rows], nodes=body.nodes, initializers=initializers, opset_imports={"": 23}, name="g")
    model = ir.Model(graph, ir_version=10)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    assert [found for node in graph if (found := codes_looked_up(node))] == [Codes(bits, WIDTH)]
    serialized = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(serialized, providers=["CPUExecutionProvider"])
    chosen = random.integers(0, ROWS, shape)
    (found,) = session.run(None, {"indices": chosen})
    middle = zeros if "zero_points" in completed else np.full(scales.shape, 2 ** (bits - 1))
    table = (codes.reshape(ROWS, -1, GROUP) - middle[:, :, None].astype(np.float32)).astype(np.float32)
    if "levels" in completed:
        table = levels[codes.reshape(ROWS, -1, GROUP)]
    table *= scales[:, :, None]
    if "minimums" in completed:
        table -= minimums.T[:, :, None]
    np.testing.assert_array_equal(found, table.reshape(ROWS, WIDTH)[chosen])
