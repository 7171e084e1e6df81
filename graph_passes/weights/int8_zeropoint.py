"""Int8ZeroPoint: quantise weights to 8 bits over the range from minimum to maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from intaglio.graph_passes.weights.options import Int8Pass
from intaglio.graph_passes.weights.uniform import Floats, Grid, asymmetric


@dataclass(frozen=True)
class Int8ZeroPoint(Int8Pass):
    """x·Wᵀ becomes GroupMatMul of 8 bits: W = scale·(q - zero_point) with scale = (max W - min W) / 255.

    The range includes 0, so that the zero point is one of the 256 numbers ("Exploring Methods for Efficient Large
    Language Model Inference", section 2.1 and figure 2).

    A zero point goes with each scale. Left: layers that match a pattern of `skip`, those whose rows are no multiple of
    32, and heads tied to the embeddings unless `tied`.

    Raises `GraphError` for weights that are NaN or infinite, and for a pattern that names no layer.
    """

    name: ClassVar[str] = "int8_zeropoint"

    def grid(self, matrix: Floats) -> Grid:
        """Return the grid of `matrix` [N, K]: scales and zero points [N, 1]."""
        lowest, highest = matrix.min(axis=1, keepdims=True), matrix.max(axis=1, keepdims=True)
        if self.per == "tensor":
            lowest, highest = np.full_like(lowest, lowest.min()), np.full_like(highest, highest.max())
        return asymmetric(lowest, highest, 8)
