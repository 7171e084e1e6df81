"""Int8Absmax: quantise weights to 8 bits, with the largest magnitude at 127."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from intaglio.graph_passes.weights.options import Int8Pass
from intaglio.graph_passes.weights.uniform import Floats, Grid, usable

LIMIT = 127  # of "Exploring Methods for Efficient Large Language Model Inference", section 2.1: -128 is not used


@dataclass(frozen=True)
class Int8Absmax(Int8Pass):
    """x·Wᵀ becomes GroupMatMul of 8 bits: W = scale·q with scale = max|W| / 127 and q of -127 to 127.

    The study uses one scale per layer, `per="tensor"`. Left: layers that match a pattern of `skip`, those whose
    rows are not a multiple of 32, and heads tied to the embeddings unless `tied`.

    Raises `GraphError` for weights that are NaN or infinite, and for a pattern that names no layer.
    """

    name: ClassVar[str] = "int8_absmax"

    def grid(self, matrix: Floats) -> Grid:
        """Return the grid of `matrix` [N, K]: scales [N, 1], zero point 128."""
        largest = np.abs(matrix).max(axis=1, keepdims=True)
        if self.per == "tensor":
            largest = np.full_like(largest, largest.max())
        return Grid(8, usable(largest / np.float32(LIMIT)), None)
