"""IntAttention with a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.plugins.int_attention.spec import PACKED
from intaglio.plugins.training_arithmetic import Attributes, Dual, Inputs, Outputs, TrainingArithmetic

if TYPE_CHECKING:
    from torch import Tensor


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> Outputs:
    """[context]."""
    query, key, value, multiplier, shift, mask, bias = inputs
    assert query is not None and key is not None and value is not None
    assert multiplier is not None and shift is not None
    parts = [query, key, value]
    if attributes["packed"]:
        parts = [x.chunk(PACKED, -1)[index] for index, x in enumerate(parts)]
    q, k, v = (_split(x, attributes["num_heads"]) for x in parts)
    average = arithmetic.attention(q, k, v, mask, bias, attributes["scale"])
    joined = Dual(_join(average.real), _join(average.integers))
    return [arithmetic.result(arithmetic.requantize(joined, multiplier, shift, 8))]


def _split(x: Tensor, heads: int) -> Tensor:
    """[batch, length, heads·depth] as [batch, heads, length, depth]."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(1, 2)


def _join(x: Tensor) -> Tensor:
    """[batch, heads, length, depth] as [batch, length, heads·depth]."""
    batch, heads, length, depth = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * depth)
