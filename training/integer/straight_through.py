"""The arithmetic of the integer operators as torch functions with straight-through gradients.

Each computes two values from the same inputs: the exact integers, in int64 and without gradient, as the operator's
reference does; and the corresponding real-valued function, in units of the output and limited to its range, with
torch's gradient. The output has the value of the integers and the gradient of the real function (Bengio et al.,
"Estimating or propagating gradients through stochastic neurons", 2013), which is 0 where the output is clipped.

Integers with a gradient are stored as floating point: 8 and 16 bits as float32, 32 bits as float64, which is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from intaglio.plugins import integer_math
from intaglio.plugins.int_attention.spec import BIASES
from intaglio.plugins.requantize.spec import LIMITS
from intaglio.plugins.training_arithmetic import Dual, TrainingArithmetic
from intaglio.training.integer import functions as exact


class StraightThrough(torch.autograd.Function):
    """`integers` forwards, in the dtype of `real`; the gradient of `real` backwards."""

    @staticmethod
    def forward(context: Any, real: Tensor, integers: Tensor) -> Tensor:
        """`integers` as floating point."""
        return integers.to(real.dtype)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """All of the gradient to `real`."""
        return gradients[0], None


class StraightThroughArithmetic(TrainingArithmetic):
    """The operations on tensors of the CPU or a GPU; the real halves are near enough for gradients, in float32."""

    def dual(self, x: Tensor | None) -> Dual:
        """`x` in float32, and its integers."""
        assert x is not None
        return Dual(x.float(), x.detach().long())

    def result(self, value: Dual) -> Tensor:
        """The integers in the dtype of `value.real`: at most 24 bits in float32."""
        made: Tensor = StraightThrough.apply(*value)  # type: ignore[no-untyped-call]
        return made

    def requantize(
        self, value: Dual, multiplier: Tensor | int, shift: Tensor | int, bits: int, zero_point: int = 0
    ) -> Dual:
        """See the base class; the gradient is 0 where the value is clipped."""
        low, high = LIMITS[bits]
        bounds = low - zero_point, high - zero_point
        cut = (value.real * _ratio(multiplier, shift)).clamp(*bounds)
        whole = exact.requantize(value.integers, _factor(multiplier), _factor(shift), bounds)
        return Dual(cut + zero_point, whole + zero_point)

    def weighted_sum(self, terms: Sequence[tuple[Dual, Tensor]], shift: Tensor, bits: int) -> Dual:
        """Exact in 64 bits for two terms of IntAdd."""
        bounds = LIMITS[bits]
        real = sum((each.real * _ratio(factor, shift) for each, factor in terms), start=torch.zeros(()))
        total = sum((each.integers * factor.long() for each, factor in terms), start=torch.zeros((), dtype=torch.long))
        return Dual(real.clamp(*bounds), exact.round_shift_(total, shift.long()).clamp_(*bounds))

    def product(self, a: Tensor, b: Tensor) -> Dual:
        """float32 where that is exact, else float64."""
        product = exact.product(a.float(), b.float())
        return Dual(product.float(), product.detach().long())

    def gelu(self, value: Dual, constants: integer_math.GeluConstants) -> Dual:
        """GELU at the inner scale, on 16 bits."""
        scale = constants.inner_scale
        return Dual(functional.gelu(value.real * scale) / scale, exact.gelu(value.integers, constants))

    def softmax(self, x: Dual, mask: Tensor | None, scale: float, out_scale: float) -> Dual:
        """At `out_scale`, in 8 bits."""
        real = (_softmax(x.real * scale, mask) / out_scale).clamp(*integer_math.INT8)
        p = exact.masked_exp(x.integers, mask, integer_math.exp_constants(scale))
        return Dual(real, exact.softmax_rescale(p, out_scale))

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float
    ) -> Dual:
        """The sums of weights and values are exact: 65535 keys give less than 2^38."""
        scores = self.product(query, key.transpose(-1, -2))
        if bias is not None:
            added = bias.long().clamp(*BIASES)
            scores = Dual(scores.real + added, scores.integers + added)
        unit = 2.0**integer_math.AVERAGE_FRACTION
        real = _softmax(scores.real * scale, mask) @ (value.float() * unit)
        p = exact.masked_exp(scores.integers, mask, integer_math.exp_constants(scale))
        sums = (p.double() @ value.detach().double()).long()
        return Dual(real, exact.weighted_average(sums, p.sum(-1, keepdim=True)))

    def layer_norm(
        self,
        x: Dual,
        weight: Dual,
        bias: Dual,
        constants: integer_math.LayerNormConstants,
        scale: float,
        epsilon: float,
    ) -> Dual:
        """On 16 bits."""
        real = functional.layer_norm(x.real * scale, x.real.shape[-1:], weight.real, bias.real, epsilon)
        wide = x.integers
        if wide.numel():
            wide = exact.layer_norm(wide, weight.integers, bias.integers, constants)
        return Dual(real.clamp(*integer_math.INT16), wide)


def _ratio(multiplier: Tensor | int, shift: Tensor | int) -> Tensor:
    """The real number multiplier / 2^shift."""
    return (torch.as_tensor(multiplier).double() * torch.exp2(-torch.as_tensor(shift).double())).float()


def _factor(value: Tensor | int) -> Tensor | int:
    return value.long() if isinstance(value, Tensor) else value


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over unmasked entries; 0 elsewhere, and in rows without any."""
    if mask is None:
        return torch.softmax(scores, -1)
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), -1).masked_fill(~mask, 0)
