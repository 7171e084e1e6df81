"""Rtn: quantise weights in uniform groups, each rounded to the nearest point of its group's grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.weights.group_layers import grouped_layers, round_to_nearest
from intaglio.graph_passes.weights.options import GroupPass


@dataclass(frozen=True)
class Rtn(GroupPass):
    """x·Wᵀ becomes GroupMatMul, W in `bits` bits with a scale for each group of a row's weights.

    Left: layers that match a pattern of `skip`, those whose rows are not a multiple of 32, and heads tied to the
    embeddings unless `tied`. Raises `GraphError` for weights that are NaN or infinite, and for a pattern that names no
    layer.
    """

    name: ClassVar[str] = "rtn"

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        layers = grouped_layers(model, counts, self.skip, self.group_size, self.tied, branches=True)
        round_to_nearest(model, layers, self.grid, self.activation_bits, counts, self.name)
