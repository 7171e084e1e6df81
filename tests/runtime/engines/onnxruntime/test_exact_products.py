"""A check computes products with compressed weights exactly, also where the graph asks for 16 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from intaglio.plugins import ort as kernels
from intaglio.plugins.registry import DOMAIN, OPS, VERSION
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.engines.onnxruntime.layered_engine import LayeredEngine

DEPTH, CHANNELS = 256, 64
ATTRIBUTES = {"bits": 4, "K": DEPTH, "group_size": 32, "activation_bits": 16}


@pytest.fixture
def product(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray], np.ndarray]:
    """A graph of one product with 16-bit activations, its input, and what the product is."""
    random = np.random.default_rng(0)
    packed = random.integers(-(2**31), 2**31, (CHANNELS, DEPTH * 4 // 32)).astype(np.int32)
    scales = random.uniform(0.1, 0.2, (CHANNELS, DEPTH // 32)).astype(np.float32)
    x = random.normal(size=(3, DEPTH)).astype(np.float32)
    node = helper.make_node("GroupMatMul", ["x", "packed", "scales"], ["y"], domain=DOMAIN, **ATTRIBUTES)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", DEPTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", CHANNELS])],
        [numpy_helper.from_array(packed, "packed"), numpy_helper.from_array(scales, "scales")],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, VERSION)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "model.onnx")
    expected = OPS["GroupMatMul"].compute(x.astype(np.float64), packed, scales, None, None, None, **ATTRIBUTES)[0]
    return tmp_path / "model.onnx", {"x": x}, expected


def test_activations_are_not_rounded_in_a_check(product: tuple[Path, dict[str, np.ndarray], np.ndarray]) -> None:
    path, feeds, expected = product
    plain, exact, layered = (
        _error(engine, feeds, expected)
        for engine in (OnnxRuntimeEngine(path), OnnxRuntimeEngine(path, exact=True), LayeredEngine(path, []))
    )
    assert max(exact, layered) < 1e-6
    assert plain < 1e-4
    if kernels.instruction_set() in ("avx2", "avx512vnni", "avx512vbmi"):
        assert plain > 10 * exact


def _error(engine: Engine, feeds: dict[str, np.ndarray], expected: np.ndarray) -> float:
    with engine:
        return float(np.abs(engine.run(feeds)["y"] - expected).max() / np.abs(expected).max())
