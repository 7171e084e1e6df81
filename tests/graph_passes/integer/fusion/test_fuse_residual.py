"""A residual sum is fused into the following normalisation with identical integers, or stays with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from observed import run_integer

from intaglio.graph_passes.integer.fusion.fuse_residual import FuseResidual

Parse = Callable[..., ir.Model]

WIDTH = 8
ATTRIBUTES = "scale = 0.001, weight_scale = 0.0001, bias_scale = 0.00001, out_scale = 0.03"
SUM = "s = intaglio.IntAdd <bits = 16> (x, r, mx, mr, shift)"
NORM = f"y, wide = intaglio.IntLayerNorm <{ATTRIBUTES}> (s, w, b)"
NORM_WITH_FACTORS = f"y, wide = intaglio.IntLayerNorm <{ATTRIBUTES}> (s, w, b, m, ms)"


def graph(parse: Parse, x: str = "int32[n, 8]", r: str = "int32[n, 8]", body: str = f"{SUM} {NORM}", **changed: Any):
    random = np.random.default_rng(3)
    weights = {
        "mx": [2**29 + 12345],
        "mr": [2**27 + 777],
        "shift": [29],
        "w": random.integers(-(2**15), 2**15, WIDTH),
        "b": random.integers(-(2**20), 2**20, WIDTH),
        "m": random.integers(2**14, 2**15, WIDTH),
        "ms": np.full(WIDTH, 22),
        **changed,
    }
    outputs = "int8[n, 8] y, int32[n, 8] wide" + (", int32[n, 8] s" if "other = " in body else "")
    used = {name: np.asarray(array, np.int32) for name, array in weights.items()}
    text = f"({x} x, {r} r) => ({outputs}) {{ {body} }}"
    model = parse(text, used, domains=', "intaglio": 1')
    assert model.graph.outputs[0].name == "y"
    return model


def feeds(model: ir.Model) -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    made = {}
    for value in model.graph.inputs:
        limit = 128 if value.dtype == ir.DataType.INT8 else 30000
        lengths = [length if isinstance(length, int) else 5 for length in value.shape]
        made[value.name] = random.integers(-limit, limit, lengths).astype(value.dtype.numpy())
    return made


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("norm", [NORM, NORM_WITH_FACTORS])
@pytest.mark.parametrize(("x", "r"), [("int32", "int32"), ("int32", "int8"), ("int8", "int32")])
def test_fused_normalisation_gives_the_same_integers(parse: Parse, x: str, r: str, norm: str) -> None:
    model = graph(parse, f"{x}[n, 8]", f"{r}[n, 8]", f"{SUM} {norm}")
    given = feeds(model)
    expected = run_integer(model, given)
    _, counts = FuseResidual()(model)
    assert counts.rewritten == {"residual": 1} and not counts.reasons
    assert operators(model) == ["IntLayerNorm"]
    assert model.graph[0].inputs[0].dtype == ir.DataType.INT32
    for got, want in zip(run_integer(model, given), expected, strict=True):
        np.testing.assert_array_equal(got, want)


LEFT = {
    "its factors are per channel": {"mr": np.full(WIDTH, 2**27)},
    "its terms have shapes ('n', 8) and (8,), expected one shape": {"r": "int32[8]"},
    "its terms have shapes ('n', 8) and ('k', 8), expected one shape": {"r": "int32[k, 8]"},
    "both of its terms are int8": {"x": "int8[n, 8]", "r": "int8[n, 8]"},
    "it has other users than an IntLayerNorm": {"body": f"{SUM} {NORM} other = Identity(s)"},
}


@pytest.mark.parametrize("reason", LEFT)
def test_unsupported_additions_are_not_fused(parse: Parse, reason: str) -> None:
    model = graph(parse, **LEFT[reason])
    before = operators(model)
    _, counts = FuseResidual()(model)
    assert counts.reasons == [f"s: {reason}"] and not counts.rewritten
    assert operators(model) == before


def test_second_residual_is_not_fused(parse: Parse) -> None:
    second = f"t = intaglio.IntAdd <bits = 16> (x, r, mx, mr, shift) {SUM.replace('(x,', '(t,')} {NORM}"
    model = graph(parse, body=second)
    first = model.graph[0].outputs[0]
    first.dtype, first.shape = ir.DataType.INT32, ir.Shape(["n", WIDTH])
    given = feeds(model)
    expected = run_integer(model, given)
    FuseResidual()(model)
    _, counts = FuseResidual()(model)
    assert counts.reasons == ["t: its IntLayerNorm has a residual already"]
    assert operators(model) == ["IntAdd", "IntLayerNorm"]
    for got, want in zip(run_integer(model, given), expected, strict=True):
        np.testing.assert_array_equal(got, want)
