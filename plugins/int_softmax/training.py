"""IntSoftmax with a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.plugins.training_arithmetic import Attributes, Inputs, TrainingArithmetic

if TYPE_CHECKING:
    from torch import Tensor


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """[y]."""
    x, mask = inputs
    y = arithmetic.softmax(arithmetic.dual(x), mask, attributes["scale"], attributes["out_scale"])
    return [arithmetic.result(y)]
