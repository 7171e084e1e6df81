"""The launch of LowRankMatMul's CUDA kernel: one block for each token and 512 channels of y."""

from __future__ import annotations

import numpy as np

from intaglio.errors import EngineError
from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Tensors, blocks

THREADS, COLUMNS = 128, 512  # as in kernel.cu


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """The kernel is chosen by the dtype of x, which y has to have too."""
    x, first, second, _, _, _, y = inputs
    assert x is not None and first is not None and second is not None and y is not None
    if x.dtype != y.dtype:
        raise EngineError(f"LowRankMatMul: x is {x.dtype} and y {y.dtype}, expected the same. Cast one of them.")
    batch, tokens, depth = x.shape
    adapters, rank, _ = first.shape
    width = y.shape[-1]
    itemsizes = (np.dtype(each.dtype).itemsize for each in (first, second))
    scalars = (adapters, rank, batch, tokens, depth, width, *itemsizes)
    grid = (blocks(width, COLUMNS), tokens, batch)
    return Launch(f"low_rank_matmul_{x.dtype}", grid, (THREADS, 1, 1), scalars)
