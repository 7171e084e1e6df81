"""Bits per weight: all stored bits over the number of weights of the original model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from intaglio.bundle.bundle import Manifest, Source, TensorSpec, create
from intaglio.bundle.inspection import inspect

ROWS, COLUMNS, BITS = 64, 128, 3


def write(path: Path, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], parameters: int) -> Path:
    """A bundle of a graph from x to y with `weights`."""
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in SIZES.items()]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("intaglio", 1)]
    with create(path) as draft:
        onnx.save(helper.make_model(graph, opset_imports=opsets), draft.model_path)
        specs = [TensorSpec(name, "float32", (1, size)) for name, size in SIZES.items()]
        source = Source("onnx", "by hand")
        draft.manifest = Manifest(
            1, "tests", source, "", "", "", "float32", specs[:1], specs[1:], parameters=parameters
        )
    return path


SIZES = {"x": COLUMNS, "y": ROWS}
TABLES = {
    "packed": np.zeros((ROWS, COLUMNS * BITS // 32), np.int32),
    "lut": np.zeros((ROWS, 2**BITS), np.float32),
    "values": np.ones(37, np.float32),
    "columns": np.zeros(37, np.int32),
    "row_offsets": np.zeros(ROWS + 1, np.int32),
}


def test_codebooks_and_sparse_values_count_as_bits_not_as_weights(tmp_path: Path) -> None:
    node = helper.make_node("LutMatMul", ["x", *TABLES], ["y"], domain="intaglio", bits=BITS, K=COLUMNS)
    found = inspect(write(tmp_path / "lut", [node], TABLES, parameters=ROWS * COLUMNS))
    stored = 8 * sum(array.nbytes for array in TABLES.values())
    assert found.parameters == ROWS * COLUMNS
    assert found.bits_per_weight == pytest.approx(stored / (ROWS * COLUMNS))
    assert found.bits_per_weight > BITS


def test_constant_nodes_hold_weights_but_shapes_are_no_weights(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((COLUMNS, ROWS), np.float32))
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weight),
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["y"]),
    ]
    found = inspect(write(tmp_path / "b", nodes, {"shape": np.array([1, ROWS])}, parameters=0))
    assert found.parameters == ROWS * COLUMNS
    assert found.bits_per_weight == 32 + 8 * 16 / (ROWS * COLUMNS)


def test_weight_count_of_a_decoder_equals_torch(make_decoder: Callable[..., tuple[Path, Path]]) -> None:
    import transformers

    checkpoint, bundle = make_decoder("gpt2")
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    found = inspect(bundle)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())  # the tied head once
    assert 32 <= found.bits_per_weight < 32.5
