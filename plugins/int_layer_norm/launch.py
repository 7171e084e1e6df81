"""The launch of IntLayerNorm's CUDA kernels: one warp for each row. They write both outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.plugins.cuda.geometry import Launch, Tensor, blocks, constants, product
from intaglio.plugins.integer_math import layer_norm_constants

ROWS, THREADS = 4, 128  # of a block, as in kernel.cu


def launch(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> Launch:
    """Rows are all axes of x but the last; the channels are a number, as the constants depend on it."""
    x, weight, _, *factors = (tensor for tensor in inputs if tensor)
    rows = product(x.shape[:-1])
    scalars = (rows, *constants(layer_norm_constants(weight.shape[0], **attributes)))
    grid, block = (blocks(rows, ROWS), 1, 1), (THREADS, 1, 1)
    if not factors:
        return Launch("int_layer_norm", grid, block, scalars)
    lengths = (factor.shape[0] for factor in factors)
    return Launch("int_layer_norm_channels", grid, block, (*scalars[:-2], *lengths))
