"""The launch of IntLinear's CUDA kernels: one block for each tile of 64 rows and 128 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.plugins.cuda.geometry import Launch, Tensor, blocks, product
from intaglio.plugins.int_linear.spec import gelu_constants

TILE_ROWS, TILE_COLUMNS, THREADS = 64, 128, 128  # as in cuda/gemm.cuh


def launch(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], sm: int) -> Launch:
    """Rows are all axes of x but the last; the kernel is chosen by bits, activation, and the factors given."""
    x, weight, _, *factors = inputs
    assert x is not None and weight is not None
    rows, columns = product(x.shape[:-1]), weight.shape[1]
    grid = (blocks(columns, TILE_COLUMNS), blocks(rows, TILE_ROWS), 1)
    entry = f"int_linear_{attributes['bits']}"
    scalars = [rows, weight.shape[0], columns, *(factor.shape[0] for factor in factors[:2] if factor)]
    if attributes["activation"]:
        constants = gelu_constants(attributes)
        curve = (constants.saturation, constants.normalize, constants.coefficient)
        per_channel = [factor.shape[0] for factor in factors[2:] if factor]
        entry = "int_linear_gelu_channels" if per_channel else "int_linear_gelu"
        scalars += [*curve, *(per_channel or (constants.out_multiplier, constants.out_shift))]
    return Launch(entry, grid, (THREADS, 1, 1), tuple(scalars))
