"""A decoder's step with quantised caches as TensorRT gets it: its plugins on an emulated GPU equal ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cache_graph import attended, step_feeds, step_graph
from emulated_driver import IMAGES, EmulatedDriver
from onnx import TensorProto
from plugin_library import RUNTIME, PluginLibrary, fields_of

from intaglio.plugins.trt import use_kernel_plugins
from intaglio.runtime.engines.tensorrt.operators import prepared

SM, CAPACITY = 75, 9


def run(model: ir.Model, plugins: PluginLibrary, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The values of a graph of plugins, Cast and TensorScatter; caches of `feeds` are written in place."""
    values: dict[Any, np.ndarray] = {value: feeds[str(value.name)] for value in model.graph.inputs}
    for node in model.graph:
        inputs = [values[value] for value in node.inputs]
        if node.op_type == "Cast":
            found = inputs[0].astype(ir.DataType(node.attributes.get_int("to")).numpy())
        elif node.op_type == "TensorScatter":
            found, new, starts = inputs
            for row, start in enumerate(starts):
                found[row, :, start : start + new.shape[2]] = new[row]
        else:
            plugin = plugins.create(fields_of(node), RUNTIME)
            assert plugin is not None, plugins.logged()
            outputs = plugin.run(inputs)
            assert outputs is not None, plugins.logged()
            (found,) = outputs
        values[node.outputs[0]] = found
    return {str(value.name): values[value] for value in model.graph.outputs}


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize("bits", [8, 4])
def test_slots_equal_those_of_onnxruntime(
    plugins: PluginLibrary, driver: EmulatedDriver, tmp_path: Path, bits: int, kind: int
) -> None:
    onnx.save(step_graph(kind), tmp_path / "step.onnx")
    model = prepared(
        tmp_path / "step.onnx",
        SM,
        {"capacity": CAPACITY},
        lambda graph, _: use_kernel_plugins(graph, SM, lambda *_: IMAGES),
        bits,
    )
    assert model is not None
    feeds = step_feeds(kind, bits, CAPACITY)
    for value in model.graph.inputs:
        if str(value.name).startswith("past_"):
            assert value.dtype == ir.DataType.FLOAT and value.shape is not None
            batch, heads, _, words = (2, *value.shape[1:])
            feeds[str(value.name)] = np.zeros((batch, heads, CAPACITY, words), np.float32)
    found = run(model, plugins, feeds)
    kernels = [f"quantize_cache_{bits}", "quantize_cache_8", f"cached_attention_8_{bits}"]
    assert sorted(driver.launches) == sorted(kernels)
    context, *caches = attended(bits, kind, words=False, capacity=CAPACITY)
    for name, expected in zip(("key", "value"), caches, strict=True):
        np.testing.assert_array_equal(found[name].view(np.uint8), expected)
    assert found["context"].dtype == context.dtype
    np.testing.assert_allclose(found["context"], context, rtol=0, atol=1e-6 if kind == TensorProto.FLOAT else 2e-3)
