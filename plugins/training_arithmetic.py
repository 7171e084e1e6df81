"""The arithmetic for operators' `training.py`: integers that are exact forwards and have a gradient backwards.

`training.py` has the function `straight_through(arithmetic, inputs, attributes)`, which returns the operator's outputs
as torch tensors, as `body` in `spec.py` returns them as a graph; and, where constants of the operator can be trained,
`parameters(constants, attributes)`. An operator without that file cannot be trained. The arithmetic itself is in
`intaglio.training`, so nothing here imports torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from intaglio.plugins.integer_math import GeluConstants, LayerNormConstants

if TYPE_CHECKING:
    from torch import Tensor

Inputs: TypeAlias = "Sequence[Tensor | None]"  # one for each input of the operator, None for one left out
Outputs: TypeAlias = "list[Tensor]"
Attributes = Mapping[str, Any]  # complete

WEIGHT_LIMIT = 127.0  # int8 weights are symmetric
WIDE_LIMIT = 2.0**30  # of int32 biases: leaves room for the sum of 65536 products of int8


@dataclass(frozen=True)
class Parameter:
    """A constant input whose integers are trained, from -limit to limit.

    `unit`: the change with about the effect on the model of one unit of an int8 weight; learning rates count in it.
    `kind`: "weight", "bias" or "layer_norm", each with its own learning rate.
    """

    input: str
    limit: float
    unit: float
    kind: str


class Dual(NamedTuple):
    """A value twice: real, in units of the integers and with a gradient; and as the integers, int64 without one."""

    real: Tensor
    integers: Tensor


class TrainingArithmetic(ABC):
    """Each operation computes the integers as the operators' references do, and the real function they stand for."""

    @abstractmethod
    def dual(self, x: Tensor | None) -> Dual:
        """An input, which holds integers in any dtype."""

    @abstractmethod
    def result(self, value: Dual) -> Tensor:
        """An output: the integers forwards (float32, or float64 where `real` is), the gradient of `real` backwards."""

    @abstractmethod
    def requantize(
        self, value: Dual, multiplier: Tensor | int, shift: Tensor | int, bits: int, zero_point: int = 0
    ) -> Dual:
        """value·multiplier / 2^shift, rounded, plus the zero point, limited to `bits`."""

    @abstractmethod
    def weighted_sum(self, terms: Sequence[tuple[Dual, Tensor]], shift: Tensor, bits: int) -> Dual:
        """The sum of value·multiplier of all terms, over 2^shift, rounded once and limited to `bits`."""

    @abstractmethod
    def product(self, a: Tensor, b: Tensor) -> Dual:
        """a·b over the last two axes, for tensors that hold int8."""

    @abstractmethod
    def gelu(self, value: Dual, constants: GeluConstants) -> Dual:
        """GELU of 16-bit integers at the inner scale."""

    @abstractmethod
    def softmax(self, x: Dual, mask: Tensor | None, scale: float, out_scale: float) -> Dual:
        """Softmax of x·scale over the last axis where the mask is True, at out_scale in 8 bits; 0 elsewhere."""

    @abstractmethod
    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float
    ) -> Dual:
        """softmax((query·keyᵀ + bias)·scale)·value in 1/256 of a value's unit; int8 [batch, heads, length, depth]."""

    @abstractmethod
    def layer_norm(
        self, x: Dual, weight: Dual, bias: Dual, constants: LayerNormConstants, scale: float, epsilon: float
    ) -> Dual:
        """LayerNorm of x·scale at wide_scale in 16 bits; `weight.real` and `bias.real` are in units of wide_scale."""
