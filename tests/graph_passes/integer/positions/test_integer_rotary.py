"""Integer angles give the cosines and sines of real ones, and IntRotary turns as real numbers do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.graph_passes.graphs import infer_shapes
from intaglio.graph_passes.integer.positions.integer_rotary import STEPS, IntegerRotary
from intaglio.plugins import OPS
from intaglio.plugins.integer_math import UNIT

Array = npt.NDArray[Any]
Parse = Callable[..., ir.Model]

HEADS, HALF = 2, 8
GRAPH = """(int64[b, s] ids) => (float[b, s, 32] z) {
  x = Gather(words, ids) xq = QuantizeLinear <output_dtype = 5> (x, sx) xd = DequantizeLinear(xq, sx)
  n = Shape <start = 1, end = 2> (ids) l = Squeeze(n) p = Range(first, l, step) p3 = Unsqueeze(p, axes)
  pf = Cast <to = 1> (p3) a = Mul(pf, frequencies) c = Cos(a) s1 = Sin(a)
  b = Shape <start = 0, end = 1> (ids) shape = Concat <axis = 0> (b, ones)
  cosine = Expand(c, shape) sine = Expand(s1, shape)
  r = RotaryEmbedding <num_heads = 2> (xd, cosine, sine) y = QuantizeLinear <output_dtype = 3> (r, sy)
  back = Cast <to = 1> (y) z = LayerNormalization(back, g)
}"""
FREQUENCIES = (160000.0 ** -(np.arange(HALF) / HALF)).astype(np.float32)


def tables(model: ir.Model, length: int) -> tuple[Array, Array]:
    """The cosines and sines that the IntRotary of a model gets, by ONNX Runtime."""
    import onnxruntime

    (node,) = (node for node in model.graph if node.op_type == "IntRotary")
    values = [value for value in node.inputs[1:3] if value is not None]
    cut = ir.convenience.extract(model.graph, list(model.graph.inputs), values)
    session = onnxruntime.InferenceSession(ir.to_proto(ir.Model(cut, ir_version=10)).SerializeToString())
    cosine, sine = session.run(None, {"ids": np.zeros((1, length), np.int64)})
    return cosine, sine


def test_integer_angles_are_exact_for_long_texts(parse: Parse) -> None:
    weights = {
        "words": np.ones((2, 2 * HEADS * HALF), np.float32),
        "sx": np.float32(1e-3),
        "sy": np.float32(1e-1),
        "first": np.int64(0),
        "step": np.int64(1),
        "axes": np.array([0, 2]),
        "ones": np.array([1, 1]),
        "frequencies": FREQUENCIES,
        "g": np.ones(2 * HEADS * HALF, np.float32),
    }
    model = parse(GRAPH, weights)
    infer_shapes(model)
    _, counts = IntegerRotary()(model)
    assert counts.rewritten == {"rotary embeddings": 1}
    cosine, sine = tables(model, 2**16)
    angles = np.arange(2**16)[:, None] * FREQUENCIES.astype(np.float64)
    bound = math.pi / 2**STEPS * UNIT[1] + 0.5 + 0.01
    assert cosine.dtype == np.int32 and cosine.shape == angles.shape
    assert np.abs(cosine - np.cos(angles) * UNIT[1]).max() <= bound
    assert np.abs(sine - np.sin(angles) * UNIT[1]).max() <= bound


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 2**32 - 1), out_scale=st.floats(1e-3, 1.0))
def test_turned_channels_match_real_numbers(seed: int, out_scale: float) -> None:
    """Up to half a step of the output, and what a table in Q14 costs at the largest x."""
    random = np.random.default_rng(seed)
    x = random.integers(-(2**15), 2**15, (2, 5, 2 * HEADS * HALF)).astype(np.int32)
    angles = random.uniform(-9, 9, (5, HALF))
    cosine, sine = (np.rint(curve(angles) * UNIT[1]).astype(np.int32) for curve in (np.cos, np.sin))
    scale = 1e-2 * out_scale
    multiplier, shift = np.frexp(scale / UNIT[1] / out_scale)
    factors = np.array([round(multiplier * 2**31)], np.int32), np.array([31 - shift], np.int32)
    (y,) = OPS["IntRotary"].reference([x, cosine, sine, *factors], {"num_heads": HEADS})
    first, second = np.moveaxis((x * scale).reshape(2, 5, HEADS, 2, HALF), 3, 0)
    c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
    real = np.stack([first * c - second * s, second * c + first * s], axis=3).reshape(x.shape) / out_scale
    assert np.abs(y - real.clip(-128, 127)).max() <= 0.5 + 2**15 * 1e-2 / UNIT[1] + 1e-6
