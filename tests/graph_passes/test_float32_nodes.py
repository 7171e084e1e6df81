"""Nodes whose meaning float16 would change stay float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from intaglio.errors import GraphError
from intaglio.graph_passes.float16 import Float16


def test_range_longer_than_2048_keeps_its_length(parse: Any, compute: Any) -> None:
    text = """(float[N] x) => (float[M] y) {
        n = Shape(x)  axis = Constant <value = int64[1] {0}> ()  m = Squeeze(n, axis)  limit = Cast <to = 1> (m)
        zero = Constant <value_float = 0.0> ()  one = Constant <value_float = 1.0> ()
        y = Range(zero, limit, one)
    }"""
    model, _ = Float16()(parse(text))
    (found,) = compute(model, x=np.zeros(2049, np.float16))
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.arange(2049).astype(np.float16))


def test_bitcast_inputs_stay_float32(parse: Any, compute: Any) -> None:
    model, _ = Float16()(parse("(float[4] x) => (int32[4] y) { y = BitCast <to = 6> (x) }", opset=26))
    x = np.float32([1 / 3, -2.5, 1e-30, 1e30])
    assert str(model.graph.inputs[0].dtype) == "FLOAT"
    np.testing.assert_array_equal(compute(model, x=x)[0], x.view(np.int32))


def test_sequence_between_float32_and_float16_is_refused_by_name(parse: Any) -> None:
    text = """(float[2] x) => (float[2] y) {
        s = SequenceConstruct(x, x)  t = other.Plugin(s)  zero = Constant <value_int = 0> ()  y = SequenceAt(t, zero)
    }"""
    model = parse(text, domains=', "other": 1')
    node = next(node for node in model.graph if node.domain == "other")
    node.outputs[0].type = ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
    with pytest.raises(GraphError, match=r"float16: '[st]' of type .*Sequence.* no Cast converts it"):
        Float16()(model)
