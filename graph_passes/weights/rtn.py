"""Rtn: weights of linear layers in uniform groups, each rounded to the nearest number of its group's grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from intaglio.effect import Effect
from intaglio.graph_passes.contract import Counts
from intaglio.graph_passes.weights.group_layers import check_groups, grouped_layers, round_to_nearest
from intaglio.graph_passes.weights.uniform import Floats, Grid, fit


@dataclass(frozen=True)
class Rtn:
    """x·Wᵀ becomes GroupMatMul, W in `bits` bits with a scale for each group of a row's weights.

    Groups are of `group_size` weights (0: a row), or of the next smaller multiple of 32 that divides the row.

    1. Asymmetric groups have a zero point too, and reach from their smallest to their largest weight; `symmetric`
       ones reach as far on both sides as the weight of the largest magnitude.
    2. Left: layers that a pattern of `skip` names, those whose rows are no multiple of 32, and heads tied to the
       embeddings unless `tied`.

    `activation_bits`: how many bits of x the CPU kernels keep. Raises `GraphError` for weights that are NaN or
    infinite, and for a pattern that names no layer.
    """

    name: ClassVar[str] = "rtn"
    bits: int = 4
    group_size: int = 128
    symmetric: bool = False
    activation_bits: Literal[16, 32] = 16
    skip: tuple[str, ...] = ()
    tied: bool = False

    @property
    def effect(self) -> Effect:
        """What rounding to so many bits does to the numbers."""
        return Effect.of_bits(self.bits)

    def __post_init__(self) -> None:
        check_groups(self.name, self.bits, self.group_size)

    def __call__(self, model: ir.Model) -> tuple[ir.Model, Counts]:
        """Rewrite `model`."""
        counts = Counts()
        layers = grouped_layers(model, counts, self.skip, self.group_size, self.tied, branches=True)
        round_to_nearest(model, layers, self._grid, self.activation_bits, counts, self.name)
        return model, counts

    def _grid(self, matrix: Floats) -> Grid:
        return fit(matrix, self.bits, self.group_size, self.symmetric)
