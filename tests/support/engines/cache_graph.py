"""A graph with one Attention to a cache that it writes, as a decoder's step has many."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from intaglio.plugins import ort as kernels
from intaglio.runtime.engines.caches.cached_attention import attend_by_our_kernel
from intaglio.runtime.engines.caches.quantized_cache import quantize_caches


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


def step_graph(kind: int) -> onnx.ModelProto:
    """The same of caches and queries of type `kind`, without the other node that reads the cache."""
    model = graph(cache=kind, scale=0.5)
    del model.graph.node[2]
    model.ir_version = 11  # which this version of ONNX Runtime takes
    return model


def step_feeds(kind: int, bits: int, capacity: int) -> dict[str, np.ndarray]:
    """What a step of two rows and three tokens reads, besides the caches."""
    random, dtype = np.random.default_rng(bits), onnx.helper.tensor_dtype_to_np_dtype(kind)
    starts = np.array([0, 2])
    seen = starts[:, None] + np.arange(1, 4)
    return {
        "query": random.normal(size=(2, 4, 3, 8)).astype(dtype),
        "new": random.normal(size=(2, 2, 3, 8)).astype(dtype),
        "start": starts,
        "mask": (np.arange(capacity) < seen[..., None])[:, None],
    }


def attended(bits: int, kind: int, words: bool, capacity: int = 9) -> list[np.ndarray]:
    """What ONNX Runtime computes from that graph with slots: the context, and the bytes of both caches."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = step_graph(kind)
    quantize_caches(model, bits, words)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    kernels.register(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = step_feeds(kind, bits, capacity)
    for spec in session.get_inputs():
        if spec.name.startswith("past_"):
            feeds[spec.name] = np.zeros((2, 2, capacity, spec.shape[-1]), np.float32 if words else np.uint8)
    context, *caches = session.run(None, feeds)
    return [context, *(cache.view(np.uint8) for cache in caches)]


def operator(model: onnx.ModelProto) -> str:
    """The type of its last node after `attend_by_our_kernel`."""
    attend_by_our_kernel(model)
    return str(model.graph.node[-1].op_type)
