"""The launch of IntAdd's CUDA kernels: one block for each tile of 8 rows and 256 channels of the sum."""

from __future__ import annotations

import numpy as np

from intaglio.plugins.cuda.launching.geometry import (
    Attributes,
    Launch,
    Tensors,
    broadcast_length,
    elementwise,
    four_axes,
    product,
)


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """At most four axes; rows are all but the last."""
    x, y, *factors = (tensor for tensor in inputs if tensor)
    x_axes, y_axes = four_axes(x.shape, "IntAdd"), four_axes(y.shape, "IntAdd")
    axes = [broadcast_length(a, b) for a, b in zip(x_axes, y_axes, strict=True)]
    lengths = (factor.shape[0] for factor in factors)
    sizes = (np.dtype(tensor.dtype).itemsize for tensor in (x, y))
    scalars = (*lengths, *sizes, *axes, *x_axes, *y_axes)
    return Launch(f"int_add_{attributes['bits']}", *elementwise(product(axes[:3]), axes[3]), scalars)
