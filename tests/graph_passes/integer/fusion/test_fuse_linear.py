"""Gates and residual sums become part of their linear layer with identical integers, or stay with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from observed import run_integer

from intaglio.graph_passes.integer.fusion.fuse_linear import FuseLinear

Parse = Callable[..., ir.Model]

INPUTS, WIDTH = 6, 8
STREAM = f"int32[batch, n, {WIDTH}] stream"
GATE = "g = intaglio.IntLinear <bits = 16> (x, wg, b, m, s)"
ACTIVATED = 'a = intaglio.IntLinear <bits = 8, activation = "gelu", out_scale = 0.03> (x, wa, b, m, s, mo, so)'
GATED = "c = Cast <to = 6> (a) p = Mul (c, g) y = intaglio.Requantize <bits = 8> (p, mg, sg)"
LINEAR = "v = intaglio.IntLinear <bits = 16> (x, wa, b, m, s)"


def graph(parse: Parse, text: str, outputs: str = f"int8[batch, n, {WIDTH}] y") -> ir.Model:
    random = np.random.default_rng(5)
    values: dict[str, Any] = {
        "wa": random.integers(-127, 128, (INPUTS, WIDTH)).astype(np.int8),
        "wg": random.integers(-127, 128, (INPUTS, WIDTH)).astype(np.int8),
        "b": random.integers(-9999, 9999, WIDTH).astype(np.int32),
        "units": (2 ** random.integers(0, 9, WIDTH)).astype(np.int32),
        "one": np.array([1], np.int32),
    }
    for name, shift in (("", 32), ("o", 34), ("g", 40)):
        values |= {f"m{name}": np.full(WIDTH, 2**29, np.int32), f"s{name}": np.full(WIDTH, shift, np.int32)}
    inputs = f"int8[batch, n, {INPUTS}] x, {STREAM}, int32[1, 1, {WIDTH}] row"
    model = parse(f"({inputs}) => ({outputs}) {{ {text} }}", values, domains=', "intaglio": 1')
    dtypes = {"y": ir.DataType.INT8, "a": ir.DataType.INT8}
    for node in model.graph:
        value = node.outputs[0]  # ONNX shape inference does not support custom operators
        if value.name not in ("z", "sum"):
            value.dtype = dtypes.get(str(value.name), ir.DataType.INT32)
            value.shape = ir.Shape(["batch", "n", WIDTH])
    return model


def feeds(batch: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(6)
    return {
        "x": random.integers(-128, 128, (batch, length, INPUTS)).astype(np.int8),
        "stream": random.integers(-(2**31), 2**31, (batch, length, WIDTH)).astype(np.int32),
        "row": random.integers(-9, 9, (1, 1, WIDTH)).astype(np.int32),
    }


SUM = f"int32[batch, n, {WIDTH}] y"
FUSED: dict[str, tuple[str, str, str]] = {
    "gate": (f"{GATE} {ACTIVATED} {GATED}", f"int8[batch, n, {WIDTH}] y", "gate"),
    "gate that comes later": (f"{ACTIVATED} {GATE} {GATED}", f"int8[batch, n, {WIDTH}] y", "gate"),
    "gate first": (
        f"{GATE} {ACTIVATED} {GATED.replace('(c, g)', '(g, c)')}",
        f"int8[batch, n, {WIDTH}] y",
        "gate",
    ),
    "residual": (f"{LINEAR} u = Mul (v, units) y = Add (stream, u)", SUM, "residual"),
    "residual of one unit": (f"{LINEAR} y = Add (v, stream)", SUM, "residual"),
}


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 9), (0, 4), (2, 70)])
@pytest.mark.parametrize("name", FUSED)
def test_fused_layer_gives_the_same_integers(parse: Parse, name: str, batch: int, length: int) -> None:
    text, outputs, kind = FUSED[name]
    model = graph(parse, text, outputs)
    if kind == "residual":
        model.graph.outputs[0].dtype = ir.DataType.INT32
    (expected,) = run_integer(model, feeds(batch, length))
    _, counts = FuseLinear()(model)
    assert counts.rewritten == {kind: 1} and not counts.reasons
    assert {node.op_type for node in model.graph} == {"IntLinear"}
    (got,) = run_integer(model, feeds(batch, length))
    np.testing.assert_array_equal(got, expected)
    assert expected.size == 0 or np.ptp(expected.astype(np.int64)) > 20


TWO = f"int8[batch, n, {WIDTH}] y, int8[batch, n, {WIDTH}] z"
LEFT: dict[str, tuple[str, str]] = {
    "what is gated has other users": (f"{GATE} {ACTIVATED} {GATED} z = Identity (a)", TWO),
    "its gate is not a linear layer's of 16 bits": (
        f"{ACTIVATED} {GATED.replace('(c, g)', '(c, stream)')}",
        f"int8[batch, n, {WIDTH}] y",
    ),
    "a term has other users": (f"{LINEAR} y = Add (v, stream) z = Identity (v)", TWO.replace("int8", "int32")),
    "its terms have different shapes": (f"{LINEAR} y = Add (v, row)", SUM),
}


@pytest.mark.parametrize("reason", LEFT)
def test_other_layers_stay_with_a_reason(parse: Parse, reason: str) -> None:
    text, outputs = LEFT[reason]
    model = graph(parse, text, outputs)
    model.graph.outputs[0].dtype = ir.DataType.INT32 if "int32" in outputs else ir.DataType.INT8
    before = len(model.graph)
    _, counts = FuseLinear()(model)
    assert not counts.rewritten and len(model.graph) == before
    assert len(counts.reasons) == 1 and reason in counts.reasons[0]
