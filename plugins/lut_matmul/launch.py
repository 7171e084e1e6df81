"""The launch of LutMatMul's CUDA kernels; cuda/packed_weights/geometry.py explains the block sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Tensors
from intaglio.plugins.cuda.packed_weights.geometry import packed_alternatives, packed_launch


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """The launch that changes its blocks at our number of rows; see `_launch`."""
    return _launch(inputs, attributes, sm)


def alternatives(inputs: Tensors, attributes: Attributes, sm: int) -> Iterator[Launch]:
    """The launches that change their blocks at other numbers of rows."""
    return packed_alternatives(inputs, attributes, lambda few: _launch(inputs, attributes, sm, few))


def _launch(inputs: Tensors, attributes: Attributes, sm: int, few: int | None = None) -> Launch:
    """Rows are all axes of x but the last; the kernel is chosen by x's dtype, bits, and whether S is given.

    `activation_bits` is for CPUs.
    """
    values = inputs[3] if len(inputs) > 3 else None
    if values is None:
        return packed_launch("lut_matmul", inputs, attributes, sm, few=few)
    value_bytes = np.dtype(values.dtype).itemsize
    return packed_launch("lut_matmul", inputs, attributes, sm, "_sparse", (value_bytes,), few)
