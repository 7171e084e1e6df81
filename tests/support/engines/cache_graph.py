"""A graph with one Attention to a cache that it writes, as a decoder's step has many."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper

from intaglio.runtime.engines.onnxruntime.cached_attention import attend_by_our_kernel


def graph(
    mask: int = TensorProto.BOOL, cache: int = TensorProto.FLOAT, key: str = "key", **attributes: Any
) -> onnx.ModelProto:
    """Attention to a buffer that is written to; `key`: what it reads as keys."""
    shape = ["batch", 2, "capacity", 8]
    inputs = [
        helper.make_tensor_value_info("query", cache, ["batch", 4, "tokens", 8]),
        *(helper.make_tensor_value_info(name, cache, shape) for name in ("past_key", "past_value")),
        helper.make_tensor_value_info("new", cache, ["batch", 2, "tokens", 8]),
        helper.make_tensor_value_info("start", TensorProto.INT64, ["batch"]),
        helper.make_tensor_value_info("mask", mask, ["batch", 1, "tokens", "capacity"]),
    ]
    nodes = [
        helper.make_node("TensorScatter", ["past_key", "new", "start"], ["key"], axis=2),
        helper.make_node("TensorScatter", ["past_value", "new", "start"], ["value"], axis=2),
        helper.make_node("Neg", ["key"], ["computed"]),
        helper.make_node("Attention", ["query", key, "value", "mask"], ["context"], **attributes),
    ]
    outputs = [helper.make_tensor_value_info(name, cache, shape) for name in ("key", "value")]
    made = helper.make_graph(
        nodes,
        "step",
        inputs,
        [helper.make_tensor_value_info("context", cache, ["batch", 4, "tokens", 8]), *outputs],
        value_info=[helper.make_tensor_value_info("computed", cache, shape)],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 24)])


def operator(model: onnx.ModelProto) -> str:
    """The type of its last node after `attend_by_our_kernel`."""
    attend_by_our_kernel(model)
    return str(model.graph.node[-1].op_type)
