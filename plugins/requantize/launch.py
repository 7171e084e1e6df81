"""The launch of Requantize's CUDA kernel: one block for each tile of 8 rows and 256 channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.plugins.cuda.launching.geometry import Launch, Tensor, elementwise, product


def launch(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], sm: int) -> Launch:
    """Rows are all axes but the last."""
    x, multiplier, shift = (tensor for tensor in inputs if tensor)
    rows = product(x.shape[:-1])
    scalars = (rows, x.shape[-1], multiplier.shape[0], shift.shape[0])
    return Launch(f"requantize_{attributes['bits']}", *elementwise(rows, x.shape[-1]), scalars)
