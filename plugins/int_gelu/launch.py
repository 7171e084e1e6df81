"""The launch of IntGelu's CUDA kernels: one block for each tile of 8 rows and 256 channels."""

from __future__ import annotations

from intaglio.plugins import integer_math
from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Tensors, constants, elementwise, product


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """Rows are all axes but the last."""
    x, *factors = (tensor for tensor in inputs if tensor)
    curve = constants(integer_math.gelu_constants(attributes["scale"], attributes["out_scale"]))
    zero = attributes["out_zero_point"] - integer_math.INT8[0]  # scalars are not negative
    rows = product(x.shape[:-1])
    grid, block = elementwise(rows, x.shape[-1])
    if not factors:
        return Launch("int_gelu", grid, block, (rows, x.shape[-1], *curve, zero))
    lengths = (rows, x.shape[-1], *(factor.shape[0] for factor in factors))
    return Launch("int_gelu_channels", grid, block, (*lengths, *curve[:-2], zero))
