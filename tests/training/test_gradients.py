"""Gradients match the integers: a step along them changes the outputs by the predicted amount."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from intaglio.plugins import OPS
from intaglio.plugins.integer_math import dyadic, gelu_inner_scale
from intaglio.training.integer.operators import OPERATORS

RANDOM = np.random.default_rng(0)


def normal(deviation: float, *shape: int) -> Any:
    return np.rint(RANDOM.normal(0, deviation, shape))


def factor(real: float) -> tuple[Any, Any]:
    multiplier, shift = dyadic(real)
    return np.array([multiplier]), np.array([shift])


def multipliers(*real: float) -> tuple[Any, ...]:
    return (*(np.array([round(each * 2**20)]) for each in real), np.array([20]))


INT8_LINEAR = (normal(40, 64, 96), normal(40, 96, 48), normal(2000, 48))
NORM = {"scale": 0.01, "weight_scale": 2.0**-14, "bias_scale": 2.0**-16, "out_scale": 0.03, "epsilon": 1e-12}
# Name, inputs, attributes, and the longest step for each input with a gradient.
CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], dict[int, float]]] = {
    "requantize": ("Requantize", (normal(2000, 64, 48), *factor(0.02)), {"bits": 8}, {0: 500}),
    "add": (
        "IntAdd",
        (normal(2000, 8, 16, 48), normal(3000, 16, 48), *multipliers(0.5, 0.25)),
        {"bits": 16},
        {0: 500, 1: 500},
    ),
    "gelu": ("IntGelu", (normal(1500, 64, 96),), {"scale": 1e-3, "out_scale": 0.03}, {0: 150}),
    "softmax": ("IntSoftmax", (normal(1000, 512, 12), None), {"scale": 1e-3, "out_scale": 1 / 127}, {0: 300}),
    "layer norm": (
        "IntLayerNorm",
        (normal(400, 64, 48), normal(2000, 48) + 2**14, normal(9000, 48)),
        NORM,
        {0: 60, 1: 2000, 2: 5000},
    ),
    "linear": ("IntLinear", (*INT8_LINEAR, *factor(2.0**-10)), {"bits": 8}, {0: 12, 1: 12, 2: 9000}),
    "linear, 32 bits": ("IntLinear", INT8_LINEAR, {"bits": 32}, {0: 12, 1: 12, 2: 9000}),
    "linear with gelu": (
        "IntLinear",
        (*INT8_LINEAR, *factor(1e-4 / gelu_inner_scale(0.03))),
        {"bits": 8, "activation": "gelu", "out_scale": 0.03},
        {0: 12, 1: 12, 2: 3000},
    ),
    "matmul": (
        "IntMatMul",
        (normal(40, 4, 32, 64), normal(40, 4, 64, 48), *factor(2.0**-10)),
        {"bits": 8},
        {0: 12, 1: 12},
    ),
    "rotary": (
        "IntRotary",
        (normal(2000, 4, 12, 64), *(normal(9000, 12, 16) for _ in range(2)), *factor(2.0**-19)),
        {"num_heads": 2},
        {0: 500},
    ),
    "attention": (
        "IntAttention",
        (*(normal(40, 16, 12, 64) for _ in range(3)), *factor(2.0**-8), np.arange(12).reshape(1, 1, 1, 12) < 9),
        {"num_heads": 2, "scale": 1e-4},
        {0: 20, 1: 20, 2: 20},
    ),
}


def apply(operator: str, inputs: list[torch.Tensor | None], attributes: dict[str, Any]) -> torch.Tensor:
    return OPERATORS[operator](OPS[operator].padded(inputs), OPS[operator].complete(attributes))[0]


@pytest.mark.parametrize("case", CASES)
def test_gradients_predict_the_change_of_the_loss(case: str) -> None:
    operator, arrays, attributes, steps = CASES[case]
    inputs = [None if array is None else torch.from_numpy(array) for array in arrays]
    for index in steps:
        inputs[index] = inputs[index].double().requires_grad_()  # type: ignore[union-attr]
    y = apply(operator, inputs, attributes)
    probe = torch.from_numpy(np.random.default_rng(1).normal(0, 1, y.shape))
    (y * probe).sum().backward()  # type: ignore[no-untyped-call]
    for index, longest in steps.items():
        leaf = inputs[index]
        assert leaf is not None and leaf.grad is not None
        move = (leaf.grad * (longest / leaf.grad.abs().max())).round()
        ends = []
        for sign in (1, -1):
            moved = [*inputs]
            moved[index] = leaf.detach() + sign * move
            ends.append((apply(operator, moved, attributes) * probe).sum())
        actual, predicted = (ends[0] - ends[1]).item() / 2, (leaf.grad * move).sum().item()
        assert actual == pytest.approx(predicted, rel=0.1), f"input {index}"


def test_saturated_outputs_have_no_gradient() -> None:
    x = torch.tensor([[5000.0, 100.0, -5000.0]], requires_grad=True)
    multiplier, shift = map(torch.from_numpy, factor(0.1))
    y = apply("Requantize", [x, multiplier, shift], {"bits": 8})
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert y.tolist() == [[127, 10, -128]]
    assert x.grad is not None and x.grad.tolist() == [[0, pytest.approx(0.1), 0]]


def test_constant_rows_and_empty_rows_have_finite_gradients() -> None:
    x = torch.full((2, 8), 7.0, requires_grad=True)
    ones = torch.full((8,), 2.0**14, dtype=torch.float64)
    apply("IntLayerNorm", [x, ones, ones], NORM).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and x.grad.isfinite().all()
    q = torch.full((1, 3, 8), 7.0, requires_grad=True)
    hidden = torch.zeros(1, 1, 1, 3, dtype=torch.bool)
    factors = list(map(torch.from_numpy, factor(0.1)))
    apply("IntAttention", [q, q, q, *factors, hidden], {"num_heads": 2, "scale": 0.1}).sum().backward()  # type: ignore[no-untyped-call]
    assert q.grad is not None and q.grad.tolist() == torch.zeros(1, 3, 8).tolist()
