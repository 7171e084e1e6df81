"""The features of a waveform, and the pixels of images, are found by their structure; similar nodes are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from intaglio.exporters.vision.front_end import add_front_end
from intaglio.exporters.vision.image_processor import ImageProcessor
from intaglio.graph_passes.float16 import Float16
from intaglio.graph_passes.front_end import features, front_end
from intaglio.graph_passes.quantize_dequantize.quantize_weights import QuantizeWeights
from intaglio.graph_passes.quantize_dequantize.region import model_region
from intaglio.graph_passes.weights.rtn import Rtn

RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "waves": RANDOM.standard_normal((8, 1, 16)).astype(np.float32) * 60,
    "filters": RANDOM.uniform(0, 1, (4, 32)).astype(np.float32),
    "floor": np.array(1e-9, np.float32),
    "rows": np.array([2]),
    "w": RANDOM.standard_normal((32, 32)).astype(np.float32) / 8,
    "g": np.ones(32, np.float32),
}
FEATURES = {"spectrum", "real", "imaginary", "power", "t", "bands", "safe", "log", "total", "count", "mean", "centred"}
TEXT = """(float[A, 1, S] audio) => (float[A, T, 32] y) {
    spectrum = Conv <strides = [4]> (audio, waves)
    real, imaginary = Split <axis = 1, num_outputs = 2> (spectrum)
    r = Mul(real, real)  i = Mul(imaginary, imaginary)  power = Add(r, i)
    t = Transpose <perm = [0, 2, 1]> (power)  bands = MatMul(t, filters)  safe = Add(bands, floor)  log = Log(safe)
    total = ReduceSum <keepdims = 1> (log, rows)
    shape = Shape <start = 2> (log)  count = Cast <to = 1> (shape)
    mean = Div(total, count)  centred = Sub(log, mean)
    h = MatMul(centred, w)  n = LayerNormalization <axis = -1> (h, g)  k = MatMul(n, w)  p = Softmax(k)
    y = LogSoftmax <axis = -1> (p)
}"""


def recogniser(parse: Any) -> ir.Model:
    model: ir.Model = parse(TEXT, WEIGHTS)
    return model


def test_features_end_at_the_first_layer(parse: Any) -> None:
    found = {value.name for node in front_end(recogniser(parse)) for value in node.outputs}
    assert found == FEATURES | {"r", "i", "shape"}


def test_entropy_of_the_output_is_not_a_feature(parse: Any) -> None:
    text = """(float[A, 4] x) => (float[A, 4] y) {
        h = MatMul(x, w)  q = Mul(h, h)  p = Softmax <axis = -1> (q)  l = Log(p)  y = Mul(p, l)
    }"""
    assert front_end(parse(text, {"w": np.ones((4, 4), np.float32)})) == set()


def test_region_of_integers_begins_after_the_features(parse: Any) -> None:
    model = recogniser(parse)
    assert [node.outputs[0].name for node in model_region(model)] == ["h", "n"]
    QuantizeWeights(where="everywhere")(model)
    assert np.array_equal(model.graph.initializers["filters"].const_value.numpy(), WEIGHTS["filters"])
    assert "w" not in model.graph.initializers


def test_grouped_quantisation_skips_the_filters(parse: Any) -> None:
    model, counts = Rtn()(recogniser(parse))
    assert np.array_equal(model.graph.initializers["filters"].const_value.numpy(), WEIGHTS["filters"])
    assert sum(counts.rewritten.values()) > 0


def test_power_of_loud_audio_stays_in_range_of_float16(parse: Any, compute: Any) -> None:
    audio = np.sign(np.sin(np.arange(400, dtype=np.float32) / 3)).reshape(1, 1, 400)
    expected = compute(recogniser(parse), audio=audio)[0]
    model, _ = Float16()(recogniser(parse))
    assert [value.dtype for value in (*model.graph.inputs, *model.graph.outputs)] == [ir.DataType.FLOAT] * 2
    dtypes = {value.name: value.dtype for node in model.graph for value in node.outputs}
    assert {dtypes[f"{name}_float32"] for name in FEATURES} == {ir.DataType.FLOAT}
    assert dtypes["n"] == ir.DataType.FLOAT16
    kept = {name: value.const_value.dtype for name, value in model.graph.initializers.items()}
    assert (kept["waves"], kept["filters"], kept["w"]) == (ir.DataType.FLOAT, ir.DataType.FLOAT, ir.DataType.FLOAT16)
    np.testing.assert_allclose(compute(model, audio=audio)[0], expected, atol=5e-3)


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.FLOAT16])
def test_image_processor_is_a_front_end(dtype: ir.DataType) -> None:
    """All its nodes stay in float32, and the first convolution does not."""
    pixels = ir.Value(name="pixel_values", type=ir.TensorType(dtype), shape=ir.Shape(["batch", 3, 8, 8]))
    weight = ir.tensor(np.ones((2, 3, 4, 4), dtype.numpy()), name="weight")
    node = ir.node("Conv", [pixels, ir.Value(name="weight", const_value=weight)], name="patches")
    node.outputs[0].type = ir.TensorType(dtype)
    initializers = [value for value in node.inputs if value is not None and value.const_value is not None]
    graph = ir.Graph(
        [pixels], node.outputs, nodes=[node], initializers=initializers, opset_imports={"": 23}, name="image"
    )
    model = ir.Model(graph, ir_version=11)
    processor = ImageProcessor(9, 9, True, (8, 8), "bicubic", 1 / 255, (0.5,) * 3, (0.5,) * 3)
    add_front_end(model, processor)
    found = front_end(model)
    assert {str(each.name) for each in model.graph} - {str(each.name) for each in found} == {"patches"}
    assert [value.name for value in features(model, found)] == ["pixel_values"]
