"""Biases are corrected to the mean of the float layer, each on the outputs of the corrected layers before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from observed import run_integer

from intaglio.graph_passes.contract import PassInputs
from intaglio.graph_passes.integer.correct_biases import KEY, LIMIT, CorrectBiases, FloatMeans

Parse = Callable[..., ir.Model]

WIDTH = 8
FIRST = "h = intaglio.IntLinear <bits = 8> (x, w1, b1, m, s)"
SECOND = "y = intaglio.IntLinear <bits = 32> (h, w2, b2)"


class Batches:
    """Calibration data: two batches of different lengths, the second one with padding that must be ignored."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        self.batches = [
            {
                "x": random.integers(-90, 128, (2, length, WIDTH)).astype(np.int8),
                "attention_mask": (np.arange(length) < np.array([[length], [real]])).astype(np.int64),
            }
            for length, real in ((5, 5), (9, 4))
        ]

    def load(self, samples: int, batch: int) -> tuple[list[dict[str, np.ndarray]], None]:
        return self.batches, None


def graph(parse: Parse, text: str) -> ir.Model:
    random = np.random.default_rng(2)
    weights: dict[str, Any] = {"m": np.array([2**30], np.int32), "s": np.array([39], np.int32)}
    for number in (1, 2):
        weights[f"w{number}"] = random.integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8)
        weights[f"b{number}"] = np.zeros(WIDTH, np.int32)
    inputs = f"int8[batch, n, {WIDTH}] x, int64[batch, n] attention_mask"
    outputs = f"int8[batch, n, {WIDTH}] h, int32[batch, n, {WIDTH}] y"
    model = parse(f"({inputs}) => ({outputs}) {{ {text} }}", weights, domains=', "intaglio": 1')
    for node in model.graph:
        node.outputs[0].shape = ir.Shape(
            ["batch", "n", WIDTH]
        )  # ONNX shape inference does not support custom operators
        unit = random.uniform(1e-4, 2e-4, WIDTH)
        node.meta[KEY] = FloatMeans(random.normal(0, 2, WIDTH), unit)
    return model


def real_rows(values: list[np.ndarray], data: Batches) -> np.ndarray:
    masks = [batch["attention_mask"] != 0 for batch in data.batches]
    return np.concatenate([value[mask] for value, mask in zip(values, masks, strict=True)]).astype(np.float64)


def test_output_means_equal_the_float_layers(parse: Parse) -> None:
    model, data = graph(parse, f"{FIRST} {SECOND}"), Batches()
    inputs = PassInputs(calibration_data=data)
    _, counts = CorrectBiases()(model, inputs)
    assert counts.rewritten == {"linear": 2} and not counts.reasons
    ran = [run_integer(model, batch) for batch in data.batches]
    arrays = {name: value.const_value.numpy() for name, value in model.graph.initializers.items() if value.const_value}
    first, second = model.graph
    x, h, y = (
        real_rows(each, data) for each in ([b["x"] for b in data.batches], [r[0] for r in ran], [r[1] for r in ran])
    )
    for node, mean in ((first, (x @ arrays["w1"] + arrays["b1"]).mean(axis=0)), (second, y.mean(axis=0))):
        known = node.meta[KEY]
        np.testing.assert_allclose(mean, known.mean / known.unit, rtol=0, atol=0.5 + 1e-6)
    assert np.ptp(h) > 50 and np.abs(arrays["b1"]).min() > 100  # the inputs of the second layer were different before


def test_corrected_bias_is_clamped_to_its_limit(parse: Parse) -> None:
    model = graph(parse, f"{FIRST} {SECOND}")
    first = model.graph.node(0)
    first.meta[KEY] = FloatMeans(np.full(WIDTH, -1e12), np.ones(WIDTH))
    CorrectBiases()(model, PassInputs(calibration_data=Batches()))
    assert (model.graph.initializers["b1"].const_value.numpy() == -LIMIT).all()


@pytest.mark.parametrize(
    ("text", "unknown", "reason"),
    [
        (f"{FIRST} {SECOND}", True, "its floating-point means are not known"),
        (f"{FIRST} {SECOND.replace('b2', 'b1')}", False, "its bias is shared, or not a constant"),
    ],
)
def test_skipped_layers_are_named(parse: Parse, text: str, unknown: bool, reason: str) -> None:
    model = graph(parse, text)
    for node in model.graph:
        if unknown:
            del node.meta[KEY]
    before = model.graph.initializers["b1"].const_value
    _, counts = CorrectBiases()(model, PassInputs(calibration_data=Batches()))
    assert not counts.rewritten and any(reason in each for each in counts.reasons)
    assert model.graph.initializers["b1"].const_value is before
