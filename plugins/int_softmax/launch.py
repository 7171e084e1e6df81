"""The launch of IntSoftmax's CUDA kernels: one warp for each row."""

from __future__ import annotations

from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Tensors, blocks, constants, four_axes, product
from intaglio.plugins.integer_math import exp_constants, softmax_constants

ROWS, THREADS = 4, 128  # of a block, as in kernel.cu


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """Rows are all axes but the last; with a mask at most four axes."""
    x, *masks = (tensor for tensor in inputs if tensor)
    rows = product(x.shape[:-1])
    curve = constants(exp_constants(attributes["scale"]))
    scalars = (rows, x.shape[-1], *curve, *softmax_constants(attributes["out_scale"]))
    grid, block = (blocks(rows, ROWS), 1, 1), (THREADS, 1, 1)
    if not masks:
        return Launch("int_softmax", grid, block, scalars)
    axes = (*four_axes(x.shape, "IntSoftmax")[:3], *four_axes(masks[0].shape, "IntSoftmax"))
    return Launch("int_softmax_masked", grid, block, (*scalars, *axes))
