"""The integer operators as torch functions with straight-through gradients.

Each computes two things side by side from the same inputs: the exact integers, in int64 and without gradient, as the
operator's reference does; and the real-valued function that these stand for, in units of the output and limited to its
range, with torch's gradient. What comes out holds the integers, and what goes back is the gradient of the real function
(Bengio et al., "Estimating or propagating gradients through stochastic neurons", 2013), 0 where the output is cut off.

Integers that carry a gradient travel as floating point: those of 8 and 16 bits as float32, those of 32 bits as float64,
which hold them exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from intaglio.plugins import integer_math
from intaglio.plugins.int_attention.spec import PACKED
from intaglio.plugins.int_linear.spec import gelu_constants
from intaglio.plugins.requantize.spec import LIMITS
from intaglio.training import integer_functions as exact

Inputs = Sequence[Tensor | None]
Attributes = Mapping[str, Any]


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


def straight_through(real: Tensor, integers: Tensor) -> Tensor:
    """A tensor that holds `integers` (int64, of at most 24 bits in float32) and has the gradient of `real`."""
    made: Tensor = StraightThrough.apply(real, integers)  # type: ignore[no-untyped-call]
    return made


def _int64(x: Tensor | None) -> Tensor:
    assert x is not None
    return x.detach().long()


def _real(x: Tensor | None) -> Tensor:
    """Near enough for gradients."""
    assert x is not None
    return x.float()


def _ratio(multiplier: Tensor | int, shift: Tensor | int) -> Tensor:
    """The real number that a multiplier and a shift stand for."""
    return (torch.as_tensor(multiplier).double() * torch.exp2(-torch.as_tensor(shift).double())).float()


def _requantize(real: Tensor, integers: Tensor, multiplier: Any, shift: Any, bits: int) -> tuple[Tensor, Tensor]:
    bounds = LIMITS[bits]
    cut = (real * _ratio(multiplier, shift)).clamp(*bounds)
    return cut, exact.requantize(integers, _factor(multiplier), _factor(shift), bounds)


def _factor(value: Tensor | int) -> Tensor | int:
    return value.long() if isinstance(value, Tensor) else value


def _gelu(real: Tensor, integers: Tensor, constants: integer_math.GeluConstants) -> tuple[Tensor, Tensor]:
    """GELU at the inner scale, on 16 bits."""
    scale = constants.inner_scale
    return functional.gelu(real * scale) / scale, exact.gelu(integers, constants)


def _finish(real: Tensor, integers: Tensor, factors: Inputs, attributes: Attributes) -> Tensor:
    """The epilogue of a matrix product; `factors` are multiplier, shift, out_multiplier, out_shift."""
    bits, activation = attributes["bits"], attributes.get("activation")
    if bits == 32:
        return straight_through(real.double(), integers)
    multiplier, shift, out_multiplier, out_shift = factors
    real, integers = _requantize(real, integers, multiplier, shift, 16 if activation else bits)
    if activation:
        constants = gelu_constants(attributes)
        real, integers = _gelu(real, integers, constants)
        first = constants.out_multiplier if out_multiplier is None else out_multiplier
        second = constants.out_shift if out_shift is None else out_shift
        real, integers = _requantize(real, integers, first, second, bits)
    return straight_through(real, integers)


def requantize(inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """Requantize."""
    x, multiplier, shift = inputs
    return [straight_through(*_requantize(_real(x), _int64(x), multiplier, shift, attributes["bits"]))]


def int_add(inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """IntAdd."""
    x, y, x_multiplier, y_multiplier, shift = inputs
    assert x_multiplier is not None and y_multiplier is not None and shift is not None
    bounds = LIMITS[attributes["bits"]]
    real = _real(x) * _ratio(x_multiplier, shift) + _real(y) * _ratio(y_multiplier, shift)
    total = _int64(x) * x_multiplier.long() + _int64(y) * y_multiplier.long()
    return [straight_through(real.clamp(*bounds), exact.round_shift_(total, shift.long()).clamp_(*bounds))]


def int_gelu(inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """IntGelu."""
    x, multiplier, shift = inputs
    constants = integer_math.gelu_constants(attributes["scale"], attributes["out_scale"])
    inner = _requantize(_real(x), _int64(x), constants.multiplier, constants.shift, 16)
    first = constants.out_multiplier if multiplier is None else multiplier
    second = constants.out_shift if shift is None else shift
    return [straight_through(*_requantize(*_gelu(*inner, constants), first, second, 8))]


def int_softmax(inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """IntSoftmax."""
    x, mask = inputs
    weights = _softmax(_real(x) * attributes["scale"], mask)
    p = exact.masked_exp(_int64(x), mask, integer_math.exp_constants(attributes["scale"]))
    integers = exact.softmax_rescale(p, attributes["out_scale"])
    return [straight_through((weights / attributes["out_scale"]).clamp(*integer_math.INT8), integers)]


def int_layer_norm(inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """IntLayerNorm: [y, wide]."""
    x, weight, bias, multiplier, shift, *residual = inputs
    if residual and residual[0] is not None:
        (x,) = int_add([x, *residual], {"bits": 16})
    assert x is not None
    constants = integer_math.layer_norm_constants(x.shape[-1], **attributes)
    wide_scale = attributes["wide_scale"] or attributes["out_scale"] / 256
    real_weight = _real(weight) * (attributes["weight_scale"] / wide_scale)
    real_bias = _real(bias) * (attributes["bias_scale"] / wide_scale)
    # In a constant row the gradient would be infinite: there is at least the variance that rounding to integers has.
    epsilon = max(attributes["epsilon"], attributes["scale"] ** 2 / 12)
    real = functional.layer_norm(_real(x) * attributes["scale"], x.shape[-1:], real_weight, real_bias, epsilon)
    real = real.clamp(*integer_math.INT16)
    wide = _int64(x)
    if wide.numel():
        wide = exact.layer_norm(wide, _int64(weight), _int64(bias), constants)
    first = constants.out_multiplier if multiplier is None else multiplier
    second = constants.out_shift if shift is None else shift
    return [straight_through(*_requantize(real, wide, first, second, 8)), straight_through(real, wide)]


def int_linear(inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """IntLinear."""
    x, weight, bias = inputs[:3]
    product = exact.product(_real(x), _real(weight))
    accumulator = _int64(product) + _int64(bias)
    return [_finish(_real(product) + _real(bias), accumulator, inputs[3:], attributes)]


def int_matmul(inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """IntMatMul."""
    product = exact.product(_real(inputs[0]), _real(inputs[1]))
    return [_finish(_real(product), _int64(product), [*inputs[2:], None, None], attributes)]


def int_attention(inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """IntAttention."""
    parts = [_real(x) for x in inputs[:3]]
    if attributes["packed"]:
        parts = [x.chunk(PACKED, -1)[index] for index, x in enumerate(parts)]
    query, key, value = (_split(x, attributes["num_heads"]) for x in parts)
    multiplier, shift, mask = inputs[3:]
    scores = exact.product(query, key.transpose(-1, -2))
    unit = 2.0**integer_math.AVERAGE_FRACTION
    real = _softmax(_real(scores) * attributes["scale"], mask) @ (value * unit)
    p = exact.masked_exp(_int64(scores), mask, integer_math.exp_constants(attributes["scale"]))
    sums = (p.double() @ value.detach().double()).long()  # exact: 65535 keys give less than 2^38
    average = exact.weighted_average(sums, p.sum(-1, keepdim=True))
    return [straight_through(*_requantize(_join(real), _join(average), multiplier, shift, 8))]


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over what the mask keeps; 0 elsewhere, and in rows without any."""
    if mask is None:
        return torch.softmax(scores, -1)
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), -1).masked_fill(~mask, 0)


def _split(x: Tensor, heads: int) -> Tensor:
    """[batch, length, heads·depth] as [batch, heads, length, depth]."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(1, 2)


def _join(x: Tensor) -> Tensor:
    """[batch, heads, length, depth] as [batch, length, heads·depth]."""
    batch, heads, length, depth = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * depth)


OPERATORS: dict[str, Callable[[Inputs, Attributes], list[Tensor]]] = {
    "Requantize": requantize,
    "IntAdd": int_add,
    "IntGelu": int_gelu,
    "IntSoftmax": int_softmax,
    "IntLayerNorm": int_layer_norm,
    "IntLinear": int_linear,
    "IntMatMul": int_matmul,
    "IntAttention": int_attention,
}
