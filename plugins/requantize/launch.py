"""The launch of Requantize's CUDA kernel: one block for each tile of 8 rows and 256 channels."""

from __future__ import annotations

from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Tensors, elementwise, product


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """Rows are all axes but the last."""
    x, multiplier, shift = (tensor for tensor in inputs if tensor)
    rows = product(x.shape[:-1])
    scalars = (rows, x.shape[-1], multiplier.shape[0], shift.shape[0])
    return Launch(f"requantize_{attributes['bits']}", *elementwise(rows, x.shape[-1]), scalars)
