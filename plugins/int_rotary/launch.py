"""The launch of IntRotary's CUDA kernel: one block for each tile of 8 rows and 256 channels."""

from __future__ import annotations

from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Tensors, elementwise, product


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """Rows are all axes but the last; those of the tables begin again for each sequence."""
    x, cosine, *_ = (tensor for tensor in inputs if tensor)
    rows, channels = product(x.shape[:-1]), x.shape[-1]
    scalars = (rows, channels, *cosine.shape[::-1])
    return Launch("int_rotary", *elementwise(rows, channels), scalars)
