"""IntRotary with a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.plugins import integer_math
from intaglio.plugins.training_arithmetic import Attributes, Dual, Inputs, Outputs, TrainingArithmetic

if TYPE_CHECKING:
    from torch import Tensor


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> Outputs:
    """[y]."""
    x, cosine, sine, multiplier, shift = inputs
    assert cosine is not None and sine is not None and multiplier is not None and shift is not None
    real, integers = arithmetic.dual(x)
    heads = attributes["num_heads"]
    turned = Dual(
        _turned(real.clamp(*integer_math.INT16), cosine.to(real), sine.to(real), heads),
        _turned(integers.clamp(*integer_math.INT16), cosine.long(), sine.long(), heads),
    )
    return [arithmetic.result(arithmetic.requantize(turned, multiplier, shift, 8))]


def _turned(x: Tensor, cosine: Tensor, sine: Tensor, heads: int) -> Tensor:
    """Both halves of each head, turned: [batch, length, heads·depth]."""
    halves = x.reshape(*x.shape[:-1], heads, 2, cosine.shape[-1])
    c, s = (table.clamp(*integer_math.UNIT)[:, None, None] for table in (cosine, sine))
    signed = halves.flip(-2) * s
    turned: Tensor = (halves * c).add(signed * signed.new_tensor([[-1], [1]])).reshape(x.shape)
    return turned
