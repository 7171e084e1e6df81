"""The query, key and value layers are fused with identical integers, or stay separate with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from observed import run_integer

from intaglio.graph_passes.integer.fusion.fuse_projections import FuseProjections

Parse = Callable[..., ir.Model]

INPUTS, WIDTH, HEADS = 6, 8, 2
LINEAR = "IntLinear <bits = 8>"
ATTENTION = f"y = intaglio.IntAttention <num_heads = {HEADS}, scale = 0.0005> (q, k, v, my, sy, mask)"


def body(q: str = LINEAR, q_from: str = "x", after: str = "") -> str:
    inputs = {"q": q_from, "k": "x", "v": "x"}
    made = {"q": q, "k": LINEAR, "v": LINEAR}
    linear = (f"{n} = intaglio.{made[n]} ({inputs[n]}, w{n}, b{n}, m{n}, s{n})" for n in inputs)
    return f"{' '.join(linear)} {ATTENTION} {after}"


def graph(parse: Parse, text: str, outputs: str = "int8[batch, n, 8] y", missing: str = "", **changed: Any) -> ir.Model:
    random = np.random.default_rng(5)
    weights: dict[str, Any] = {"my": np.array([2**30], np.int32), "sy": np.array([38], np.int32)}
    for index, name in enumerate("qkv"):
        weights[f"w{name}"] = random.integers(-127, 128, (INPUTS, WIDTH)).astype(np.int8)
        weights[f"b{name}"] = random.integers(-9999, 9999, WIDTH).astype(np.int32)
        size = 1 if name == "k" else WIDTH  # one scale for all columns of the keys
        weights[f"m{name}"] = random.integers(2**29, 2**30, size).astype(np.int32)
        weights[f"s{name}"] = np.full(size, 37 + index, np.int32)
    given = f", int8[{INPUTS}, {WIDTH}] {missing}" if missing else ""
    used = {name: array for name, array in {**weights, **changed}.items() if name != missing}
    inputs = f"int8[batch, n, {INPUTS}] x, int8[batch, n, {INPUTS}] other, bool[batch, 1, 1, n] mask{given}"
    model = parse(f"({inputs}) => ({outputs}) {{ {text} }}", used, domains=', "intaglio": 1')
    for node in model.graph:
        value = node.outputs[0]  # ONNX shape inference does not support custom operators
        value.dtype, value.shape = ir.DataType.INT8, ir.Shape(["batch", "n", WIDTH])
    return model


def feeds(batch: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(6)
    x, other = (random.integers(-128, 128, (batch, length, INPUTS)).astype(np.int8) for _ in range(2))
    return {"x": x, "other": other, "mask": random.random((batch, 1, 1, length)) < 0.8}


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 9), (0, 4), (2, 70)])
def test_fused_layer_gives_the_same_integers(parse: Parse, batch: int, length: int) -> None:
    model = graph(parse, body())
    expected = run_integer(model, feeds(batch, length))
    _, counts = FuseProjections()(model)
    assert counts.rewritten == {"attention": 1} and not counts.reasons
    linear, attention = model.graph
    assert linear.outputs[0].shape == ir.Shape(["batch", "n", 3 * WIDTH])
    assert [value.shape for value in linear.inputs[1:]] == [(INPUTS, 3 * WIDTH), *[(3 * WIDTH,)] * 3]
    assert set(attention.inputs[:3]) == set(linear.outputs)
    assert {value.name for value in model.graph.initializers.values()} == {v.name for v in linear.inputs[1:]} | {
        "my",
        "sy",
    }
    got, want = run_integer(model, feeds(batch, length)), expected
    np.testing.assert_array_equal(got[0], want[0])
    assert want[0].size == 0 or np.ptp(want[0]) > 20


TWO_OUTPUTS = "int8[batch, n, 8] y, int8[batch, n, 8] z"
LEFT: dict[str, dict[str, Any]] = {
    "computed from different inputs": {"text": body(q_from="other")},
    "not all of its inputs are outputs of an IntLinear": {"text": body(q="Requantize <bits = 8>")},
    "its query, key and value have other users": {"text": body(after="z = Identity(k)"), "outputs": TWO_OUTPUTS},
    "are not linear": {"text": body(q='IntLinear <bits = 8, activation = "gelu", out_scale = 0.03>')},
    "are not constants": {"text": body(), "missing": "wq"},
    "weights of different shapes": {
        "text": body(),
        "wv": np.ones((INPUTS, 2 * WIDTH), np.int8),
        "bv": np.zeros(2 * WIDTH, np.int32),
        "mv": np.ones(1, np.int32),
        "sv": np.ones(1, np.int32),
    },
}


@pytest.mark.parametrize("reason", LEFT)
def test_unsupported_layers_are_skipped_with_a_reason(parse: Parse, reason: str) -> None:
    model = graph(parse, **LEFT[reason])
    before = [node.op_type for node in model.graph]
    _, counts = FuseProjections()(model)
    assert [node.op_type for node in model.graph] == before
    (given,) = counts.reasons
    assert reason in given and not counts.rewritten


def test_pass_is_idempotent(parse: Parse) -> None:
    model = graph(parse, body())
    FuseProjections()(model)
    _, counts = FuseProjections()(model)
    assert not counts.rewritten and not counts.reasons
